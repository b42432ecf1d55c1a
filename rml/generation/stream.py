"""A generation from its prompt to its last token, in visible phases.

prefill
    The prompt, in parts; what the session's cache already holds of it is not evaluated again.
decode
    Choose a token, evaluate it, and so on.
stream
    Tokens to text: whole characters, and nothing that may be the beginning of a stop string.
stop
    An end token, a stop string, `max_tokens`, the end of the context, or `cancel()`.
close
    The session is given back.

Prompt and completion together hold at most `n_ctx` tokens. The last token of a completion is never
evaluated, so the cache itself has one position to spare.
"""

import contextvars
import inspect
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Generator, Iterator
from types import TracebackType
from typing import NoReturn, Self

import numpy as np

from rml.engine.session import Session
from rml.engine.sessions import Sessions
from rml.engine.work import Evaluation
from rml.errors import ArgumentError, Cancelled, ContextOverflow, RmlError
from rml.generation.prefill import Evaluated, evaluate
from rml.generation.prompts import Prompt
from rml.generation.request import Request
from rml.generation.results import Completion, Delta, FinishReason, Timings, TokenLogprob, Usage
from rml.generation.stop import StopFilter
from rml.memory_room import out_of_memory
from rml.sampling.candidates import Floats
from rml.sampling.logprobs import token_logprob
from rml.sampling.sampler import Sampler
from rml.tokenizers import Tokenizer

__all__ = ["Stream"]


