"""One sequence in the hands of a caller: evaluate, forget, fork, save."""

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import NoReturn, Protocol, Self

import numpy as np
import numpy.typing as npt

from rml._kernels import checks
from rml.engine.books import BOOKS
from rml.engine.engine import Engine
from rml.engine.sequence import Sequence as Tokens
from rml.engine.session_file import write_session
from rml.engine.work import Evaluation, Outputs, Work
from rml.errors import ArgumentError, Cancelled, ClosedError, ContextOverflow, OutOfMemory
from rml.llm.memory import largest_context
from rml.llm.plan import Aborted, Plan
from rml.llm.workspace import MAX_ROWS, aligned
from rml.memory_room import available, bytes_asked, no_room
from rml.ranges import boolean, callers_objects, checked, integer, listed, shown

__all__ = ["Owner", "Session", "checked_ids", "forward_together"]

F32 = npt.NDArray[np.float32]


class Owner(Protocol):
    """All sessions of a model, as one of them sees it: a `Sessions`."""

    engine: Engine
    n_vocab: int
    d_model: int

    def enter(self, session: "Session") -> None:
        """Remember a session as one of the model's."""

    def identity(self) -> dict[str, str]:
        """Return what tells the model and its arithmetic apart."""


class Session:
    """Evaluates tokens one after the other; made by `Model.session`.

    A session belongs to one thread at a time: a second one that uses it meanwhile gets an error.
    Only `cancel` and `close` may be called from others. Sessions that several threads use are
    computed together, each with the bits that it would have alone.

    Parameters
    ----------
    sessions : Owner
        All sessions of the model; this one enters itself.
    sequence : Sequence
        Its tokens; the session's own from now on.
    n_ctx : int
        Positions that it may hold.
    kv_type : str
        How keys and values are stored.

    Attributes
    ----------
    n_ctx : int
        Positions that it may hold.
    n_vocab : int
        Length of a row of logits.
    kv_type : str
        How keys and values are stored.

    Examples
    --------
    >>> with model.session(n_ctx=4096) as session:  # doctest: +SKIP
    ...     logits = session.forward(model.tokenizer.encode("Hello"))
    ...     logits = session.forward([int(logits.argmax())])
    """

    def __init__(self, sessions: Owner, sequence: Tokens, *, n_ctx: int, kv_type: str) -> None:
        self.n_ctx, self.kv_type = n_ctx, kv_type
        self.n_vocab = sessions.n_vocab
        self._sessions = sessions
        self._sequence = sequence
        self._closed = self._cancelled = False
        self._work: Work | None = None  # that is under way
        # Held by the thread that uses the session; while nobody does, its pages may be given away.
        self._gate = sequence.gate = threading.Lock()
        self._logits: F32 | None = None  # of `step`
        sessions.enter(self)

    @property
    def engine(self) -> Engine:
        """What computes its steps, with those of the model's other sessions."""
        return self._sessions.engine

    @property
    def position(self) -> int:
        """Tokens evaluated so far: the place of the next one."""
        return self._sequence.length

    @property
    def tokens(self) -> list[int]:
        """The tokens evaluated so far; a copy."""
        return self._sequence.tokens

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values, shared ones included; 0 when closed."""
        return self._sequence.nbytes

    @property
    def closed(self) -> bool:
        """Whether `close` was called, or the model was closed."""
        return self._closed

    def forward(
        self,
        ids: Sequence[int] | npt.NDArray[np.integer],
        all_logits: bool = False,
        out: F32 | None = None,
    ) -> F32:
        """Evaluate tokens behind those that are there.

        Parameters
        ----------
        ids : sequence of int, length n
            At least one token.
        all_logits : bool
            Return the logits after every token, not only after the last.
        out : ndarray of float32, optional
            Where to write the result.

        Returns
        -------
        ndarray of float32, shape (n_vocab,), or (n, n_vocab) with `all_logits`
            Scores of the next token; `out` if it was given.

        Raises
        ------
        ArgumentError
            If there is no token, one is no integer or outside the vocabulary, or `out` has the
            wrong shape or type.
        ContextOverflow
            If they do not fit; then, as after any error, the session is as it was.
        ClosedError
            If the session or its model is closed.
        OutOfMemory
            If there is no memory for the step or its result.
        Cancelled
            If `cancel` was called.
        """
        all_logits = checked("all_logits", all_logits, boolean)
        return self._evaluated(ids, "all" if all_logits else "last", out)

    def step(self, token: int) -> F32:
        """Evaluate one token like `forward`, into an array of the session's own.

        Parameters
        ----------
        token : int
            An id of the vocabulary.

        Returns
        -------
        ndarray of float32, shape (n_vocab,)
            Scores of the next token, which the next step of this session overwrites.

        Raises
        ------
        RmlError
            As `forward`.
        """
        if self._logits is None:
            self._logits = aligned(self.n_vocab)
        return self._evaluated([token], "last", self._logits)

    def hidden_states(self, ids: Sequence[int] | npt.NDArray[np.integer]) -> F32:
        """Evaluate tokens like `forward`, and return what the head would read.

        Returns
        -------
        ndarray of float32, shape (n, d_model)
            The state of each token after the last layer and its norm.

        Raises
        ------
        RmlError
            As `forward`.
        """
        return self._evaluated(ids, "states")

    def _evaluated(
        self,
        ids: Sequence[int] | npt.NDArray[np.integer],
        outputs: Outputs,
        out: F32 | None = None,
    ) -> F32:
        with self.use(undoes=True) as sequence:
            work = self.evaluation(sequence, ids, outputs, out)
            self.engine.run(work)
        return work.out

    def evaluation(
        self,
        sequence: Tokens,
        ids: Sequence[int] | npt.NDArray[np.integer],
        outputs: Outputs = "last",
        out: F32 | None = None,
    ) -> Evaluation:
        """Make what is to be computed, alone or with that of others (`Engine.run`).

        `cancel` finds it, until the session is given back.

        Parameters
        ----------
        sequence : Sequence
            That of the session, in use.
        ids : sequence of int, length n
            At least one token.
        outputs : str
            Logits behind the ``"last"`` token or behind ``"all"``, or the ``"states"`` of all.
        out : ndarray of float32, optional
            Where to write them.

        Raises
        ------
        RmlError
            As `forward`.
        """
        plain = checked_ids(ids, self.n_vocab)
        if (needed := sequence.length + len(plain)) > self.n_ctx:
            raise ContextOverflow(needed, self.n_ctx)
        shape: tuple[int, ...] = (self.n_vocab,)
        if outputs != "last":
            width = self.n_vocab if outputs == "all" else self._sessions.d_model
            shape = (len(plain), width)
        if out is None:
            out = np.empty(shape, np.float32)
        else:
            checks.array("out", out, shape, writable=True)
        self._work = work = Evaluation(sequence, plain, outputs, out)
        work.cancelled = self._cancelled
        return work

    def truncate(self, n: int) -> None:
        """Forget every token from position `n` on.

        Raises
        ------
        ArgumentError
            If `n` is no integer from 0 to `position`.
        ClosedError
            If the session is closed.
        """
        with self.use() as sequence:
            try:
                length: int = checked("n", n, integer(0, sequence.length))
            except ValueError:
                raise ArgumentError(
                    f"truncate({shown(n)}): an integer from 0 to {sequence.length} is needed"
                ) from None
            sequence.truncate(length)

    def keep_prefix(self, ids: Sequence[int], *, whole: bool = False) -> int:
        """Forget what is not a beginning of `ids`, so that only the rest need be evaluated.

        At least the last of `ids` is left to evaluate, since its logits are what comes next; but
        not if `whole` says that these are known.

        Returns
        -------
        int
            How many of `ids` are in the cache.

        Raises
        ------
        ArgumentError
            If `ids` is no list of ids.
        """
        if (entries := listed(ids)) is None:
            raise ArgumentError(f"keep_prefix takes a list of token ids, not {type(ids).__name__}")
        whole = checked("whole", whole, boolean)
        with self.use() as sequence:
            return sequence.keep(entries if whole else entries[:-1])

    def fork(self) -> "Session":
        """Open a session with the same tokens that goes its own way from here.

        Both share the memory of what they have in common. They may be used by different threads.

        Raises
        ------
        ClosedError
            If the session is closed.
        """
        with self.use() as sequence:
            return Session(self._sessions, sequence.fork(), n_ctx=self.n_ctx, kv_type=self.kv_type)

    def plan(self, n_tokens: int = 1) -> Plan:
        """Return the operations of the next step of `n_tokens`, to look at or to profile.

        Running them changes nothing here.

        Raises
        ------
        ArgumentError
            If `n_tokens` is less than 1 or more than a step can have.
        ClosedError
            If the session is closed.
        """
        with self.use() as sequence:
            self._have_pages(sequence)
            return self.engine.plan(sequence, n_tokens)

    def _have_pages(self, sequence: Tokens) -> None:
        """Evaluate again what the sequence has given away."""
        if sequence.owed:
            self.engine.run(Evaluation(sequence, [], "last", np.empty(self.n_vocab, np.float32)))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write tokens, keys and values to a file, for `Model.load_session`.

        It holds the text of the conversation, so only its owner may read it. A file that is there
        is replaced when the new one is whole; after an error it is as it was, and the session may
        go on. A link stays one; a pipe or a device is written to.

        The file is bound to the model: its weights, of which every byte is read for that once (the
        cache folder remembers it), its configuration and its tokenizer.

        Raises
        ------
        ClosedError
            If the session or its model is closed.
        ArgumentError
            If `path` is no path.
        SaveError
            If the file cannot be written.
        """
        with self.use() as sequence:
            self._have_pages(sequence)
            write_session(path, sequence, kv_type=self.kv_type, **self._sessions.identity())

    def cancel(self) -> None:
        """End the step under way in another thread, or else the next one, with `Cancelled`.

        It ends after the operation under way, and the session is as it was before the step. Calling
        this several times before a step has ended is the same as calling it once.
        """
        self._cancelled = True
        work = self._work
        if work is not None:
            self.engine.cancel(work)

    def uncancel(self) -> None:
        """Take back a `cancel` that has ended no step."""
        self._cancelled = False

    def close(self) -> None:
        """Give the memory back, ending a step under way in another thread; twice does nothing."""
        if self._closed:
            return
        self._closed = True
        self.cancel()
        self._let_go()

    def _let_go(self) -> None:
        """Give the pages back, unless a thread uses the session: it will do so when it is done."""
        with BOOKS:
            free = self._gate.acquire(blocking=False)
        if free:
            try:
                self._sequence.release()
            finally:
                self._gate.release()

    @contextmanager
    def lend(self, work: Work) -> Iterator[Tokens]:
        """Let a work go on in the sequence; `cancel` and `close` end it."""
        with self.use() as sequence:
            self._work = work
            if self._cancelled:
                work.cancelled = True
            try:
                yield sequence
            finally:
                if work.ended:
                    self._cancelled = False

    def use(self, *, undoes: bool = False) -> "_Use":
        """Work with the sequence: `close` then leaves it to this thread, others are refused.

        With `undoes`, an error leaves it as long as it was.
        """
        return _Use(self._take, self._give_back, self._said, undoes=undoes)

    def _take(self) -> Tokens:
        with BOOKS:  # not while an engine looks at the gate
            free = self._gate.acquire(blocking=False)
        if not free:
            self._require_open()
            raise ArgumentError(
                "the session is in use by another thread; fork() makes one for each thread"
            )
        if self._closed:
            self._give_back()
            self._require_open()
        return self._sequence

    def _give_back(self) -> None:
        self._work = None
        self._sequence.used_at = time.monotonic()
        self._gate.release()
        if self._closed:
            self._let_go()

    def _said(self, error: BaseException) -> BaseException:
        """Return what is raised to the caller for an error of a step."""
        if isinstance(error, MemoryError) and not isinstance(error, OutOfMemory):
            return self._no_room(error)
        if isinstance(error, Aborted):
            if self._closed or self.engine.closed:
                return ClosedError("the session was closed during a step")
            self._cancelled = False
            return Cancelled("the step was given up, since cancel was called")
        return error

    def _no_room(self, error: MemoryError) -> OutOfMemory:
        """Say what a step that found no memory needed, and which context would leave it some."""
        room = available()
        context = largest_context(
            self.engine.decoder.config,
            memory=room.n_bytes,
            weights=0,
            kv_type=self.kv_type,
            n_batch=MAX_ROWS,
        )
        return no_room(
            "a step of a session",
            bytes_asked(error),
            room,
            largest_context=context,
            advice="the session is as it was: evaluate fewer tokens at a time",
        )

    def _require_open(self) -> None:
        if self._closed:
            raise ClosedError("the session is closed")

    def __enter__(self) -> Self:
        self._require_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise ArgumentError(
            "a Session is neither pickled nor copied: save(path) and Model.load_session(path) "
            "carry it to another process, and fork() makes a second one"
        )

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"position {self.position} of {self.n_ctx}"
        return f"<Session, {state}>"


