"""Who listens to a generation: pieces of text one after the other, or the whole at its end.

A generation joins the engine at the first piece that is asked for. From then on it is in every
step, whoever computes that, until eight tokens are unread; streams that are read in turn, in one
thread or in several, are computed together. In a session of the caller's nothing runs ahead: the
session holds what was read.
"""

import contextvars
import threading
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import NoReturn, Self

from rml.engine.session import Session, checked_ids
from rml.engine.sessions import Sessions
from rml.errors import ArgumentError, ContextOverflow, RmlError
from rml.generation.generation import Evaluated, Generation
from rml.generation.prompts import Prompt
from rml.generation.request import Request
from rml.generation.results import Completion, Delta
from rml.memory_room import out_of_memory
from rml.tokenizers import Tokenizer

__all__ = ["Stream"]


class Stream:
    """Pieces of text while they are generated; made by `Model.stream` and `Model.stream_chat`.

    Iterate it once, with ``for`` or ``async for``. Leaving the loop early ends the generation; so
    do `close` and the end of a ``with`` block, and letting the stream go.

    Parameters
    ----------
    prompt : Prompt
        At least one token.
    request : Request
        What to generate.
    tokenizer : Tokenizer
        Makes text of tokens.
    sessions : Sessions
        Those of the model.
    stop_ids : collection of int
        Ids that end the text, unless `request` ignores them.
    known : Evaluated, optional
        What an earlier stream has found out about the same prompt, which is not evaluated again.
    keeps_evaluated : bool
        Whether to keep that for others.

    Attributes
    ----------
    prompt_token_ids : list of int
        The prompt.
    seed : int
        Start of the random numbers.

    Raises
    ------
    ContextOverflow
        If the prompt is longer than the context.
    ArgumentError
        If the prompt is empty or holds what is no token, or `request` names tokens outside the
        vocabulary or a session of another model.
    """

    def __init__(
        self,
        prompt: Prompt,
        request: Request,
        tokenizer: Tokenizer,
        *,
        sessions: Sessions,
        stop_ids: Collection[int],
        known: Evaluated | None = None,
        keeps_evaluated: bool = False,
    ) -> None:
        n_prompt, session = len(prompt.ids), request.session
        if not n_prompt:
            raise ArgumentError("the prompt has no tokens, but at least one is needed")
        checked_ids(prompt.ids, sessions.n_vocab)
        if session is not None and not sessions.owns(session):
            raise ArgumentError("the session is of another model, or its model was closed")
        n_ctx = sessions.n_ctx if session is None else session.n_ctx
        if known is not None:
            n_ctx = known.n_ctx
        if n_prompt > n_ctx:
            raise ContextOverflow(
                n_prompt,
                n_ctx,
                'shorten the prompt, load with a larger n_ctx, or say truncate="left"',
            )
        self.prompt_token_ids = prompt.ids
        self.seed = request.seed
        self._request, self._known = request, known
        self._session, self._engine = session, sessions.engine
        self._kv_type = sessions.kv_type
        engine = self._engine
        self._generation = Generation(
            prompt,
            request,
            tokenizer,
            engine=engine,
            stop_ids=stop_ids,
            n_tokens=min(tokenizer.n_vocab, sessions.n_vocab),
            n_vocab=sessions.n_vocab,
            n_ctx=n_ctx,
            keeps_evaluated=keeps_evaluated,
            is_closed=lambda: engine.closed or (session is not None and session.closed),
        )
        self._position = 0  # of the session, when it was used the last time
        self._turn = threading.RLock()  # one thread at a time
        self._in_user_code = self._raised = False

    # ---- the caller's side ----

    def __iter__(self) -> Iterator[Delta]:
        try:
            while (piece := next(self, None)) is not None:
                yield piece
        finally:  # also when the caller leaves the loop
            self.close()

    def __next__(self) -> Delta:
        generation = self._generation
        with self._turn:
            while (piece := generation.read()) is None:
                if generation.ended:
                    self._raise()
                    raise StopIteration
                self._go_on(lambda: generation.has_news)
            return piece

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
        self._engine.cancel(self._generation)

    def close(self) -> None:
        """End the generation if it has not ended, and give its memory back."""
        self._generation.listened = False
        self.cancel()
        if self._engine.is_leading:  # a signal handler, in the middle of a step: that ends it
            return
        with self._turn:  # waits for another thread that reads
            if not self._in_user_code:  # which is asked afterwards whether this was called
                self._engine.leave(self._generation)

    def result(self) -> Completion:
        """Run to the end, if it was not reached, and return everything.

        Raises
        ------
        RmlError
            What ended the generation, if it did not end in good order.
        """
        generation = self._generation
        with self._turn:
            generation.read_all()
            while not generation.ended:
                self._go_on(lambda: self.needs_attention)
            self._raise()
            if generation.finish_reason is None:
                raise RmlError("the generation was ended by an error and has no result")
            while generation.read() is not None:  # a loop would find nothing more
                pass
            return generation.result()

    # ---- several together ----

    @property
    def evaluated(self) -> Evaluated | None:
        """What is known of the prompt, if it is kept."""
        return self._generation.evaluated

    @property
    def ended(self) -> bool:
        """Whether nothing more is to be computed."""
        return self._generation.ended

    @property
    def needs_attention(self) -> bool:
        """Whether it has ended, or `attend` is to be called."""
        return self._generation.ended or self._generation.owner_due

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Have the engine compute it while others are waited for, too; the session is in hand.

        An error of the block ends the generation.
        """
        generation = self._generation
        try:
            with self._own_sequence() if self._session is None else self._in(self._session):
                self._engine.join(generation)
                generation.waited = True
                try:
                    yield
                finally:
                    generation.waited = False
        except BaseException as error:
            self._fail(error)
            raise

    @contextmanager
    def _own_sequence(self) -> Iterator[None]:
        generation, known = self._generation, self._known
        if not generation.has_begun:
            if known is None:
                shares = self._request.prefix_cache
                sequence = self._engine.new_sequence(self._kv_type, shares=shares)
            else:
                sequence, self._known = known.sequence.fork(), None
            generation.begin(sequence, is_own=True, known=known)
        yield

    @contextmanager
    def _in(self, session: Session) -> Iterator[None]:
        """Hold the session, in which nothing goes on before it is asked for again."""
        generation = self._generation
        with session.lend(generation) as sequence:
            if not generation.has_begun:
                generation.begin(sequence, is_own=False)
                self._position = sequence.length
            if sequence.length != self._position:
                raise ArgumentError("the session was used for something else meanwhile")
            try:
                yield
            finally:
                self._engine.part(generation)
                self._position = sequence.length

    def attend(self) -> None:
        """Run what is the caller's, in this thread."""
        if self._generation.owner_due:
            self._in_user_code = True
            try:
                self._generation.run_owner()
            except BaseException as error:
                self._fail(error)
                raise
            finally:
                self._in_user_code = False

    def evaluate_prompt(self) -> None:
        """Go on until `evaluated` is there, or it has ended."""
        generation = self._generation
        with self._turn:
            while not generation.ended and generation.evaluated is None:
                self._go_on(lambda: self.needs_attention or generation.evaluated is not None)

    def forget_evaluated(self) -> None:
        """Give the memory of `evaluated` back, when all who need it have begun."""
        self._generation.forget_evaluated()

    def read_all(self) -> None:
        """Go on to the end without waiting for a reader."""
        self._generation.read_all()

    # ---- inside ----

    def _go_on(self, done: Callable[[], bool]) -> None:
        """Wait until `done()`, then run what is the caller's."""
        if self._in_user_code:
            raise ArgumentError("a callback of a stream cannot read the stream")
        with out_of_memory("a generation"):
            with self.at_work():
                self._engine.wait(done)
            self.attend()

    def _fail(self, error: BaseException) -> None:
        """End the generation with an error that is raised to the caller now."""
        generation = self._generation
        self._raised = True
        generation.fail(error)
        self._engine.part(generation)
        self._engine.cancel(generation)

    def _raise(self) -> None:
        """Raise what ended the generation, once."""
        error = self._generation.error
        if error is not None and not self._raised:
            self._raised = True
            with out_of_memory("a generation"):
                raise error

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
