"""What the engine works on: tokens of a sequence whose rows somebody waits for."""

from collections.abc import Sequence as Row
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from rml.engine.sequence import Sequence
from rml.llm.evaluator import Evaluator

__all__ = ["Evaluation", "Outputs", "Work"]

F32 = npt.NDArray[np.float32]

# What is wanted of the tokens: logits behind the last one or behind all, or states behind all.
Outputs = Literal["last", "all", "states"]


class Work(Protocol):
    """Tokens behind those of a sequence.

    What is to be evaluated follows from how many tokens the sequence has. So the pages may be taken
    away at any time (`Sequence.give_way`): then all is evaluated again, with the same bits.

    Attributes
    ----------
    cancelled : bool
        Set by anybody at any time, also by a signal handler; the engine then ends the work.
    waited : bool
        Whether somebody waits for it now; else it goes on, but gives way to those for whom somebody
        does.
    held : bool
        Its owner is at work on it in a thread of his own; the engine then leaves it alone.
    """

    cancelled: bool
    waited: bool
    held: bool

    @property
    def sequence(self) -> Sequence:
        """What grows by the tokens that were evaluated."""

    @property
    def ended(self) -> bool:
        """Whether nothing more is to be done; whoever waits looks at this."""

    @property
    def n_wanted(self) -> int:
        """Tokens that could be evaluated now; 0 while somebody else has to do something first."""

    @property
    def n_shareable(self) -> int:
        """How many of these may be taken from others who have evaluated the same."""

    @property
    def wants_last(self) -> bool:
        """Whether the logits behind the last of these tokens are wanted from the step itself."""

    def next_ids(self, n: int) -> Row[int]:
        """Return the first `n` of these tokens."""

    def adopted(self, n: int) -> None:
        """Take note that so many tokens were taken from others."""

    def deliver(self, n: int, logits: F32 | None, evaluator: Evaluator, first: int) -> None:
        """Take what the step has found out; the tokens are counted into the sequence afterwards.

        After an interrupt in between they are computed, and this is called, again.

        Parameters
        ----------
        n : int
            Tokens that were evaluated.
        logits : (V,) float32 or None
            Logits behind the last of them, if they were wanted and this was the last part. They
            are overwritten by the next step.
        evaluator : Evaluator
            Gives logits and states of other rows.
        first : int
            Row of the first of these tokens in the step.
        """

    def advance(self) -> None:
        """Go on after tokens were counted in, while `deliver`'s logits last.

        Quick, and no code of a caller. After an interrupt it is called again, before the next step.
        """

    def fail(self, error: BaseException) -> None:
        """End with an error, for whoever waits to raise."""


class Evaluation:
    """Some tokens to be evaluated once.

    Parameters
    ----------
    sequence : Sequence
        Where they go.
    ids : sequence of int, length n
        Tokens of the vocabulary.
    outputs : str
        See `Outputs`.
    out : (V,), (n, V) or (n, D) float32
        Where to write what is wanted.
    releases : bool
        Whether the sequence gives its pages back at the end.

    Attributes
    ----------
    out : ndarray
        As given.
    ended : bool
        Whether all tokens were evaluated, or something went wrong.
    error : BaseException or None
        What went wrong; then the sequence holds the tokens of the parts before.
    """

    held = False

    def __init__(
        self,
        sequence: Sequence,
        ids: Row[int],
        outputs: Outputs,
        out: F32,
        *,
        releases: bool = False,
    ) -> None:
        self._releases = releases
        self.sequence: Sequence = sequence
        self.cancelled = self.waited = False
        self.error: BaseException | None = None
        self._ids = ids
        self._start = sequence.length
        self._outputs = outputs
        self.out = out
        self.ended = not self.n_wanted

    @property
    def n_done(self) -> int:
        """Tokens that were evaluated and counted in; negative where those before are missing."""
        return len(self.sequence.ids) - self._start

    @property
    def n_wanted(self) -> int:
        """Tokens that are left."""
        return self._start + len(self._ids) - len(self.sequence.ids)

    @property
    def n_shareable(self) -> int:
        """Tokens before these that have to be evaluated again; these are what was asked for."""
        return max(0, -self.n_done)

    @property
    def wants_last(self) -> bool:
        """Whether nothing but the logits behind the last token is wanted."""
        return self._outputs == "last"

    def next_ids(self, n: int) -> Row[int]:
        """Return the first `n` that are left."""
        if n == len(self._ids) and self.n_done == 0:
            return self._ids
        if (at := self.n_done) < 0:
            return [*self.sequence.owed, *self._ids][:n]
        return self._ids[at : at + n]

    def adopted(self, n: int) -> None:
        """Nothing is told of this."""

    def deliver(self, n: int, logits: F32 | None, evaluator: Evaluator, first: int) -> None:
        """Copy what is wanted."""
        if self._outputs == "last":
            if logits is not None:
                self.out[:] = logits
            return
        skipped = max(0, -self.n_done)  # rows of tokens before these
        if skipped >= n:
            return
        at = self.n_done + skipped
        part = self.out[at : at + n - skipped]
        if self._outputs == "all":
            evaluator.logits_of(first + skipped, first + n, part)
        else:
            evaluator.states_of(first + skipped, first + n, part)

    def advance(self) -> None:
        """Note the end, and give the pages back if nobody needs them afterwards."""
        if not self.n_wanted:
            self.ended = True
            if self._releases:
                self.sequence.release()

    def fail(self, error: BaseException) -> None:
        """End with an error."""
        self.error = error
        self.ended = True