class _Use:
    """A session in the hands of one thread."""

    __slots__ = ("_before", "_give_back", "_said", "_sequence", "_take", "_undoes")

    def __init__(
        self,
        take: Callable[[], Tokens],
        give_back: Callable[[], None],
        said: Callable[[BaseException], BaseException],
        *,
        undoes: bool,
    ) -> None:
        self._take, self._give_back, self._said = take, give_back, said
        self._undoes = undoes

    def __enter__(self) -> Tokens:
        self._sequence = self._take()
        self._before = self._sequence.length
        return self._sequence

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error is not None and self._undoes:
                self._sequence.truncate(self._before)
        finally:
            self._give_back()
        if error is not None and (said := self._said(error)) is not error:
            raise said from (error if isinstance(error, MemoryError) else None)


def forward_together(
    sessions: Sequence[Session], ids: Sequence[Sequence[int]], out: F32 | None = None
) -> F32:
    """Evaluate tokens in several sessions at once, as `Session.forward` does in each of them.

    Parameters
    ----------
    sessions : sequence of Session, length n
        Of one model, each once.
    ids : sequence of sequence of int, length n
        At least one token for each session.
    out : ndarray of float32, shape (n, n_vocab), optional
        Where to write the logits.

    Returns
    -------
    ndarray of float32, shape (n, n_vocab)
        Logits behind the last token of each, with the bits that it would get alone.

    Raises
    ------
    ArgumentError
        If the sessions are none, or not of one model, or one of them is given twice.
    RmlError
        As `Session.forward`; then all sessions are as they were.
    """
    engines = {id(session.engine): session.engine for session in sessions}
    if len(engines) != 1 or len(sessions) != len(ids):
        raise ArgumentError(
            f"{len(sessions)} sessions of {len(engines)} models and {len(ids)} lists of tokens, "
            "but one list for each session of one model is needed"
        )
    ((_, engine),) = engines.items()
    n_vocab = sessions[0].n_vocab
    if out is None:
        out = np.empty((len(sessions), n_vocab), np.float32)
    else:
        checks.array("out", out, (len(sessions), n_vocab), writable=True)
    if len(sessions) == 1:
        sessions[0].forward(ids[0], out=out[0])
        return out
    with ExitStack() as used:
        works = []
        for session, tokens, row in zip(sessions, ids, out, strict=True):
            sequence = used.enter_context(session.use(undoes=True))
            works.append(session.evaluation(sequence, tokens, out=row))
        engine.run(*works)  # raises within the block, so that none of them keeps its tokens
    return out


