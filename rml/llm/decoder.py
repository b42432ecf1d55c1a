"""The decoder: one recipe for every model family.

Each layer is pre-norm, with two branches added to the residual stream x::

    x += attn_output(attend(rope(q), rope(k), v))       q, k, v from rms_norm(x)
    x += ffn_down(act(gate) * up)                       gate, up from rms_norm(x)

and the logits are ``head(rms_norm(x))``. In a mixture of experts the second branch is the weighted
sum of such feed-forward networks, those that a router chooses for the token. Families differ in the
switches of `ModelConfig` alone: biases, norms of queries and keys, norms after a branch, windows,
scales, experts. The switches are resolved while the recipe is recorded (`_record`), so nothing is
decided during a step.

`DecoderLM.forward` runs any number of tokens at the positions after those in the cache: a prompt
at once, in pieces, or token by token give the same bits. It records operations into a `Plan` once
for each number of tokens and runs that plan at every step.

Shapes: T tokens of a call, D model width, H query heads, G key heads, W head width, F width of the
feed-forward network, V vocabulary, E experts, of which a token uses k.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from rml import _kernels
from rml._kernels.checks import COMPUTE_MODES
from rml._kernels.threads import resolve_threads
from rml.errors import ArgumentError, ClosedError, ContextOverflow, UnsupportedModel
from rml.files import Checkpoint
from rml.llm.config import ModelConfig
from rml.llm.kv_cache import KVCache
from rml.llm.layers import Experts, Layer, load_layer
from rml.llm.plan import Aborted, Plan
from rml.llm.rope import Rope
from rml.llm.weight_source import WeightMatrix, WeightSource
from rml.llm.workspace import Workspace

__all__ = ["DecoderLM"]

F32 = npt.NDArray[np.float32]

MAX_TOKENS = 512  # tokens of one plan; a longer prompt runs in pieces, with the same bits
KEPT_PLANS = 4  # of other sizes than one token


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
        if compute not in COMPUTE_MODES:
            raise ArgumentError(
                f"compute is {compute!r}, but must be one of {', '.join(COMPUTE_MODES)}"
            )
        self.config = config if config is not None else ModelConfig.from_checkpoint(checkpoint)
        self.compute = compute
        self.n_threads = resolve_threads(n_threads)
        self._checkpoint = checkpoint
        c = self.config
        if c.n_experts and c.sandwich_norms:
            raise UnsupportedModel(
                f"{checkpoint.path}: experts together with norms after a branch "
                f"({c.architecture}) are not implemented"
            )
        weights = WeightSource(checkpoint, c)
        self._embedding = weights.matrix("token_embd.weight", c.n_vocab, c.d_model)
        self._head = (
            self._embedding
            if c.tied_head
            else weights.matrix("output.weight", c.n_vocab, c.d_model)
        )
        self._output_norm = weights.vector("output_norm.weight", c.d_model)
        self._layers = [load_layer(weights, c, i) for i in range(c.n_layers)]

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
        for part, workspace in self._steps(ids, cache, head=not all_logits):
            if all_logits:
                self._all_logits(workspace, out[part])
        if not all_logits:
            out[:] = self._workspace(cache, 1).next_logits
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
        workspace = self._workspace(cache, 1)
        before = cache.size
        try:
            workspace.ids[0] = token
            self._run_part(workspace, cache, 1, head=True)
        except BaseException:
            _undo(cache, before)
            raise
        return workspace.next_logits

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
        for part, workspace in self._steps(ids, cache, head=False):
            self._output_norm_plan(workspace, out[part]).run()
        return out

    def plan(self, cache: KVCache, n_tokens: int = 1) -> Plan:
        """Return the operations of a step of `n_tokens`, to look at or to profile."""
        if not 1 <= n_tokens <= MAX_TOKENS:
            raise ArgumentError(f"n_tokens is {n_tokens}, but must be from 1 to {MAX_TOKENS}")
        cache.reserve(n_tokens)  # so that it can be run
        return self._plan(self._workspace(cache, n_tokens), cache, n_tokens, head=True)

    # ---- checks ----

    def _checked_ids(
        self, tokens: Sequence[int] | npt.NDArray[np.integer]
    ) -> npt.NDArray[np.int32]:
        ids = np.asarray(tokens)
        if ids.ndim != 1 or ids.size == 0:
            raise ArgumentError(f"tokens have shape {ids.shape}, but one or more ids are needed")
        if ids.dtype.kind not in "iu":
            raise ArgumentError(f"tokens are {ids.dtype}, but whole numbers are needed")
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
        self, ids: npt.NDArray[np.int32], cache: KVCache, *, head: bool
    ) -> Iterator[tuple[slice, Workspace]]:
        """Run the tokens in pieces; `head` asks for the logits of the very last one."""
        workspace = self._workspace(cache, min(len(ids), MAX_TOKENS))
        before = cache.size
        try:
            for start in range(0, len(ids), MAX_TOKENS):
                part = ids[start : start + MAX_TOKENS]
                last = start + len(part) == len(ids)
                workspace.ids[: len(part)] = part
                self._run_part(workspace, cache, len(part), head=head and last)
                yield slice(start, start + len(part)), workspace
        except BaseException:
            _undo(cache, before)
            raise

    def _run_part(self, workspace: Workspace, cache: KVCache, n: int, *, head: bool) -> None:
        """Run the `n` tokens whose ids are in the workspace."""
        cache.reserve(n)
        plan = self._plan(workspace, cache, n, head=head)
        if plan.abort[0] or not plan.run():
            raise Aborted
        cache.commit(n)

    def _all_logits(self, workspace: Workspace, out: F32) -> None:
        """Logits of every token of the step that has just run, (T, V)."""
        normed = workspace.normed[: len(out)]
        plan = self._output_norm_plan(workspace, normed)
        self._record_product(plan, workspace, "head", normed, [self._head], [out])
        plan.run()

    def _output_norm_plan(self, workspace: Workspace, out: F32) -> Plan:
        """Normalize the residual stream of the step that has just run into `out`, (T, D)."""
        plan = Plan(self.n_threads)
        x = workspace.x[: len(out)]
        plan.record("rms_norm", "output norm", x, self._output_norm, out, eps=self.config.norm_eps)
        return plan

    def _workspace(self, cache: KVCache, n_tokens: int) -> Workspace:
        workspace = cache.workspace
        if (
            not isinstance(workspace, Workspace)
            or workspace.n_tokens < n_tokens
            or workspace.x.shape[1] != self.config.d_model
        ):
            workspace = Workspace(self.config, n_tokens)
            cache.workspace = workspace
        return workspace

    def _plan(self, workspace: Workspace, cache: KVCache, n_tokens: int, *, head: bool) -> Plan:
        key = (n_tokens, head)
        if key not in workspace.plans:
            others = [k for k in workspace.plans if k[0] > 1]
            if len(others) >= KEPT_PLANS:
                del workspace.plans[others[0]]
            workspace.plans[key] = self._record(workspace, cache, n_tokens, head=head)
        return workspace.plans[key]

    # ---- the recipe ----

    def _record(self, workspace: Workspace, cache: KVCache, n: int, *, head: bool) -> Plan:
        c, w = self.config, workspace
        plan = Plan(self.n_threads, cache.abort)
        x = w.x[:n]
        plan.record(
            "embed", "token embedding", w.ids[:n], self._embedding, x, scale=c.embedding_scale
        )
        ropes = c.ropes(cache.n_ctx)
        angles = self._record_angles(plan, w, cache, ropes, n)
        for i, layer in enumerate(self._layers):
            rope = ropes[i]
            self._record_attention(
                plan, w, cache, i, layer, n, None if rope is None else angles[id(rope)]
            )
            self._record_feed_forward(plan, w, i, layer, n)
        if head:
            last, normed = x[n - 1 :], w.normed[:1]
            plan.record("rms_norm", "output norm", last, self._output_norm, normed, eps=c.norm_eps)
            self._record_product(plan, w, "head", normed, [self._head], [w.logits])
        return plan

    def _record_angles(
        self,
        plan: Plan,
        w: Workspace,
        cache: KVCache,
        ropes: tuple[Rope | None, ...],
        n: int,
    ) -> dict[int, tuple[F32, F32]]:
        """Cosines and sines of every distinct rotary table, (T, W / 2) each."""
        distinct = {id(rope): rope for rope in ropes if rope is not None}
        angles = {}
        for (key, rope), (cos, sin) in zip(distinct.items(), w.angles, strict=False):
            plan.record(
                "rope_angles", "rotary angles", cache.position, rope.inv_freq, cos[:n], sin[:n],
                factor=rope.attention_factor,
            )  # fmt: skip
            angles[key] = (cos[:n], sin[:n])
        return angles

    def _record_attention(
        self,
        plan: Plan,
        w: Workspace,
        cache: KVCache,
        i: int,
        layer: Layer,
        n: int,
        angles: tuple[F32, F32] | None,
    ) -> None:
        c = self.config
        x, normed = w.x[:n], w.normed[:n]
        q, k, v, mixed = w.q[:n], w.k[:n], w.v[:n], w.mixed[:n]  # (T, H, W), (T, G, W) twice
        at = f"layer {i}: "
        plan.record("rms_norm", at + "attention norm", x, layer.attn_norm, normed, eps=c.norm_eps)
        flat = [part.reshape(n, -1) for part in (q, k, v)]
        self._record_product(
            plan, w, at + "query, key, value", normed, [layer.q, layer.k, layer.v], flat,
            biases=layer.biases,
        )  # fmt: skip
        for part, norm, name in ((q, layer.q_norm, "query"), (k, layer.k_norm, "key")):
            if norm is not None:
                rows = part.reshape(-1, norm.size)  # heads one by one, or all together
                plan.record("rms_norm", f"{at}{name} norm", rows, norm, rows, eps=c.norm_eps)
        if angles is not None:
            interleaved = c.rope_pairing == "interleaved"
            for part, name in ((q, "query"), (k, "key")):
                plan.record("rotate", f"{at}rotate {name}", *angles, part, interleaved=interleaved)
        pages = (cache.k_pages, cache.v_pages, cache.page_table, cache.position)
        scales = {"k_scales": cache.k_scales, "v_scales": cache.v_scales}
        plan.record("store_kv", at + "store key, value", k, v, *pages, layer=i, **scales)
        plan.record(
            "attend", at + "attention", q, *pages, mixed,
            layer=i, scale=c.attention_scale, window=c.window(i) or 0, scratch=w.scratch, **scales,
        )  # fmt: skip
        self._record_branch(
            plan, w, at + "attention output", mixed.reshape(n, -1), layer.attn_output,
            layer.post_attn_norm, n,
        )  # fmt: skip

    def _record_feed_forward(self, plan: Plan, w: Workspace, i: int, layer: Layer, n: int) -> None:
        c = self.config
        x, normed = w.x[:n], w.normed[:n]
        at = f"layer {i}: "
        plan.record("rms_norm", at + "feed-forward norm", x, layer.ffn_norm, normed, eps=c.norm_eps)
        if isinstance(layer.ffn, Experts):
            self._record_experts(plan, w, at, layer.ffn, n)
            return
        hidden = w.hidden[:n]  # (T, F)
        plan.record(
            "matmul_glu", at + "gate, up", normed, layer.ffn.gate, layer.ffn.up, hidden,
            activation=c.activation, compute=self.compute, scratch=w.scratch,
        )  # fmt: skip
        self._record_branch(
            plan, w, at + "feed-forward output", hidden, layer.ffn.down, layer.post_ffn_norm, n
        )

    def _record_experts(self, plan: Plan, w: Workspace, at: str, experts: Experts, n: int) -> None:
        c = self.config
        x, normed = w.x[:n], w.normed[:n]
        scores, ids, weights = w.expert_scores[:n], w.expert_ids[:n], w.expert_weights[:n]
        self._record_product(plan, w, at + "router", normed, [experts.router], [scores])  # (T, E)
        plan.record(  # (T, E) -> (T, k) twice
            "route", at + "choice of experts", scores, ids, weights,
            normalize=c.normalize_expert_weights,
        )  # fmt: skip
        plan.record(
            "mix_experts", at + "experts", normed, experts.gates, experts.ups, experts.downs,
            ids, weights, x, activation=c.activation, compute=self.compute, scratch=w.scratch,
        )  # fmt: skip

    def _record_branch(
        self,
        plan: Plan,
        w: Workspace,
        label: str,
        h: F32,
        weight: WeightMatrix,
        post_norm: F32 | None,
        n: int,
    ) -> None:
        """End a branch: its output projection, normalized again or not, added to x."""
        x = w.x[:n]
        if post_norm is None:
            plan.record("accumulate", label, h, weight, x, compute=self.compute, scratch=w.scratch)
            return
        branch = w.branch[:n]
        self._record_product(plan, w, label, h, [weight], [branch])
        plan.record(
            "rms_norm", label + " norm", branch, post_norm, branch, eps=self.config.norm_eps
        )
        plan.record("add", label + " add", branch, x)

    def _record_product(
        self,
        plan: Plan,
        w: Workspace,
        label: str,
        x: F32,
        weights: list[WeightMatrix],
        outs: list[F32],
        biases: tuple[F32, ...] | None = None,
    ) -> None:
        plan.record(
            "matmul_many", label, x, weights, outs,
            biases=biases, compute=self.compute, scratch=w.scratch,
        )  # fmt: skip


def _undo(cache: KVCache, size: int) -> None:
    """Forget what a step that failed has written."""
    if not cache.closed:
        cache.truncate(size)
