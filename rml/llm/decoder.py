"""Running a model: tokens in, logits out.

`DecoderLM.forward` runs any number of tokens at the positions after those in the cache: a prompt
at once, in pieces, or token by token give the same bits. What is computed is in `recipe`, which
records operations into a `Plan` once for a few capacities; that plan is run at every step.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Literal

import numpy as np
import numpy.typing as npt

from rml import _kernels
from rml._kernels.checks import COMPUTE_MODES
from rml._kernels.threads import resolve_threads
from rml.errors import ArgumentError, ClosedError, ContextOverflow
from rml.files import Checkpoint
from rml.llm.config import ModelConfig
from rml.llm.kv_cache import KVCache
from rml.llm.plan import Aborted, Plan
from rml.llm.recipe import Recipe
from rml.llm.workspace import MAX_TOKENS, Workspace

__all__ = ["DecoderLM"]

F32 = npt.NDArray[np.float32]

CAPACITIES = (1, 32, MAX_TOKENS)  # rows that plans are recorded for

Wanted = Literal["none", "last", "all"]  # rows of a step whose logits are wanted


class DecoderLM:
    """A model's weights and its recipe; immutable, and shared by any number of caches.

    Parameters
    ----------
    checkpoint : Checkpoint
        Open for as long as the decoder is used; the matrices are views into it.
    config : ModelConfig, optional
        What the checkpoint holds; read from it if not given.
    compute : str
        How quantized weights are multiplied: ``"int8x2"``, ``"int8"`` or ``"f32"``.
    n_threads : int, optional
        Threads of every step; all processors that the process may use if not given.

    Attributes
    ----------
    config : ModelConfig
    compute : str
    n_threads : int

    Raises
    ------
    UnsupportedModel
        If the recipe does not cover the model.
    CheckpointError
        If weights are missing or do not have the shapes that the configuration implies.
    ArgumentError
        If `compute` or `n_threads` is out of range.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        config: ModelConfig | None = None,
        compute: str = "int8x2",
        n_threads: int | None = None,
    ) -> None:
        if not isinstance(compute, str) or compute not in COMPUTE_MODES:
            raise ArgumentError(
                f"compute is {compute!r}, but must be one of {', '.join(COMPUTE_MODES)}"
            )
        self.config = config if config is not None else ModelConfig.from_checkpoint(checkpoint)
        self.compute = compute
        self.n_threads = resolve_threads(n_threads)
        self._checkpoint = checkpoint
        self._recipe = Recipe(checkpoint, self.config, compute=compute, n_threads=self.n_threads)

    def new_cache(
        self, n_ctx: int | None = None, kv_type: str = "f16", *, n_sequences: int = 1
    ) -> KVCache:
        """Make an empty cache for this model.

        Parameters
        ----------
        n_ctx : int, optional
            Positions that it holds; the model's context if not given.
        kv_type : str
            Type of the stored keys and values: ``"f32"``, ``"f16"`` or ``"int8"``.
        n_sequences : int
            How many caches, this one and its forks, find room at their full length.
        """
        c = self.config
        return KVCache(
            c.n_layers,
            c.n_kv_heads,
            c.head_dim,
            c.n_ctx_train if n_ctx is None else n_ctx,
            kv_type,
            n_sequences=n_sequences,
        )

    def forward(
        self,
        tokens: Sequence[int] | npt.NDArray[np.integer],
        cache: KVCache,
        all_logits: bool = False,
        out: F32 | None = None,
    ) -> F32:
        """Run tokens at the positions after those in the cache.

        Parameters
        ----------
        tokens : sequence of int
            Ids of the vocabulary, at least one.
        cache : KVCache
            Gets the tokens' keys and values; made by this decoder's `new_cache`.
        all_logits : bool
            Return the logits of every token, not only of the last one.
        out : (V,) or (T, V) float32, optional
            Where to write the logits; a new array if not given.

        Returns
        -------
        (V,) float32, or (T, V) with `all_logits`
            Logits; `out` if given.

        Raises
        ------
        ArgumentError
            If there is no token, an id is outside the vocabulary, `out` has the wrong shape, or
            the cache belongs to another kind of model.
        ContextOverflow
            If the tokens do not fit the cache.
        ClosedError
            If the checkpoint or the cache was closed.
        Aborted
            If ``cache.abort[0]`` was set, before the call or by another thread during it.

        Notes
        -----
        On any error nothing has changed.
        """
        ids = self._checked_ids(tokens)
        self._check_cache(cache, len(ids))
        shape = (len(ids), self.config.n_vocab) if all_logits else (self.config.n_vocab,)
        if out is None:
            out = np.empty(shape, np.float32)
        else:
            _kernels.checks.array("out", out, shape, writable=True)
        wanted: Wanted = "all" if all_logits else "last"
        for part, workspace in self._steps(ids, cache, wanted):
            if all_logits:
                self._all_logits(workspace, out[part])
            elif part.stop == len(ids):
                out[:] = workspace.next_logits
        return out

    def step(self, token: int, cache: KVCache) -> F32:
        """Run one token like `forward`, without copying its logits.

        Parameters
        ----------
        token : int
            An id of the vocabulary.
        cache : KVCache
            Gets the token's key and value.

        Returns
        -------
        (V,) float32
            Logits, which the next call with this cache overwrites.

        Raises
        ------
        RmlError
            As `forward`.
        """
        if type(token) is not int or not 0 <= token < self.config.n_vocab:
            token = int(self._checked_ids([token])[0])  # which refuses what is no id
        self._check_cache(cache, 1)
        before = cache.size
        try:
            return self._run_part(cache, [token], "last").next_logits
        except BaseException:
            _undo(cache, before)
            raise

    def hidden_states(self, tokens: Sequence[int] | npt.NDArray[np.integer], cache: KVCache) -> F32:
        """Run tokens like `forward`, and return what the head would read.

        Parameters
        ----------
        tokens : sequence of int
            Ids of the vocabulary, at least one.
        cache : KVCache
            Gets the tokens' keys and values.

        Returns
        -------
        (T, D) float32
            The residual stream of every token after the last layer, normalized.

        Raises
        ------
        RmlError
            As `forward`.
        """
        ids = self._checked_ids(tokens)
        self._check_cache(cache, len(ids))
        out = np.empty((len(ids), self.config.d_model), np.float32)
        for part, workspace in self._steps(ids, cache, "none"):
            self._recipe.normed(workspace, out[part]).run()
        return out

    def __reduce__(self) -> tuple[Callable[[], "DecoderLM"], tuple[()]]:
        # As the checkpoint, which pickles as its path: the weights are not copied.
        arguments = {name: getattr(self, name) for name in ("config", "compute", "n_threads")}
        return partial(type(self), self._checkpoint, **arguments), ()

    def plan(self, cache: KVCache, n_tokens: int = 1) -> Plan:
        """Return the operations of a step of `n_tokens`, to look at or to profile."""
        if not 1 <= n_tokens <= MAX_TOKENS:
            raise ArgumentError(f"n_tokens is {n_tokens}, but must be from 1 to {MAX_TOKENS}")
        return self._prepared(cache, [0] * n_tokens, "last")[1]

    # ---- checks ----

    def _checked_ids(
        self, tokens: Sequence[int] | npt.NDArray[np.integer]
    ) -> npt.NDArray[np.int32]:
        ids = _id_array(tokens)
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= self.config.n_vocab:
            raise ArgumentError(
                f"token id {low if low < 0 else high} is outside the vocabulary of "
                f"{self.config.n_vocab}"
            )
        return ids.astype(np.int32)

    def _check_cache(self, cache: KVCache, n_tokens: int) -> None:
        if self._checkpoint.closed:
            raise ClosedError("the model was closed")
        c = self.config
        cache.check_model(c.n_layers, c.n_kv_heads, c.head_dim)
        if cache.size + n_tokens > cache.n_ctx:
            raise ContextOverflow(cache.size + n_tokens, cache.n_ctx)

    # ---- one step ----

    def _steps(
        self, ids: npt.NDArray[np.int32], cache: KVCache, wanted: Wanted
    ) -> Iterator[tuple[slice, Workspace]]:
        """Run the tokens in pieces."""
        before = cache.size
        try:
            for start in range(0, len(ids), MAX_TOKENS):
                stop = min(start + MAX_TOKENS, len(ids))
                last = wanted if wanted != "last" or stop == len(ids) else "none"
                yield slice(start, stop), self._run_part(cache, ids[start:stop], last)
        except BaseException:
            _undo(cache, before)
            raise

    def _run_part(
        self, cache: KVCache, ids: Sequence[int] | npt.NDArray[np.int32], wanted: Wanted
    ) -> Workspace:
        """Run some tokens, and count them in."""
        workspace, plan = self._prepared(cache, ids, wanted)
        if plan.abort[0] or not plan.run():
            raise Aborted
        cache.commit(len(ids))
        return workspace

    def _prepared(
        self, cache: KVCache, ids: Sequence[int] | npt.NDArray[np.int32], wanted: Wanted
    ) -> tuple[Workspace, Plan]:
        """Write a step of these tokens; return the plan that computes it."""
        n = len(ids)
        cache.reserve(n)
        workspace = self._workspace(cache, n)
        step = workspace.step
        step.clear()
        step.add(ids, cache.size, [cache.table])
        if wanted == "last":
            step.want(n - 1)
        elif wanted == "all":
            step.want_range(0, min(n, len(step.outputs)))
        if workspace.plan is None:
            workspace.plan = self._recipe.step(workspace, cache)
        return workspace, workspace.plan

    def _all_logits(self, workspace: Workspace, out: F32) -> None:
        """Logits of every row of the step that has just run, (T, V)."""
        step, done = workspace.step, 0
        while True:
            n = step.n_outputs
            out[done : done + n] = workspace.logits[:n]
            done += n
            if done == len(out):
                return
            step.want_range(done, min(len(out), done + len(step.outputs)))
            if workspace.head_plan is None:
                workspace.head_plan = self._recipe.head_alone(workspace)
            workspace.head_plan.run()

    def _workspace(self, cache: KVCache, n_rows: int) -> Workspace:
        workspace = cache.workspace
        if (
            not isinstance(workspace, Workspace)
            or workspace.n_rows < n_rows
            or workspace.x.shape[1] != self.config.d_model
        ):
            workspace = Workspace(self.config, _capacity(n_rows))
            cache.workspace = workspace
        return workspace


def _capacity(n_rows: int) -> int:
    """Rows to have room for, so that a step of a few rows more needs no new plan."""
    return next(n for n in CAPACITIES if n >= n_rows)


def _id_array(tokens: object) -> npt.NDArray[np.integer]:
    """Ids in one dimension, at least one; a whole float is an integer, too."""
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


def _undo(cache: KVCache, size: int) -> None:
    """Forget what a step that failed has written."""
    if not cache.closed:
        cache.truncate(size)
