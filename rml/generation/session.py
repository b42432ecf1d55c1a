"""One sequence: a KV cache, and the tokens that are in it."""

import operator
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from rml.errors import ArgumentError, ClosedError
from rml.generation.candidates import Floats
from rml.llm.decoder import DecoderLM
from rml.llm.kv_cache import KVCache

__all__ = ["Session"]


class Session:
    """Evaluates tokens one after the other; made by `Model.session`.

    A session belongs to one thread at a time. Sessions of one model may be used by several threads:
    their steps take turns.

    Parameters
    ----------
    decoder : DecoderLM
        The model.
    n_ctx : int
        Positions that the cache holds.
    kv_type : str
        How keys and values are stored: ``"f32"``, ``"f16"`` or ``"int8"``.

    Attributes
    ----------
    n_ctx : int
        As given.
    n_vocab : int
        Length of a row of logits.

    Examples
    --------
    >>> with model.session(n_ctx=4096) as session:  # doctest: +SKIP
    ...     logits = session.forward(model.tokenizer.encode("Hello"))
    ...     logits = session.forward([int(logits.argmax())])
    """

    def __init__(self, decoder: DecoderLM, *, n_ctx: int, kv_type: str) -> None:
        self.n_ctx = n_ctx
        self.n_vocab = decoder.config.n_vocab
        self._cache: KVCache | None = decoder.new_cache(n_ctx, kv_type)
        self._decoder: DecoderLM | None = decoder
        self._tokens: list[int] = []

    @property
    def position(self) -> int:
        """Tokens evaluated so far: the place of the next one."""
        return len(self._tokens)

    @property
    def tokens(self) -> list[int]:
        """The tokens evaluated so far; a copy."""
        return self._tokens.copy()

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
        """
        decoder, cache = self._open()
        if cache.size > self.position:  # an interrupt came between a step and its entry below
            cache.truncate(self.position)
        try:
            logits = decoder.forward(ids, cache, all_logits, out)
        except ClosedError:
            if self.closed:  # by another thread
                raise ClosedError("the session was closed during a step") from None
            raise
        self._tokens.extend(np.asarray(ids).tolist())
        return logits

    def truncate(self, n: int) -> None:
        """Forget every token from position `n` on.

        Raises
        ------
        ArgumentError
            If `n` is no integer from 0 to `position`.
        ClosedError
            If the session is closed.
        """
        _, cache = self._open()
        length = -1 if isinstance(n, bool) or not hasattr(n, "__index__") else operator.index(n)
        if not 0 <= length <= self.position:
            raise ArgumentError(f"truncate({n!r}): an integer from 0 to {self.position} is needed")
        cache.truncate(length)
        del self._tokens[length:]

    def keep_prefix(self, ids: Sequence[int]) -> int:
        """Forget what is not a beginning of `ids`, so that only the rest need be evaluated.

        At least the last of `ids` is left to evaluate, since its logits are what comes next.

        Returns
        -------
        int
            How many of `ids` are in the cache.
        """
        limit = max(0, min(self.position, len(ids) - 1))
        kept = next((i for i in range(limit) if self._tokens[i] != ids[i]), limit)
        self.truncate(kept)
        return kept

    def close(self) -> None:
        """Give the cache back; closing twice does nothing."""
        cache, self._cache, self._decoder = self._cache, None, None
        if cache is not None:
            cache.close()

    def _open(self) -> tuple[DecoderLM, KVCache]:
        if self._decoder is None or self._cache is None:
            raise ClosedError("the session is closed")
        return self._decoder, self._cache

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

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"position {self.position} of {self.n_ctx}"
        return f"<Session, {state}>"
