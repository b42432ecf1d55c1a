"""One request as the engine sees it: a prompt, the tokens that were accepted, and why it ended.

    prompt -> choose a token -> accept it -> evaluate it -> choose ... -> end

What is evaluated follows from how many tokens the sequence has, so a step that was lost, or pages
that were given away, are made up for by evaluating again. The tokens are the one truth: an
interrupt in the middle of accepting one is mended by going through all of them anew.

The leader of a step chooses the tokens of all generations in it. Code of a caller (masks and
processors that are called, progress) is left to the caller's thread: the generation waits for it.

Prompt and completion together hold at most the context. The last token of a completion is never
evaluated.
"""

import threading
import time
from collections.abc import Callable, Collection
from collections.abc import Sequence as Row
from dataclasses import dataclass

import numpy as np

from rml.engine.books import BOOKS
from rml.engine.engine import Engine
from rml.engine.sequence import Sequence
from rml.errors import ClosedError
from rml.generation.prompts import Prompt
from rml.generation.request import Request
from rml.generation.results import Completion, Delta, FinishReason, Timings, Usage
from rml.generation.stop import StopFilter
from rml.llm.evaluator import Evaluator
from rml.llm.plan import Aborted
from rml.sampling.candidates import Floats
from rml.sampling.logprobs import TokenLogprob, logprobs_of, rows_at_once, token_logprob
from rml.sampling.sampler import Sampler
from rml.tokenizers import Tokenizer

__all__ = ["Evaluated", "Generation"]

_AHEAD = 8  # tokens that nobody has read, at which a generation waits for its reader


@dataclass(frozen=True, slots=True)
class Evaluated:
    """What is known of a prompt that was evaluated.

    Attributes
    ----------
    sequence : Sequence
        Holds the prompt, and nothing else.
    logits : ndarray of float32, shape (n_vocab,)
        Scores of the token behind it.
    logprobs : list of TokenLogprob or None, or None
        As `Completion.prompt_logprobs`.
    n_ctx : int
        Most tokens of prompt and completion together.
    """

    sequence: Sequence
    logits: Floats
    logprobs: list[TokenLogprob | None] | None
    n_ctx: int


