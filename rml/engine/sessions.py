"""All sessions of a model, and how new ones are opened."""

import logging
import os
import weakref
from collections.abc import Callable

from rml.engine.context import checked_context, default_kv_memory
from rml.engine.engine import Engine
from rml.engine.session import Session
from rml.engine.session_file import (
    STRICT_SINCE,
    VERSION,
    fingerprint,
    read_session,
    sampled_fingerprint,
)
from rml.errors import ClosedError
from rml.files import Checkpoint
from rml.files.paths import given_path
from rml.llm.decoder import DecoderLM
from rml.memory_room import out_of_memory
from rml.ranges import checked, integer

__all__ = ["Sessions", "open_session"]

_log = logging.getLogger("rml")


class Sessions:
    """Opens sessions, and closes them all with the model; safe to use from any thread.

    Parameters
    ----------
    engine : Engine
        Computes them.
    checkpoint : Checkpoint
        The model's files, which tell it apart from others.
    n_ctx : int
        Positions of a session for which nobody says.
    kv_type : str
        How it stores keys and values.
    reads_text_as : callable, optional
        Tells its tokenizer apart from others, by a string.
    """

    def __init__(
        self,
        engine: Engine,
        checkpoint: Checkpoint,
        *,
        n_ctx: int,
        kv_type: str,
        reads_text_as: Callable[[], str] | None = None,
    ) -> None:
        self.engine = engine
        self.n_ctx, self.kv_type = n_ctx, kv_type
        config = engine.decoder.config
        self.n_vocab, self.d_model = config.n_vocab, config.d_model
        self._checkpoint = checkpoint
        self._reads_text_as = reads_text_as
        self._fingerprints: dict[int, str] = {}  # by version of session files
        self._said: set[str] = set()
        # Changed and copied without a lock, which a fork in another thread could leave locked; and
        # without callbacks, which an interrupt could come into.
        self._sessions: dict[int, weakref.ref[Session]] = {}
        self._n_at_most = 16  # entries, before those of sessions that are gone are looked for

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self.engine.closed

    @property
    def n_open(self) -> int:
        """Sessions that are open."""
        return sum(not session.closed for session in self._living())

    def _living(self) -> list[Session]:
        found = list(self._sessions.values())
        return [session for reference in found if (session := reference()) is not None]

    def open(
        self, n_ctx: int | None = None, kv_type: str | None = None, n_sequences: int = 1
    ) -> Session:
        """Open a session that belongs to the caller; `Model.session` says what the arguments mean.

        Raises
        ------
        ClosedError
            If the model is closed.
        ArgumentError
            If an argument is out of its range.
        OutOfMemory
            If there is no memory for it.
        """
        if checked("n_sequences", n_sequences, integer(1)) > 1:
            self._say_once("n_sequences has no effect: sessions take the memory that they need")
        self._require_open()
        with out_of_memory("a session"):
            return self._opened(n_ctx, self.kv_type if kv_type is None else kv_type)

    def _opened(self, n_ctx: int | None, kv_type: str) -> Session:
        if n_ctx is None:
            n_ctx = self.n_ctx
        else:
            config = self.engine.decoder.config
            n_ctx = checked_context(n_ctx, config, self._checkpoint.path, kv_type=kv_type)
        return Session(self, self.engine.new_sequence(kv_type), n_ctx=n_ctx, kv_type=kv_type)

    def load(
        self, path: str | os.PathLike[str], n_ctx: int | None = None, kv_type: str | None = None
    ) -> Session:
        """Open a session that was saved; `Model.load_session` says what the arguments mean."""
        file = given_path(path)
        session = self.open(n_ctx, kv_type)
        try:
            with out_of_memory(f"the session {file}"), session.use() as sequence:
                read_session(
                    file,
                    sequence,
                    self.engine.reserve,
                    n_ctx=session.n_ctx,
                    kv_type=session.kv_type,
                    n_vocab=self.n_vocab,
                    model=self.fingerprint,
                    compute=self.engine.decoder.compute,
                )
        except BaseException:
            session.close()
            raise
        return session

    def identity(self) -> dict[str, str]:
        """Return what tells this model and its arithmetic apart, for files of sessions."""
        return {"model": self.fingerprint(), "compute": self.engine.decoder.compute}

    def fingerprint(self, version: int = VERSION) -> str:
        """Return what tells the model apart, as files of sessions of a version have it.

        Made when it is asked for the first time, which means to read all weights if that was not
        done in an earlier process, see `rml.files.digests`.
        """
        if version not in self._fingerprints:
            decoder = self.engine.decoder
            arguments = (self._checkpoint, decoder.config, decoder.n_ctx)
            if version < STRICT_SINCE:
                found = sampled_fingerprint(*arguments)
            else:
                text = "" if self._reads_text_as is None else self._reads_text_as()
                found = fingerprint(*arguments, text, n_threads=decoder.n_threads)
            self._fingerprints[version] = found
        return self._fingerprints[version]

    def enter(self, session: Session) -> None:
        """Remember a session as one of this model, and close it with the model."""
        self._sessions[id(session)] = weakref.ref(session)
        if len(self._sessions) > self._n_at_most:
            for key, reference in list(self._sessions.items()):
                if reference() is None and self._sessions.get(key) is reference:
                    self._sessions.pop(key, None)
            self._n_at_most = 2 * len(self._sessions) + 16

    def owns(self, session: Session) -> bool:
        """Whether a session is of this model."""
        reference = self._sessions.get(id(session))
        return reference is not None and reference() is session

    def close(self) -> None:
        """Close all sessions; twice does nothing."""
        self.engine.close()
        for session in self._living():
            session.close()

    def _say_once(self, message: str) -> None:
        if message not in self._said:
            self._said.add(message)
            _log.warning("%s: %s", self._checkpoint.path, message)

    def _require_open(self) -> None:
        if self.closed:
            raise ClosedError(f"{self._checkpoint.path}: the model is closed")


def open_session(decoder: DecoderLM, n_ctx: int | None = None, kv_type: str = "f16") -> Session:
    """Open a session of a decoder by itself, with an engine of its own: to look at and to measure.

    Parameters
    ----------
    decoder : DecoderLM
        The model.
    n_ctx : int, optional
        Positions that it may hold; those of the decoder if not given.
    kv_type : str
        How keys and values are stored.
    """
    n_ctx = decoder.n_ctx if n_ctx is None else n_ctx
    kv_memory = default_kv_memory(decoder.config, n_ctx=n_ctx, kv_type=kv_type)
    engine = Engine(decoder, kv_memory=kv_memory)
    return Sessions(engine, decoder.checkpoint, n_ctx=n_ctx, kv_type=kv_type).open()