def checked_ids(ids: Sequence[int] | npt.NDArray[np.integer], n_vocab: int) -> list[int]:
    """Token ids as plain integers.

    Parameters
    ----------
    ids : sequence of int
        At least one.
    n_vocab : int
        Size of the vocabulary.

    Returns
    -------
    list of int

    Raises
    ------
    ArgumentError
        If they are something else, or none of the vocabulary.
    """
    if type(ids) is list and len(ids) == 1 and type(ids[0]) is int and 0 <= ids[0] < n_vocab:
        return ids  # a step of a generation
    found = _id_array(ids)
    plain: list[int] = found.tolist()
    for token in (min(plain), max(plain)):
        if not 0 <= token < n_vocab:
            raise ArgumentError(f"token id {token} is outside the vocabulary of {n_vocab}")
    return plain


def _id_array(tokens: object) -> npt.NDArray[np.integer]:
    """Ids in one dimension, at least one; a whole float is an integer, too."""
    with callers_objects(f"a {type(tokens).__name__} of tokens"):
        try:
            ids = np.asarray(tokens)
            if ids.dtype == np.object_:  # a column of a table: what its entries are
                ids = np.asarray(ids.tolist())
        except (ValueError, TypeError):
            raise ArgumentError(
                "tokens are lists of unequal length, but one or more ids in one list are needed"
            ) from None
    if ids.ndim != 1 or ids.size == 0:
        found = f"of shape {ids.shape}" if ids.ndim else type(tokens).__name__
        advice = ": encode the text first" if isinstance(tokens, str | bytes) else ""
        raise ArgumentError(
            f"tokens are {found}, but one or more ids in one list are needed{advice}"
        )
    if ids.dtype.kind == "f" and (np.floor(ids) == ids).all() and (abs(ids) < 2**53).all():
        ids = ids.astype(np.int64)
    if ids.dtype.kind not in "iu":
        found = "no integers of 64 bits" if ids.dtype == np.object_ else str(ids.dtype)
        raise ArgumentError(f"tokens are {found}, but whole numbers are needed")
    return ids