class Stream:
    """Pieces of text while they are generated; made by `Model.stream` and `Model.stream_chat`.

    Iterate it once, with ``for`` or ``async for``. Leaving the loop early ends the generation and
    gives the session back; so do `close` and the end of a ``with`` block.

    Parameters
    ----------
    prompt : Prompt
        At least one token.
    request : Request
        What to generate.
    tokenizer : Tokenizer
        Makes text of tokens.
    sessions : Sessions
        Opens a session while the stream runs, unless the request brings its own.
    stop_ids : collection of int
        Ids that end the text, unless `request` ignores them.
    n_batch : int
        Tokens of the prompt that are evaluated at a time.
    evaluated : Evaluated, optional
        What an earlier stream has found out about the same prompt, whose tokens are not evaluated
        again if the session still holds them.
    origin : Session, optional
        Where the request brings no session of its own, a fork of this one is used.
    when_evaluated : callable, optional
        Called once with the session when the prompt has been evaluated.

    Attributes
    ----------
    prompt_token_ids : list of int
        The prompt.
    seed : int
        Start of the random numbers.
    evaluated : Evaluated or None
        What is known of the prompt, after its evaluation.

    Raises
    ------
    ContextOverflow
        If the prompt is longer than the context.
    ArgumentError
        If the prompt is empty, or `request` names tokens outside the vocabulary or a session of
        another model.
    """

    def __init__(
        self,
        prompt: Prompt,
        request: Request,
        tokenizer: Tokenizer,
        *,
        sessions: Sessions,
        stop_ids: Collection[int],
        n_batch: int,
        evaluated: Evaluated | None = None,
        origin: Session | None = None,
        when_evaluated: Callable[[Session], object] | None = None,
    ) -> None:
        n_prompt = len(prompt.ids)
        if not n_prompt:
            raise ArgumentError("the prompt has no tokens, but at least one is needed")
        if request.session is not None and not sessions.owns(request.session):
            raise ArgumentError("the session is of another model, or its model was closed")
        n_ctx = (request.session or origin or sessions).n_ctx
        if n_prompt > n_ctx:
            raise ContextOverflow(
                n_prompt,
                n_ctx,
                'shorten the prompt, load with a larger n_ctx, or say truncate="left"',
            )
        self.prompt_token_ids = prompt.ids
        self.seed = request.seed
        self.evaluated = evaluated
        self._sessions = sessions
        self._origin = origin
        self._when_evaluated = when_evaluated
        self._session: Session | None = None
        self._request = request
        self._tokenizer = tokenizer
        self._n_batch = n_batch
        self._prompt = prompt
        self._limit, self._limited_by = n_ctx - n_prompt, "context"
        if request.max_tokens is not None and request.max_tokens <= self._limit:
            self._limit, self._limited_by = request.max_tokens, "max_tokens"
        self._ends = self._end_tokens(stop_ids)
        n_tokens = min(tokenizer.n_vocab, sessions.n_vocab)
        self._sampler = Sampler(
            request.sampling,
            request.seed,
            n_tokens=n_tokens,
            banned=[i for i in stop_ids if i < n_tokens] if request.ignore_eos else (),
            processors=request.logits_processor,
            mask=request.mask,
            token_bytes=tokenizer.token_bytes,
        )
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._texts: list[str] = []
        self._n_passed_on = 0  # tokens that a piece has reported
        self._n_sampled = 0
        self._n_cached = 0
        self._finish_reason: FinishReason | None = None
        self._stop_reason: str | int | None = None
        self._seconds = self._prefill_seconds = self._sampling_seconds = 0.0
        self._ended_at = 0
        self._computing_since = 0.0
        self._pending: Evaluation | None = None  # of `advance`
        self._cancelled = self._ended = self._waits = False
        self._ending = threading.RLock()  # a signal handler may cancel within these few lines
        self._step = threading.RLock()
        self._pieces = self._lifecycle()

    def _end_tokens(self, stop_ids: Collection[int]) -> dict[int, str | int]:
        """Ids that end the text, and what is reported as the reason."""
        request = self._request
        ends: dict[int, str | int] = {}
        if not request.ignore_eos:
            ends.update((token, token) for token in stop_ids)
        ends.update((token, token) for token in request.stop_token_ids)
        # A control token has no text that could be searched, so its name stands for its id.
        for text in request.stop:
            token = self._tokenizer.token_id(text)
            if token is not None:
                ends[token] = text
        return ends

    # ---- the caller's side ----

    def __iter__(self) -> Iterator[Delta]:
        try:
            while (piece := next(self, None)) is not None:
                yield piece
        finally:  # also when the caller leaves the loop
            self.close()

    def __next__(self) -> Delta:
        with self._step:
            while True:
                piece = self._next_piece()
                if piece is None:
                    raise StopIteration
                if isinstance(piece, Delta):
                    return piece
                self._compute(piece)

    def advance(self) -> Evaluation | None:
        """Go on to the next evaluation, which the caller has to have computed, or to the end.

        For those who have several streams computed together; None is the end. Asked again before
        that, it is the same evaluation.

        Raises
        ------
        RmlError
            What ended the generation.
        """
        with self._step:
            if self._pending is None or self._pending.ended:
                while isinstance(piece := self._next_piece(), Delta):
                    pass
                self._pending = piece
            return self._pending

    @property
    def n_positions(self) -> int:
        """Positions that it may come to hold."""
        return len(self.prompt_token_ids) + self._limit

    def _next_piece(self) -> Delta | Evaluation | None:
        start = time.perf_counter()
        if self._computing_since:
            start, self._computing_since = self._computing_since, 0.0
        try:
            piece = next(self._pieces, None)
        finally:
            now = time.perf_counter()
            self._seconds += now - start
        if isinstance(piece, Evaluation):
            self._computing_since = now
        return piece

    def _compute(self, work: Evaluation) -> None:
        """Have an evaluation computed; an interrupt ends the generation."""
        try:
            self._waits = True
            self._sessions.engine.finish(work)
        except BaseException as error:  # noqa: BLE001 - raised again by the phase that it interrupts
            self._computing_since = 0.0
            self._pieces.throw(error)
        finally:
            self._waits = False

    async def __aiter__(self) -> AsyncIterator[Delta]:
        import asyncio  # takes longer to import than all of rml, and few need it
        from concurrent.futures import ThreadPoolExecutor

        # A thread of its own: those of the loop's default executor are few, and the program's.
        thread, loop = ThreadPoolExecutor(1, "rml-stream"), asyncio.get_running_loop()
        run = contextvars.copy_context().run

        def following() -> Delta | None:
            return next(self, None)

        try:
            while (piece := await loop.run_in_executor(thread, run, following)) is not None:
                yield piece
        finally:
            self.cancel()
            try:
                await loop.run_in_executor(thread, run, self.close)
            finally:
                thread.shutdown(wait=False)

    def cancel(self) -> None:
        """End the generation at once, in the middle of a step or of a part of the prompt.

        May be called from any thread and from a signal handler. The stream then gives what text it
        held back, and ends; the session holds what was evaluated before that step.
        """
        with self._ending:
            if not self._ended:  # else the session may already be at work for others
                self._cancelled = True
                if self._session is not None:
                    self._session.cancel()

    def close(self) -> None:
        """End the generation if it has not ended, and give the session back."""
        self.cancel()
        with self._step:  # waits for another thread's step
            state = inspect.getgeneratorstate(self._pieces)
            if state == inspect.GEN_RUNNING:  # called from `progress`: to cancel is enough
                return
            if self._waits:  # called from a signal handler in the middle of a step: likewise
                return
            if state != inspect.GEN_CLOSED and self._finish_reason is None:
                self._finish("cancelled")
            self._pieces.close()
            self._give_back()

    def result(self) -> Completion:
        """Run to the end, if it was not reached, and return everything.

        Raises
        ------
        RmlError
            What ended the generation, if it did not end in good order.
        """
        for _ in self:
            pass
        if self._finish_reason is None:
            raise RmlError("the generation was ended by an error and has no result")
        return Completion(
            text="".join(self._texts),
            token_ids=self._token_ids.copy(),
            prompt_token_ids=self.prompt_token_ids.copy(),
            finish_reason=self._finish_reason,
            stop_reason=self._stop_reason,
            usage=Usage(
                len(self._prompt.ids), len(self._token_ids), self._n_cached, self._prompt.n_dropped
            ),
            timings=Timings(
                cache_n=self._n_cached,
                prompt_n=len(self.prompt_token_ids) - self._n_cached,
                prompt_ms=self._prefill_seconds * 1e3,
                predicted_n=self._n_sampled,
                predicted_ms=(self._seconds - self._prefill_seconds) * 1e3,
                sampling_ms=self._sampling_seconds * 1e3,
            ),
            seed=self.seed,
            sampling=self._sampler.settings,
            logprobs=self._logprobs.copy() if self._request.logprobs else None,
            prompt_logprobs=self.evaluated.logprobs if self.evaluated else None,
            is_chat=self._prompt.is_chat,
            created=self._ended_at,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise ArgumentError("a Stream is neither pickled nor copied: send what result() returns")

    # ---- the phases ----

    def _lifecycle(self) -> Generator[Delta | Evaluation, None, None]:
        try:
            with out_of_memory("a generation"):
                session = self._begin()
                logits = yield from self._prefill(session)
                if logits is not None:
                    if self._when_evaluated is not None:
                        self._when_evaluated(session)
                    if self._request.echo and (text := self._prompt_text()):
                        yield self._delta(text)
                    yield from self._stream(self._decode(session, logits))
        finally:
            self._give_back()

    def _begin(self) -> Session:
        with self._ending:
            self._session = self._request.session
            if self._session is None:
                if self._origin:
                    self._session = self._origin.fork()
                else:
                    self._session = self._sessions.open(shares=self._request.prefix_cache)
            return self._session

    def _prefill(self, session: Session) -> Generator[Evaluation, None, Floats | None]:
        """Evaluate the prompt; None if cancelled."""
        start = time.perf_counter()
        request, prompt, known = self._request, self.prompt_token_ids, self.evaluated
        if known is not None and session.keep_prefix(prompt, whole=True) == len(prompt):
            self._n_cached = len(prompt)
        else:
            scored = request.echo and request.logprobs
            self._n_cached = 0 if scored else session.keep_prefix(prompt)
            known = self.evaluated = yield from evaluate(
                session,
                prompt,
                n_cached=self._n_cached,
                top_logprobs=request.top_logprobs if scored else None,
                n_batch=self._n_batch,
                shares=request.prefix_cache,
                progress=request.progress,
                is_cancelled=lambda: self._cancelled,
            )
            if known is not None:
                self._n_cached += known.n_adopted
        self._prefill_seconds = time.perf_counter() - start
        if known is None or self._cancelled:
            self._cancelled = True
            self._finish("cancelled")
            return None
        self._sampler.accept(prompt)
        return known.logits

    def _prompt_text(self) -> str:
        text = self._prompt.text
        return self._tokenizer.decode(self.prompt_token_ids) if text is None else text

    def _decode(self, session: Session, logits: Floats) -> Iterator[int | Evaluation]:
        """Choose and evaluate tokens until something ends it."""
        sampler, ids = self._sampler, self._token_ids
        row = np.empty(session.n_vocab, np.float32)  # the prompt's are kept
        while True:
            if self._cancelled:
                return self._finish("cancelled")
            if len(ids) >= self._limit:
                return self._finish("length", self._limited_by)
            start = time.perf_counter()
            token = sampler.sample(logits, session.position)
            self._sampling_seconds += time.perf_counter() - start
            self._n_sampled += 1
            if token in self._ends:
                return self._finish("stop", self._ends[token])
            if self._request.logprobs:
                self._logprobs.append(token_logprob(logits, token, self._request.top_logprobs))
            sampler.accept([token])
            ids.append(token)
            yield token
            if len(ids) < self._limit and not self._cancelled:
                if (
                    not session.closed
                    and session.position != len(self.prompt_token_ids) + len(ids) - 1
                ):
                    raise ArgumentError("the session was used for something else meanwhile")
                try:
                    with session.evaluation([token], out=row) as work:
                        yield work
                    logits = row
                except Cancelled:
                    self._cancelled = True

    def _stream(self, tokens: Iterator[int | Evaluation]) -> Iterator[Delta | Evaluation]:
        """Make text of tokens, and look for stop strings in it."""
        decoder = self._tokenizer.stream_decoder(previous=self.prompt_token_ids[-1])
        cut = StopFilter(self._request.stop)
        text = ""
        for token in tokens:
            if isinstance(token, Evaluation):
                yield token
                continue
            text = cut.feed(decoder.decode([token]))
            if cut.matched is not None:
                break
            if text:
                yield self._delta(text)
                text = ""
        text += cut.feed(decoder.flush()) + cut.flush()
        if cut.matched is not None:
            self._finish("stop", cut.matched)
        if text or self._n_passed_on < len(self._token_ids):
            yield self._delta(text)

    def _delta(self, text: str) -> Delta:
        since, self._n_passed_on = self._n_passed_on, len(self._token_ids)
        self._texts.append(text)
        logprobs = self._logprobs[since:] if self._request.logprobs else None
        return Delta(text, self._token_ids[since:], logprobs)

    def _finish(self, reason: FinishReason, stop_reason: str | int | None = None) -> None:
        self._finish_reason, self._stop_reason = reason, stop_reason
        self._ended_at = int(time.time())

    def _give_back(self) -> None:
        """Leave the session usable, or close it if it was opened for this stream alone."""
        with self._ending:
            self._ended = True
            session, self._session = self._session, None
            if session is None:
                return
            session.uncancel()
        if session is not self._request.session:
            session.close()