class Generation:
    """A `Work` of the engine.

    Parameters
    ----------
    prompt : Prompt
        At least one token, no more than the context.
    request : Request
        What to generate.
    tokenizer : Tokenizer
        Makes text of tokens.
    engine : Engine
        Evaluates.
    stop_ids : collection of int
        Ids that end the text, unless `request` ignores them.
    n_tokens : int
        Ids from here on are padding.
    n_vocab : int
        Length of a row of logits.
    n_ctx : int
        Most tokens of prompt and completion together.
    keeps_evaluated : bool
        Whether `evaluated` is wanted.
    is_closed : callable
        Whether the model or the session was closed, so that a step was given up for that.

    Attributes
    ----------
    sequence : Sequence
        Where it evaluates, once it has begun.
    has_begun : bool
        Whether it has a sequence.
    ids : list of int
        The tokens that were accepted.
    pieces : list of Delta
        The text so far. It only grows.
    error : BaseException or None
        What ended it, if it did not end in good order.
    finish_reason : str or None
        Why it ended, else None.
    listened : bool
        Whether somebody wants the text that is held back, should it be cancelled.
    owner_due : bool
        Nothing goes on before `run_owner`.
    evaluated : Evaluated or None
        What is known of the prompt, from its evaluation on.
    """

    def __init__(
        self,
        prompt: Prompt,
        request: Request,
        tokenizer: Tokenizer,
        *,
        engine: Engine,
        stop_ids: Collection[int],
        n_tokens: int,
        n_vocab: int,
        n_ctx: int,
        keeps_evaluated: bool = False,
        is_closed: Callable[[], bool],
    ) -> None:
        self.cancelled = self.waited = self.held = False
        self.owner_due, self.listened = False, True
        self.ids: list[int] = []
        self.pieces: list[Delta] = []
        self.error: BaseException | None = None
        self.finish_reason: FinishReason | None = None
        self.evaluated: Evaluated | None = None
        self._stop_reason: str | int | None = None
        self._prompt, self._request, self._tokenizer = prompt, request, tokenizer
        self._engine = engine
        self._n_prompt = len(prompt.ids)
        self._keeps_evaluated = keeps_evaluated
        self._is_closed = is_closed
        self._n_ctx = n_ctx
        self._limit, self._limited_by = n_ctx - self._n_prompt, "context"
        if request.max_tokens is not None and request.max_tokens <= self._limit:
            self._limit, self._limited_by = request.max_tokens, "max_tokens"
        self._ends = _end_tokens(request, stop_ids, tokenizer)
        self._banned = [i for i in stop_ids if i < n_tokens] if request.ignore_eos else []
        self._n_tokens, self._n_vocab = n_tokens, n_vocab
        self.sequence: Sequence  # from `begin` on
        self.has_begun = self._owns_sequence = False
        self._ahead: int | None = _AHEAD
        self._n_read = self._n_tokens_read = 0
        self._scores_prompt = request.echo and request.logprobs
        self._prompt_logprobs: list[TokenLogprob | None] | None = None
        self._logprobs: list[TokenLogprob] = []
        self._has_user_code = bool(request.logits_processor) or callable(request.mask)
        self._row: Floats | None = None  # logits of which the next token is to be chosen
        self._own_row: Floats | None = None  # where they are copied, if they have to last
        self._opened = False  # the prompt was evaluated
        self._torn = False  # an interrupt came while a token was accepted
        self._progress_due = False
        self._n_dropped = 0  # an end token that was chosen
        self._n_cached = 0
        self._joined_at = self._queued_seconds = 0.0
        self._prefill_seconds = self._decode_seconds = self._sampling_seconds = 0.0
        self._ended_at = 0
        self._make_parts()
        self._surprise_limits = (0, self._sampler.surprise_limit)  # after how many tokens

    def _make_parts(self) -> None:
        """Begin anew with what follows from the tokens."""
        request = self._request
        self._sampler = Sampler(
            request.sampling,
            request.seed,
            n_tokens=self._n_tokens,
            banned=self._banned,
            processors=request.logits_processor,
            mask=request.mask,
            token_bytes=self._tokenizer.token_bytes,
        )
        self._text = self._tokenizer.stream_decoder(previous=self._prompt.ids[-1])
        self._cut = StopFilter(request.stop)
        self._n_accepted = self._n_pieces = self._n_passed_on = 0

    # ---- the beginning ----

    def begin(self, sequence: Sequence, *, is_own: bool, known: Evaluated | None = None) -> None:
        """Have a sequence; what it holds of the prompt is not evaluated again.

        Parameters
        ----------
        sequence : Sequence
            Where to evaluate.
        is_own : bool
            Whether it is given back at the end, and may hold more than was read.
        known : Evaluated, optional
            What is known of the prompt, all of which `sequence` holds.
        """
        if not is_own and self._ahead is not None:
            self._ahead = 0
        if known is None:
            sequence.keep([] if self._scores_prompt else self._prompt.ids[:-1])
        self._n_cached = len(sequence.ids)
        self._joined_at = time.perf_counter()
        if known is not None:
            self._prompt_logprobs = known.logprobs
            self._row = known.logits
        elif self._scores_prompt:
            self._prompt_logprobs = [None]
        self.sequence, self.has_begun, self._owns_sequence = sequence, True, is_own
        if known is not None:
            self.advance()

    def read_all(self) -> None:
        """Go on to the end without waiting for a reader."""
        self._ahead = None

    def read(self) -> Delta | None:
        """Return the next piece, if it is there."""
        if self._n_read == len(self.pieces):
            return None
        piece = self.pieces[self._n_read]
        self._n_tokens_read += len(piece.token_ids)
        self._n_read += 1
        return piece

    @property
    def has_news(self) -> bool:
        """Whether there is a piece to read, or it has ended or waits for its owner."""
        return self._n_read < len(self.pieces) or self.owner_due or self.ended

    # ---- a work of the engine ----

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self.finish_reason is not None or self.error is not None

    @property
    def _is_paused(self) -> bool:
        """Whether a reader has to read first."""
        if self._ahead is None:
            return False
        if self._ahead == 0:
            return self._n_read < len(self.pieces)
        return self._n_passed_on - self._n_tokens_read >= self._ahead

    @property
    def n_wanted(self) -> int:
        """Tokens of the prompt that are missing, or the last one that was accepted."""
        if self.owner_due or self._torn or self.ended or self._is_paused:
            return 0
        n = self._n_prompt + len(self.ids) - len(self.sequence.ids)
        return n if self.wants_last else min(n, rows_at_once(self._n_vocab))

    @property
    def n_shareable(self) -> int:
        """All but the last, unless every token of the prompt is to be scored."""
        if not (self._request.prefix_cache and self.wants_last):
            return 0
        return max(0, self.n_wanted - 1)

    @property
    def wants_last(self) -> bool:
        """Whether there are no tokens of the prompt to be scored."""
        return self._opened or not self._scores_prompt

    def next_ids(self, n: int) -> Row[int]:
        """Return the next tokens of prompt and completion."""
        at, prompt = len(self.sequence.ids), self._prompt.ids
        if at >= self._n_prompt:
            at -= self._n_prompt
            return self.ids[at : at + n]
        ids = prompt[at : at + n]
        return ids if len(ids) == n else ids + self.ids[: n - len(ids)]

    def adopted(self, n: int) -> None:
        """Count them as cached, if they are of the prompt and were not evaluated here before."""
        if not self._opened:
            self._n_cached += n

    def deliver(self, n: int, logits: Floats | None, evaluator: Evaluator, first: int) -> None:
        """Keep the logits behind the last token, and score those of the prompt."""
        if not self._queued_seconds:
            self._queued_seconds = max(1e-9, self._engine.step_began_at - self._joined_at)
        if not self.wants_last:
            self._score(n, evaluator, first)
        elif logits is not None:
            # What the owner looks at lasts longer than the step.
            lasts = self._has_user_code or self._request.progress is not None
            self._row = self._copied(logits) if lasts else logits

    def _copied(self, logits: Floats) -> Floats:
        if self._own_row is None:
            self._own_row = np.empty_like(logits)
        self._own_row[:] = logits
        return self._own_row

    def _score(self, n: int, evaluator: Evaluator, first: int) -> None:
        """Find the logprobs of the tokens behind the next `n`; the same may come again."""
        at, entries = len(self.sequence.ids), self._prompt_logprobs
        rows = np.empty((n, self._n_vocab), np.float32)
        evaluator.logits_of(first, first + n, rows)
        following = self._prompt.ids[at + 1 : at + 1 + n]
        if entries is not None:
            del entries[at + 1 :]
            entries += logprobs_of(rows, following, self._request.top_logprobs, at + 1)
        if at + n == self._n_prompt:
            self._row = self._copied(rows[-1])

    def advance(self) -> None:
        """Choose and accept the next token, if its logits are there."""
        now = time.perf_counter()
        spent = now - max(self._engine.step_began_at, self._joined_at)
        if self._opened:
            self._decode_seconds += spent
        else:
            self._prefill_seconds += spent
        if self._torn:
            self._mend()
        if self.ended or self.owner_due:
            return
        if self._request.progress is not None and not self._opened:
            self._progress_due = self.owner_due = True
            return
        self._go_on()
        self._decode_seconds += time.perf_counter() - now

    def _go_on(self, *, as_owner: bool = False) -> None:
        """Choose a token, if its logits are there and need no code of the caller, or run that."""
        if self._row is None or len(self.sequence.ids) < self._n_prompt + len(self.ids):
            return
        if self._keeps_evaluated and self.evaluated is None:
            logits, logprobs = self._row.copy(), self._prompt_logprobs
            fork = self.sequence.fork()
            fork.gate = threading.Lock()  # nobody works with it, so it may give way
            self.evaluated = Evaluated(fork, logits, logprobs, self._n_ctx)
        if self._has_user_code and not as_owner and len(self.ids) < self._limit:
            self.owner_due = True
        else:
            self._choose()

    def fail(self, error: BaseException) -> None:
        """End: with an error, or in good order if that says that it was cancelled."""
        if self.ended:
            return
        if isinstance(error, Aborted):
            if not self._is_closed():
                self.owner_due = False
                if self._torn:
                    self._mend()
                if not self.ended:
                    self._end("cancelled")
                return
            error = ClosedError("the session or its model was closed during a step")
        self.error = error
        self._give_back()

    # ---- the owner's part ----

    def run_owner(self) -> None:
        """Run what is the caller's, in the thread that waits.

        Raises
        ------
        BaseException
            What the caller's code raises; it ends the generation.
        """
        with BOOKS:  # from here on the engine does not end it
            if self.ended or not self.owner_due:
                return
            self.held = True
        try:
            if self._progress_due:
                self._progress_due = False
                if self._request.progress is not None:
                    self._request.progress(len(self.sequence.ids), self._n_prompt)
            if self.cancelled:
                self.fail(Aborted())
            else:
                began = time.perf_counter()
                self._go_on(as_owner=True)
                if self._opened:
                    self._decode_seconds += time.perf_counter() - began
        except BaseException as error:
            self.fail(error)
            raise
        finally:
            self.owner_due = self.held = False

    # ---- tokens ----

    def _choose(self) -> None:
        """Choose a token of the logits that are there, and accept it."""
        if self._row is None:
            return
        if self.cancelled:
            self.fail(Aborted())
            return
        self._torn = True
        if not self._opened:
            self._open()
        logits, ids = self._row, self.ids
        if len(ids) >= self._limit:
            self._end("length", self._limited_by)
        else:
            began = time.perf_counter()
            token = self._sampler.sample(logits, self._n_prompt + len(ids))
            self._sampling_seconds += time.perf_counter() - began
            if token in self._ends:
                self._n_dropped = 1
                self._end("stop", self._ends[token])
            else:
                if self._request.logprobs:
                    del self._logprobs[len(ids) :]
                    top = self._request.top_logprobs
                    self._logprobs.append(token_logprob(logits, token, top))
                ids.append(token)
                self._accept(token)
                self._surprise_limits = (len(ids), self._sampler.surprise_limit)
        self._row = None
        self._torn = False

    def _open(self) -> None:
        """Begin the text behind the prompt."""
        self._sampler.accept(self._prompt.ids)
        if self._request.echo and (text := self._prompt_text()):
            self._pass_on(text)
        self._opened = True

    def _prompt_text(self) -> str:
        text = self._prompt.text
        return self._tokenizer.decode(self._prompt.ids) if text is None else text

    def _accept(self, token: int) -> None:
        """Take note of the next of `ids`, and pass its text on."""
        self._sampler.accept([token])
        self._n_accepted += 1
        text = self._cut.feed(self._text.decode([token]))
        if self._cut.matched is not None:
            self._end("stop", self._cut.matched, text)
            return
        if text:
            self._pass_on(text)
        if self._n_accepted >= self._limit:
            self._end("length", self._limited_by)

    def _mend(self) -> None:
        """Go through all tokens anew: an interrupt came while one was accepted."""
        if self.ended:
            self._torn = False
            return
        known, limit = self._surprise_limits
        self._make_parts()
        if self._opened or self.ids:
            self._open()
            for token in self.ids:
                # Mirostat learns from the logits of the last token only; the rest is known.
                if self._n_accepted == known:
                    self._sampler.surprise_limit = limit
                    if self._row is not None:
                        self._sampler.sample(self._row, self._n_prompt + known)
                self._accept(token)
            if self._n_accepted == known:
                self._sampler.surprise_limit = limit
            elif self._n_accepted > known or self.ended:
                self._row = None
            self._surprise_limits = (self._n_accepted, self._sampler.surprise_limit)
        self._torn = False

    def _pass_on(self, text: str) -> None:
        since, stop = self._n_passed_on, self._n_accepted
        logprobs = self._logprobs[since:stop] if self._request.logprobs else None
        if self._n_pieces == len(self.pieces):  # else it was passed on before an interrupt
            self.pieces.append(Delta(text, self.ids[since:stop], logprobs))
        self._n_pieces += 1
        self._n_passed_on = stop

    def _end(
        self, reason: FinishReason, stop_reason: str | int | None = None, text: str = ""
    ) -> None:
        """Pass on what was held back; the end is there when `finish_reason` is."""
        if reason != "cancelled" or self.listened:
            text += self._cut.feed(self._text.flush()) + self._cut.flush()
            if self._cut.matched is not None:
                reason, stop_reason = "stop", self._cut.matched
            if text or self._n_passed_on < self._n_accepted:
                self._pass_on(text)
        self._ended_at = int(time.time())
        self._stop_reason = stop_reason
        self._give_back()
        self.finish_reason = reason

    def forget_evaluated(self) -> None:
        """Give the memory of `evaluated` back."""
        if self.evaluated is not None:
            self.evaluated.sequence.release()
            self.evaluated = None

    def _give_back(self) -> None:
        if self._owns_sequence:
            self.sequence.release()

    def result(self) -> Completion:
        """Return everything, after the end."""
        if self.finish_reason is None:
            raise RuntimeError("the generation has not ended")
        return Completion(
            text="".join(piece.text for piece in self.pieces),
            token_ids=self.ids.copy(),
            prompt_token_ids=self._prompt.ids.copy(),
            finish_reason=self.finish_reason,
            stop_reason=self._stop_reason,
            usage=Usage(self._n_prompt, len(self.ids), self._n_cached, self._prompt.n_dropped),
            timings=Timings(
                cache_n=self._n_cached,
                prompt_n=self._n_prompt - self._n_cached,
                prompt_ms=self._prefill_seconds * 1e3,
                predicted_n=len(self.ids) + self._n_dropped,
                predicted_ms=self._decode_seconds * 1e3,
                sampling_ms=self._sampling_seconds * 1e3,
                queued_ms=self._queued_seconds * 1e3,
            ),
            seed=self._request.seed,
            sampling=self._sampler.settings,
            logprobs=self._logprobs.copy() if self._request.logprobs else None,
            prompt_logprobs=self._prompt_logprobs,
            is_chat=self._prompt.is_chat,
            created=self._ended_at,
        )


def _end_tokens(
    request: Request, stop_ids: Collection[int], tokenizer: Tokenizer
) -> dict[int, str | int]:
    """Ids that end the text, and what is reported as the reason."""
    ends: dict[int, str | int] = {}
    if not request.ignore_eos:
        ends.update((token, token) for token in stop_ids)
    ends.update((token, token) for token in request.stop_token_ids)
    # A control token has no text that could be searched, so its name stands for its id.
    for text in request.stop:
        token = tokenizer.token_id(text)
        if token is not None:
            ends[token] = text
    return ends
