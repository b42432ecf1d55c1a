"""Which tensors a model has, and what they are called in a checkpoint.

GGUF's names are canonical. A Hugging Face checkpoint is read through tables from a canonical name
to the name there; a family's own table comes first, because Gemma gives a name of Llama's
(``post_attention_layernorm``) to another norm. Experts are one tensor ``[experts, rows, columns]``
in GGUF and one tensor each in Hugging Face checkpoints and in old GGUF files.
"""

import re
from collections.abc import Collection, Iterator

from rml.llm.config import ModelConfig

__all__ = ["TensorNames", "expected_shapes"]

Shape = tuple[int, ...]


def expected_shapes(config: ModelConfig) -> dict[str, Shape]:
    """List every tensor that a model has: canonical name to shape, outermost dimension first."""
    shapes: dict[str, Shape] = {"token_embd.weight": (config.n_vocab, config.d_model)}
    for layer in range(config.n_layers):
        shapes.update((f"blk.{layer}.{part}", shape) for part, shape in _layer_shapes(config))
    shapes["output_norm.weight"] = (config.d_model,)
    if not config.tied_head:
        shapes["output.weight"] = (config.n_vocab, config.d_model)
    return shapes


def _layer_shapes(config: ModelConfig) -> Iterator[tuple[str, Shape]]:
    d_model, q_size, kv_size = config.d_model, config.q_size, config.kv_size
    yield "attn_norm.weight", (d_model,)
    for part, size in (("attn_q", q_size), ("attn_k", kv_size), ("attn_v", kv_size)):
        yield f"{part}.weight", (size, d_model)
        if config.qkv_bias:
            yield f"{part}.bias", (size,)
    if config.qk_norm != "none":
        whole = config.qk_norm == "whole"
        yield "attn_q_norm.weight", (q_size if whole else config.head_dim,)
        yield "attn_k_norm.weight", (kv_size if whole else config.head_dim,)
    yield "attn_output.weight", (d_model, q_size)
    if config.sandwich_norms:
        yield "post_attention_norm.weight", (d_model,)
    yield "ffn_norm.weight", (d_model,)
    if config.n_experts:
        n_experts, d_ffn = config.n_experts, config.d_expert_ffn
        yield "ffn_gate_inp.weight", (n_experts, d_model)
        yield "ffn_gate_exps.weight", (n_experts, d_ffn, d_model)
        yield "ffn_up_exps.weight", (n_experts, d_ffn, d_model)
        yield "ffn_down_exps.weight", (n_experts, d_model, d_ffn)
    else:
        yield "ffn_gate.weight", (config.d_ffn, d_model)
        yield "ffn_up.weight", (config.d_ffn, d_model)
        yield "ffn_down.weight", (d_model, config.d_ffn)
    if config.sandwich_norms:
        yield "post_ffw_norm.weight", (d_model,)


_HF_OUTER = {
    "token_embd.weight": "{prefix}embed_tokens.weight",
    "output_norm.weight": "{prefix}norm.weight",
    "output.weight": "{head}lm_head.weight",
}
_HF_LAYER = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_q.bias": "self_attn.q_proj.bias",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_k.bias": "self_attn.k_proj.bias",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_v.bias": "self_attn.v_proj.bias",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
    "ffn_gate_inp.weight": "mlp.gate.weight",
    "ffn_gate_exps.weight": "mlp.experts.{e}.gate_proj.weight",
    "ffn_up_exps.weight": "mlp.experts.{e}.up_proj.weight",
    "ffn_down_exps.weight": "mlp.experts.{e}.down_proj.weight",
}
_HF_FAMILY = {
    "gemma3_text": {
        "post_attention_norm.weight": "post_attention_layernorm.weight",
        "ffn_norm.weight": "pre_feedforward_layernorm.weight",
        "post_ffw_norm.weight": "post_feedforward_layernorm.weight",
    },
    "mixtral": {
        "ffn_gate_inp.weight": "block_sparse_moe.gate.weight",
        "ffn_gate_exps.weight": "block_sparse_moe.experts.{e}.w1.weight",
        "ffn_up_exps.weight": "block_sparse_moe.experts.{e}.w3.weight",
        "ffn_down_exps.weight": "block_sparse_moe.experts.{e}.w2.weight",
    },
}

# Where the decoder of a Hugging Face checkpoint lies: alone, within Gemma 3 with images (older and
# newer spelling), or saved without its head. The first under which there is an embedding counts.
_HF_PREFIXES = (
    ("model.", ""),
    ("language_model.model.", "language_model."),
    ("model.language_model.", ""),
    ("", ""),
)

# Tensors that a checkpoint may hold beyond its decoder's weights: rotary tables that follow from
# the configuration (rope_freqs.weight is read as part of it), and what only sees images.
_HARMLESS = {
    "gguf": re.compile(r"rope_freqs\.weight|blk\.\d+\.attn_rot_embd\.weight"),
    "safetensors": re.compile(
        r".*\.rotary_emb\.inv_freq|(model\.)?(vision_tower|multi_modal_projector)\..*"
    ),
}


class TensorNames:
    """Stored names of a checkpoint's tensors.

    Parameters
    ----------
    config : ModelConfig
        The model.
    file_format : str
        ``"gguf"`` or ``"safetensors"``.
    names : collection of str
        What the checkpoint holds.
    """

    def __init__(self, config: ModelConfig, file_format: str, names: Collection[str]) -> None:
        self._config = config
        self._format = file_format
        self._names = names
        self._table = _HF_LAYER | _HF_FAMILY.get(config.architecture, {})
        self._prefix, self._head = next(
            (pair for pair in _HF_PREFIXES if f"{pair[0]}embed_tokens.weight" in names),
            _HF_PREFIXES[0],
        )

    def stored(self, name: str, shape: Shape) -> tuple[tuple[str, Shape], ...]:
        """Say where a canonical tensor of this shape is stored.

        Returns
        -------
        tuple of (str, tuple of int)
            Name and shape in the checkpoint: one pair, or one for each expert.
        """
        if name in _HF_OUTER and self._format != "gguf":
            return ((_HF_OUTER[name].format(prefix=self._prefix, head=self._head), shape),)
        template = self._template(name)
        if "{e}" not in template:
            return ((template, shape),)
        return tuple((template.format(e=expert), shape[1:]) for expert in range(shape[0]))

    def _template(self, name: str) -> str:
        """Find a stored name, with ``{e}`` for the expert where each has a tensor of its own."""
        if self._format != "gguf":
            _, layer, part = name.split(".", 2)
            return f"{self._prefix}layers.{layer}.{self._table[part]}"
        separate = name.replace("_exps.", ".{e}.")
        if name not in self._names and separate.format(e=0) in self._names:
            return separate
        return name

    def is_harmless(self, stored: str) -> bool:
        """Tell whether a tensor without a place in the model may be passed over."""
        if self._format != "gguf" and self._config.tied_head and stored.endswith("lm_head.weight"):
            return True  # Transformers ties the head although the file has one
        return _HARMLESS[self._format].fullmatch(stored) is not None
