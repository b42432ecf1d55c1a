"""One sequence: a KV cache, and the tokens that are in it."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import NoReturn, Protocol, Self

import numpy as np
import numpy.typing as npt

from rml.errors import ArgumentError, Cancelled, ClosedError, OutOfMemory
from rml.generation.candidates import Floats
from rml.generation.ranges import integer, listed
from rml.generation.session_file import write_session
from rml.llm.decoder import DecoderLM
from rml.llm.kv_cache import KVCache
from rml.llm.memory import largest_context
from rml.llm.plan import Aborted
from rml.llm.workspace import MAX_TOKENS
from rml.memory_room import available, bytes_asked, no_room

__all__ = ["Session", "Sessions"]


class Sessions(Protocol):
    """All sessions of a model, as one of them sees it: a `SessionPool`."""

    def enter(self, session: "Session") -> None:
        """Remember a session as one of this model."""

    def fingerprint(self, n_ctx: int) -> str:
        """Tell this model apart from others."""


class Session:
    """Evaluates tokens one after the other; made by `Model.session`.

    A session belongs to one thread at a time; only `cancel` and `close` may be called from others.
    Sessions of one model may be used by several threads: their steps take turns.

    Parameters
    ----------
    decoder : DecoderLM
        The model.
    cache : KVCache
        Holds keys and values of `tokens`; the session's own from now on.
    pool : Sessions
        All sessions of the model; this one enters itself.
    tokens : list of int
        The tokens evaluated so far.

    Attributes
    ----------
    n_ctx : int
        Positions that the cache holds.
    n_vocab : int
        Length of a row of logits.

    Examples
    --------
    >>> with model.session(n_ctx=4096) as session:  # doctest: +SKIP
    ...     logits = session.forward(model.tokenizer.encode("Hello"))
    ...     logits = session.forward([int(logits.argmax())])
    """

    def __init__(
        self, decoder: DecoderLM, cache: KVCache, pool: Sessions, tokens: Sequence[int] = ()
    ) -> None:
        self.n_ctx = cache.n_ctx
        self.n_vocab = decoder.config.n_vocab
        self._decoder: DecoderLM | None = decoder
        self._cache: KVCache | None = cache
        self._pool = pool
        self._tokens = list(tokens)
        self._in_use = False
        self._to_close: list[KVCache] = []
        pool.enter(self)

    @property
    def position(self) -> int:
        """Tokens evaluated so far: the place of the next one."""
        return len(self._tokens)

    @property
    def tokens(self) -> list[int]:
        """The tokens evaluated so far; a copy."""
        return self._tokens.copy()

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values; 0 when closed."""
        cache = self._cache
        return 0 if cache is None else cache.nbytes

    @property
    def closed(self) -> bool:
        """Whether `close` was called, or the model was closed."""
        return self._cache is None

    def forward(
        self,
        ids: Sequence[int] | npt.NDArray[np.integer],
        all_logits: bool = False,
        out: Floats | None = None,
    ) -> Floats:
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
        with self._use() as (decoder, cache):
            logits = decoder.forward(ids, cache, all_logits, out)
            self._tokens.extend(np.asarray(ids, np.int64).tolist())
        return logits

    def step(self, token: int) -> Floats:
        """Evaluate one token like `forward`, without copying its logits.

        Parameters
        ----------
        token : int
            An id of the vocabulary.

        Returns
        -------
        ndarray of float32, shape (n_vocab,)
            Scores of the next token, which the next step or `forward` overwrites.

        Raises
        ------
        RmlError
            As `forward`.
        """
        with self._use() as (decoder, cache):
            logits = decoder.step(token, cache)
            self._tokens.append(int(token))
        return logits

    def hidden_states(self, ids: Sequence[int] | npt.NDArray[np.integer]) -> Floats:
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
        with self._use() as (decoder, cache):
            states = decoder.hidden_states(ids, cache)
            self._tokens.extend(np.asarray(ids, np.int64).tolist())
        return states

    def truncate(self, n: int) -> None:
        """Forget every token from position `n` on.

        Raises
        ------
        ArgumentError
            If `n` is no integer from 0 to `position`.
        ClosedError
            If the session is closed.
        """
        with self._use() as (_, cache):
            try:
                length: int = integer(0, self.position)(n)
            except ValueError:
                raise ArgumentError(
                    f"truncate({n!r}): an integer from 0 to {self.position} is needed"
                ) from None
            del self._tokens[length:]
            cache.truncate(length)

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
        limit = max(0, min(self.position, len(entries) - (not whole)))
        kept = next((i for i in range(limit) if self._tokens[i] != entries[i]), limit)
        self.truncate(kept)
        return kept

    def fork(self) -> "Session":
        """Open a session with the same tokens that goes its own way from here.

        Both share the memory of what they have in common, and may both go on, one at a time: a
        session and its forks belong to one thread. They share the pages of the first session, so
        together they hold `n_sequences` times its `n_ctx` positions (see `Model.session`), where
        what is shared counts once; a step beyond that raises `ContextOverflow`.

        Raises
        ------
        ClosedError
            If the session is closed.
        """
        with self._use() as (decoder, cache):
            return Session(decoder, cache.fork(), self._pool, self._tokens)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write tokens, keys and values to a file, for `Model.load_session`.

        It holds the text of the conversation. A file that is there is replaced; after an error it
        is as it was, and the session may go on.

        Raises
        ------
        ClosedError
            If the session or its model is closed.
        ArgumentError
            If `path` is no path.
        SaveError
            If the file cannot be written.
        """
        with self._use() as (decoder, cache):
            write_session(
                path,
                cache,
                self._tokens,
                model=self._pool.fingerprint(self.n_ctx),
                compute=decoder.compute,
            )

    def cancel(self) -> None:
        """End the step under way in another thread, or else the next one, with `Cancelled`.

        It ends after the operation under way, and the session is as it was before the step. Calling
        this several times before a step has ended is the same as calling it once.
        """
        cache = self._cache
        if cache is not None:
            cache.abort[0] = 1

    def uncancel(self) -> None:
        """Take back a `cancel` that has ended no step."""
        cache = self._cache
        if cache is not None:
            cache.abort[0] = 0

    def close(self) -> None:
        """Give the cache back, ending a step under way in another thread; twice does nothing."""
        cache, self._cache, self._decoder = self._cache, None, None
        if cache is None:
            return
        cache.abort[0] = 1
        # Kernels may be reading the page table: then the thread that runs them closes the cache.
        self._to_close.append(cache)
        if not self._in_use:
            self._let_go()

    @contextmanager
    def _use(self) -> Iterator[tuple[DecoderLM, KVCache]]:
        """Work with the cache, which `close` then leaves to this thread."""
        try:
            # In this order: `close` takes the cache away first and then looks at the flag.
            self._in_use = True
            decoder, cache = self._open()
            if cache.size > self.position:  # an interrupt came between a step and its entry
                cache.truncate(self.position)
            yield decoder, cache
        except OutOfMemory:
            raise
        except MemoryError as error:
            raise self._no_room(error) from error
        except Aborted:
            if self.closed:
                raise ClosedError("the session was closed during a step") from None
            self.uncancel()
            raise Cancelled("the step was given up, since cancel was called") from None
        finally:
            self._in_use = False
            if self.closed:
                self._let_go()

    def _no_room(self, error: MemoryError) -> OutOfMemory:
        """Say what a step that found no memory needed, and which context would leave it some."""
        decoder, cache, room = self._decoder, self._cache, available()
        context = None
        if decoder is not None and cache is not None:
            context = largest_context(
                decoder.config,
                memory=room.n_bytes,
                weights=0,
                kv_type=cache.kv_type,
                n_batch=MAX_TOKENS,
            )
        return no_room(
            "a step of a session",
            bytes_asked(error),
            room,
            largest_context=context,
            advice="the session is as it was: evaluate fewer tokens at a time",
        )

    def _let_go(self) -> None:
        # Popping decides which of two threads closes the cache.
        with suppress(IndexError):
            self._to_close.pop().close()

    def _open(self) -> tuple[DecoderLM, KVCache]:
        decoder, cache = self._decoder, self._cache
        if decoder is None or cache is None:
            raise ClosedError("the session is closed")
        return decoder, cache

    def __enter__(self) -> Self:
        self._open()
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
