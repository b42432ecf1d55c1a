"""The decoder: one recipe for every model family.

Each layer is pre-norm, with two branches added to the residual stream x::

    x += attn_output(attend(rope(q), rope(k), v))       q, k, v from rms_norm(x)
    x += ffn_down(act(gate) * up)                       gate, up from rms_norm(x)

and the logits are ``head(rms_norm(x))``. In a mixture of experts the second branch is the weighted
sum of such feed-forward networks, those that a router chooses for the token. Families differ in the
switches of `ModelConfig` alone: biases, norms of queries and keys, norms after a branch, windows,
scales, experts. The switches are resolved while the recipe is recorded (`Recipe.step`), so nothing
is decided during a step.

Shapes: T tokens of a call, D model width, H query heads, G key heads, W head width, F width of the
feed-forward network, V vocabulary, E experts, of which a token uses k.
"""

import numpy as np
import numpy.typing as npt

from rml.errors import UnsupportedModel
from rml.files import Checkpoint
from rml.llm.config import ModelConfig
from rml.llm.kv_cache import KVCache
from rml.llm.layers import Experts, Layer, load_layer
from rml.llm.plan import Plan
from rml.llm.rope import Rope
from rml.llm.weight_source import WeightMatrix, WeightSource
from rml.llm.workspace import Workspace

__all__ = ["Recipe"]

F32 = npt.NDArray[np.float32]


class Recipe:
    """A model's weights, and the operations that they take part in.

    Parameters
    ----------
    checkpoint : Checkpoint
        Open for as long as the recipe is used; the matrices are views into it.
    config : ModelConfig
        What the checkpoint holds.
    compute : str
        How quantized weights are multiplied: ``"int8x2"``, ``"int8"`` or ``"f32"``.
    n_threads : int
        Threads of every plan.

    Raises
    ------
    UnsupportedModel
        If the recipe does not cover the model.
    CheckpointError
        If weights are missing or do not have the shapes that the configuration implies.
    """

    def __init__(
        self, checkpoint: Checkpoint, config: ModelConfig, *, compute: str, n_threads: int
    ) -> None:
        c = config
        if c.n_experts and c.sandwich_norms:
            raise UnsupportedModel(
                f"{checkpoint.path}: experts together with norms after a branch "
                f"({c.architecture}) are not implemented"
            )
        self.config = config
        self.compute = compute
        self.n_threads = n_threads
        weights = WeightSource(checkpoint, c)
        self.embedding = weights.matrix("token_embd.weight", c.n_vocab, c.d_model)
        self.head = (
            self.embedding if c.tied_head else weights.matrix("output.weight", c.n_vocab, c.d_model)
        )
        self.output_norm = weights.vector("output_norm.weight", c.d_model)
        self.layers = [load_layer(weights, c, i) for i in range(c.n_layers)]

    def step(self, w: Workspace, cache: KVCache, n: int, *, head: bool) -> Plan:
        """All layers for `n` tokens whose ids are in the workspace.

        Parameters
        ----------
        w : Workspace
            Where every intermediate result is.
        cache : KVCache
            Gets the tokens' keys and values, after those it holds when the plan is run.
        n : int
            T, tokens of the step.
        head : bool
            Whether the logits of the last token are computed.
        """
        c = self.config
        plan = Plan(self.n_threads, cache.abort)
        x = w.x[:n]
        plan.record(
            "embed", "token embedding", w.ids[:n], self.embedding, x, scale=c.embedding_scale
        )
        ropes = c.ropes(cache.n_ctx)
        angles = self._record_angles(plan, w, cache, ropes, n)
        for i, layer in enumerate(self.layers):
            rope = ropes[i]
            self._record_attention(
                plan, w, cache, i, layer, n, None if rope is None else angles[id(rope)]
            )
            self._record_feed_forward(plan, w, i, layer, n)
        if head:
            last, normed = x[n - 1 :], w.normed[:1]
            plan.record("rms_norm", "output norm", last, self.output_norm, normed, eps=c.norm_eps)
            self._record_product(plan, w, "head", normed, [self.head], [w.logits])
        return plan

    def normed(self, w: Workspace, out: F32) -> Plan:
        """Normalize the residual stream of the step that has just run into `out`, (T, D)."""
        plan = Plan(self.n_threads)
        x = w.x[: len(out)]
        plan.record("rms_norm", "output norm", x, self.output_norm, out, eps=self.config.norm_eps)
        return plan

    def logits(self, w: Workspace, out: F32) -> Plan:
        """Logits of every token of the step that has just run into `out`, (T, V)."""
        normed = w.normed[: len(out)]
        plan = self.normed(w, normed)
        self._record_product(plan, w, "head", normed, [self.head], [out])
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
