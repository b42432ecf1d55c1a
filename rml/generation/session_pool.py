"""All sessions of a model: those in use, and a few that wait for the next call.

A session's first step of each size records the decoder's operations, which takes as long as some
tokens of a small model. Calls that bring no session of their own therefore borrow one here.
"""

import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from rml.errors import ClosedError, OutOfMemory
from rml.files import Checkpoint
from rml.generation.context import checked_context
from rml.generation.ranges import checked, integer
from rml.generation.session import Session
from rml.generation.session_file import fingerprint, read_session
from rml.llm.decoder import DecoderLM
from rml.llm.kv_cache import KVCache
from rml.memory_room import out_of_memory

__all__ = ["SessionPool"]

# What waits is bounded: in number, and a session that has grown beyond these bytes is closed. (Its
# call took so long that the next one will not notice.)
_MOST_IDLE = 4
_MOST_BYTES = 1 << 24


class SessionPool:
    """Opens sessions, lends them, and closes them all with the model; safe to use from any thread.

    Parameters
    ----------
    decoder : DecoderLM
        The model.
    checkpoint : Checkpoint
        Its files, which tell it apart from others.
    n_ctx : int
        Positions of a session for which nobody says.
    kv_type : str
        How it stores keys and values.
    """

    def __init__(
        self, decoder: DecoderLM, checkpoint: Checkpoint, *, n_ctx: int, kv_type: str
    ) -> None:
        self.n_ctx, self.kv_type = n_ctx, kv_type
        self.n_vocab, self.d_model = decoder.config.n_vocab, decoder.config.d_model
        self._checkpoint = checkpoint
        self._decoder: DecoderLM | None = decoder
        # Both are changed and copied without a lock, which a fork in another thread could leave
        # locked.
        self._sessions: weakref.WeakValueDictionary[int, Session] = weakref.WeakValueDictionary()
        self._idle: list[Session] = []

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._decoder is None

    @property
    def n_idle(self) -> int:
        """Sessions that wait."""
        return len(self._idle)

    @property
    def n_open(self) -> int:
        """Sessions that are open, those that wait included."""
        found = [reference() for reference in self._sessions.valuerefs()]
        return sum(session is not None and not session.closed for session in found)

    def open(
        self, n_ctx: int | None = None, kv_type: str | None = None, n_sequences: int = 1
    ) -> Session:
        """Open a session that belongs to the caller; `Model.session` says what the arguments mean.

        Raises
        ------
        ClosedError
            If the pool is closed.
        ArgumentError
            If an argument is out of its range.
        OutOfMemory
            If there is no memory for it, also without the sessions that wait.
        """
        n_sequences = checked("n_sequences", n_sequences, integer(1))
        return Session(self._open_decoder(), self._cache(n_ctx, kv_type, n_sequences), self)

    def load(
        self, path: str | os.PathLike[str], n_ctx: int | None = None, kv_type: str | None = None
    ) -> Session:
        """Open a session that was saved; `Model.load_session` says what the arguments mean."""
        decoder, cache = self._open_decoder(), self._cache(n_ctx, kv_type)
        try:
            with out_of_memory(f"the session {path}"):
                tokens = read_session(
                    path,
                    cache,
                    model=self.fingerprint(cache.n_ctx),
                    compute=decoder.compute,
                    n_vocab=self.n_vocab,
                )
        except BaseException:
            cache.close()
            raise
        return Session(decoder, cache, self, tokens)

    def fingerprint(self, n_ctx: int) -> str:
        """Tell this model apart from others, see `rml.generation.session_file.fingerprint`."""
        return fingerprint(self._checkpoint, self._open_decoder().config, n_ctx)

    def enter(self, session: Session) -> None:
        """Remember a session as one of this model, and close it with the model."""
        self._sessions[id(session)] = session

    def owns(self, session: Session) -> bool:
        """Whether a session is of this model."""
        return self._sessions.get(id(session)) is session

    def borrow(self) -> Session:
        """Take an empty session that waits, or a new one; to be given back or closed.

        Raises
        ------
        ClosedError
            If the pool is closed.
        """
        self._open_decoder()
        with suppress(IndexError):
            return self._idle.pop()
        return self.open()

    def give_back(self, session: Session) -> None:
        """Take back a borrowed session, which nobody may use any more; its text is forgotten."""
        if self.n_idle >= _MOST_IDLE or session.nbytes > _MOST_BYTES:
            session.close()
            return
        with suppress(ClosedError):  # by `close`, in another thread
            session.truncate(0)
            self.enter(session)  # again: the garbage collector cuts what it finds, even if it lives
            self._idle.append(session)
        if self.closed:
            session.close()

    @contextmanager
    def lend(self) -> Iterator[Session]:
        """Lend a session for a block; after an error in it the session is not used again."""
        session = self.borrow()
        try:
            yield session
        except BaseException:
            session.close()
            raise
        self.give_back(session)

    def close(self) -> None:
        """Close all sessions; twice does nothing."""
        self._decoder = None
        for reference in self._sessions.valuerefs():
            if (session := reference()) is not None:
                session.close()
        self._idle.clear()

    def _cache(self, n_ctx: int | None, kv_type: str | None, n_sequences: int = 1) -> KVCache:
        try:
            return self._new_cache(n_ctx, kv_type, n_sequences)
        except OutOfMemory:
            if not self._idle:
                raise
        self._close_idle()  # what nobody uses goes first
        return self._new_cache(n_ctx, kv_type, n_sequences)

    def _new_cache(self, n_ctx: int | None, kv_type: str | None, n_sequences: int) -> KVCache:
        decoder, kv_type = self._open_decoder(), self.kv_type if kv_type is None else kv_type
        if n_ctx is None:
            n_ctx = self.n_ctx
        else:
            n_ctx = checked_context(n_ctx, decoder.config, self._checkpoint.path, kv_type=kv_type)
        return decoder.new_cache(n_ctx, kv_type, n_sequences=n_sequences)

    def _close_idle(self) -> None:
        with suppress(IndexError):
            while True:
                self._idle.pop().close()

    def _open_decoder(self) -> DecoderLM:
        if self._decoder is None:
            raise ClosedError(f"{self._checkpoint.path}: the model is closed")
        return self._decoder
