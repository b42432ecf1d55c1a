"""The decoder: one recipe for every model family.

Each layer is pre-norm, with two branches added to the residual stream x::

    x += attn_output(attend(rope(q), rope(k), v))       q, k, v from rms_norm(x)
    x += ffn_down(act(gate) * up)                       gate, up from rms_norm(x)

and the logits are ``head(rms_norm(x))``. In a mixture of experts the second branch is the weighted
sum of such feed-forward networks, those that a router chooses for the token. Families differ in the
switches of `ModelConfig` alone: biases, norms of queries and keys, norms after a branch, windows,
scales, experts. The switches are resolved while the recipe is recorded (`Recipe.step`), so nothing
is decided during a step.

Shapes: T rows of a step, D model width, H query heads, G key heads, W head width, F width of the
feed-forward network, V vocabulary, E experts, of which a token uses k.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from rml import _kernels
from rml._kernels.pages import Pages
from rml.errors import UnsupportedModel
from rml.llm.config import ModelConfig
from rml.llm.layers import Experts, Layer, layer_groups, load_layer
from rml.llm.operation import Counted
from rml.llm.plan import Plan
from rml.llm.rope import Rope
from rml.llm.weight_source import Outline, WeightMatrix, WeightSource
from rml.llm.workspace import Workspace

__all__ = ["Recipe", "require_covered"]

F32 = npt.NDArray[np.float32]


def require_covered(config: ModelConfig, path: object) -> None:
    """Raise `UnsupportedModel` if the recipe does not cover a model."""
    if config.n_experts and config.sandwich_norms:
        raise UnsupportedModel(
            f"{path}: experts together with norms after a branch ({config.architecture}) are not "
            "implemented"
        )


class Recipe:
    """A model's weights, and the operations that they take part in.

    Parameters
    ----------
    weights : WeightSource or Outline
        Of a checkpoint that is open for as long as the recipe is used: the matrices are views
        into it.
    config : ModelConfig
        What the weights are.
    compute : str
        How quantized weights are multiplied: ``"int8x2"``, ``"int8"`` or ``"f32"``.
    n_threads : int
        Threads of every plan.
    n_ctx : int, optional
        Context that rotary tables are made for, where they depend on it; the model's if not given.

    Attributes
    ----------
    groups : tuple of LayerGroup
        Layers whose keys and values lie in the same pages.
    """

    def __init__(
        self,
        weights: WeightSource | Outline,
        config: ModelConfig,
        *,
        compute: str,
        n_threads: int,
        n_ctx: int | None = None,
    ) -> None:
        c = config
        self.config = config
        self.compute = compute
        self.n_threads = n_threads
        self.embedding = weights.matrix("token_embd.weight", c.n_vocab, c.d_model)
        self.head = (
            self.embedding if c.tied_head else weights.matrix("output.weight", c.n_vocab, c.d_model)
        )
        self.output_norm = weights.vector("output_norm.weight", c.d_model)
        self.layers = [load_layer(weights, c, i) for i in range(c.n_layers)]
        self.ropes = c.ropes(n_ctx)
        self.groups = layer_groups(c)

    def step(self, w: Workspace, pages: Sequence[Pages], abort: npt.NDArray[np.int32]) -> Plan:
        """All layers for the rows of the workspace's step, and the head for its outputs.

        Parameters
        ----------
        w : Workspace
            Where every intermediate result is.
        pages : sequence of Pages
            Get the rows' keys and values, one for each of the `groups`.
        abort : (1,) int32
            See `Plan`.
        """
        c = self.config
        checks = [partial(_kernels.check_ids, w.step, c.n_vocab)]
        place: dict[int, tuple[Pages, int]] = {}  # of each layer: its pages, and which of theirs
        for group, its_pages in zip(self.groups, pages, strict=True):
            windows = [c.window(i) or 0 for i in group.layers]
            widest = 0 if 0 in windows else max(windows)
            checks.append(partial(_kernels.check_step, w.step, its_pages, widest))
            place |= {layer: (its_pages, i) for i, layer in enumerate(group.layers)}
        plan = Plan(self.n_threads, abort, checks)
        x = w.rows(w.x)
        plan.record(
            "embed", "token embedding", w.rows(w.step.ids), self.embedding, x,
            scale=c.embedding_scale,
        )  # fmt: skip
        angles = self._record_angles(plan, w, self.ropes)
        for i, layer in enumerate(self.layers):
            rope = self.ropes[i]
            self._record_attention(
                plan, w, place[i], i, layer, None if rope is None else angles[id(rope)]
            )
            self._record_feed_forward(plan, w, i, layer)
        self._record_head(plan, w)
        return plan

    def head_alone(self, w: Workspace) -> Plan:
        """Compute logits for the outputs of the step that has just run."""
        plan = Plan(self.n_threads)
        self._record_head(plan, w)
        return plan

    def normed(self, w: Workspace, start: int, stop: int, out: F32) -> Plan:
        """Normalize rows of the residual stream of the step that has just run into `out`."""
        plan = Plan(self.n_threads)
        x = w.x[start:stop]
        plan.record("rms_norm", "output norm", x, self.output_norm, out, eps=self.config.norm_eps)
        return plan

    def _record_head(self, plan: Plan, w: Workspace) -> None:
        """Logits of the rows that are wanted; nothing where none are."""
        normed = w.outputs(w.normed[: len(w.step.outputs)])
        plan.record(
            "rms_norm", "output norm", w.x, self.output_norm, normed,
            eps=self.config.norm_eps, rows=w.outputs(w.step.outputs),
        )  # fmt: skip
        self._record_product(plan, w, "head", normed, [self.head], [w.outputs(w.logits)])

    def _record_angles(
        self, plan: Plan, w: Workspace, ropes: tuple[Rope | None, ...]
    ) -> dict[int, tuple[Counted, Counted]]:
        """Cosines and sines of every distinct rotary table, (T, W / 2) each."""
        distinct = {id(rope): rope for rope in ropes if rope is not None}
        angles = {}
        for (key, rope), tables in zip(distinct.items(), w.angles, strict=False):
            cos, sin = map(w.rows, tables)
            plan.record(
                "rope_angles", "rotary angles", w.rows(w.step.positions), rope.inv_freq, cos, sin,
                factor=rope.attention_factor,
            )  # fmt: skip
            angles[key] = (cos, sin)
        return angles

    def _record_attention(
        self,
        plan: Plan,
        w: Workspace,
        place: tuple[Pages, int],
        i: int,
        layer: Layer,
        angles: tuple[Counted, Counted] | None,
    ) -> None:
        c = self.config
        x, normed = w.rows(w.x), w.rows(w.normed)
        q, k, v, mixed = map(w.rows, (w.q, w.k, w.v, w.mixed))  # (T, H, W), (T, G, W) twice
        at = f"layer {i}: "
        plan.record("rms_norm", at + "attention norm", x, layer.attn_norm, normed, eps=c.norm_eps)
        self._record_product(
            plan, w, at + "query, key, value", normed, [layer.q, layer.k, layer.v],
            [q.flat, k.flat, v.flat], biases=layer.biases,
        )  # fmt: skip
        for part, norm, name in ((q, layer.q_norm, "query"), (k, layer.k_norm, "key")):
            if norm is not None:
                rows = part.heads(norm.size)  # heads one by one, or all together
                plan.record("rms_norm", f"{at}{name} norm", rows, norm, rows, eps=c.norm_eps)
        if angles is not None:
            interleaved = c.rope_pairing == "interleaved"
            for part, name in ((q, "query"), (k, "key")):
                plan.record("rotate", f"{at}rotate {name}", *angles, part, interleaved=interleaved)
        pages, number = place
        plan.record("store_kv", at + "store key, value", k, v, pages, w.step, layer=number)
        plan.record(
            "attend", at + "attention", q, pages, w.step, mixed,
            layer=number, scale=c.attention_scale, window=c.window(i) or 0, scratch=w.scratch,
        )  # fmt: skip
        self._record_branch(
            plan, w, at + "attention output", mixed.flat, layer.attn_output, layer.post_attn_norm
        )

    def _record_feed_forward(self, plan: Plan, w: Workspace, i: int, layer: Layer) -> None:
        c = self.config
        x, normed = w.rows(w.x), w.rows(w.normed)
        at = f"layer {i}: "
        plan.record("rms_norm", at + "feed-forward norm", x, layer.ffn_norm, normed, eps=c.norm_eps)
        if isinstance(layer.ffn, Experts):
            self._record_experts(plan, w, at, layer.ffn)
            return
        hidden = w.rows(w.hidden)  # (T, F)
        plan.record(
            "matmul_glu", at + "gate, up", normed, layer.ffn.gate, layer.ffn.up, hidden,
            activation=c.activation, compute=self.compute, scratch=w.scratch,
        )  # fmt: skip
        self._record_branch(
            plan, w, at + "feed-forward output", hidden, layer.ffn.down, layer.post_ffn_norm
        )

    def _record_experts(self, plan: Plan, w: Workspace, at: str, experts: Experts) -> None:
        c = self.config
        x, normed = w.rows(w.x), w.rows(w.normed)
        scores = w.rows(w.expert_scores)  # (T, E)
        ids, weights = w.rows(w.expert_ids), w.rows(w.expert_weights)  # (T, k) twice
        self._record_product(plan, w, at + "router", normed, [experts.router], [scores])
        plan.record(
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
        h: Counted,
        weight: WeightMatrix,
        post_norm: F32 | None,
    ) -> None:
        """End a branch: its output projection, normalized again or not, added to x."""
        x = w.rows(w.x)
        if post_norm is None:
            plan.record("accumulate", label, h, weight, x, compute=self.compute, scratch=w.scratch)
            return
        branch = w.rows(w.branch)
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
        x: Counted,
        weights: list[WeightMatrix],
        outs: list[Counted],
        biases: tuple[F32, ...] | None = None,
    ) -> None:
        plan.record(
            "matmul_many", label, x, weights, outs,
            biases=biases, compute=self.compute, scratch=w.scratch,
        )  # fmt: skip
