"""Write a toy model as a Hugging Face folder and as GGUF, laid out as llama.cpp's converter does.

Matrices in GGUF are f16 or blocks, vectors f32, the q and k rows of the Llama families reordered,
experts stacked, Gemma norms stored as 1 + w.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType
from gguf.quants import quantize
from toy_families import Family, head_dim_of, toy_config
from toy_tokenizer import write_gguf_tokenizer, write_hf_tokenizer

__all__ = ["gguf_tensors", "write_gguf", "write_hf"]


def write_hf(folder: Path, family: Family, weights: dict[str, np.ndarray]) -> None:
    """Write config.json, model.safetensors and the tokenizer's files."""
    folder.mkdir(parents=True)
    text = json.dumps(toy_config(family), indent=2)
    (folder / "config.json").write_text(text + "\n", "utf-8")
    write_safetensors(folder / "model.safetensors", weights)
    write_hf_tokenizer(folder)


def write_safetensors(path: Path, weights: dict[str, np.ndarray]) -> None:
    """Write bf16 tensors; the header is padded with spaces to a multiple of 8 bytes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    body = b""
    for name in sorted(weights):
        raw = (weights[name].view(np.uint32) >> 16).astype("<u2").tobytes()
        offsets = [len(body), len(body) + len(raw)]
        header[name] = {
            "dtype": "BF16",
            "shape": list(weights[name].shape),
            "data_offsets": offsets,
        }
        body += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)


# GGUF, as llama.cpp's converter lays it out.

GGUF_OUTER = {
    "model.embed_tokens.weight": "token_embd",
    "model.norm.weight": "output_norm",
    "lm_head.weight": "output",
}
PARTS = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_proj.bias": "attn_q.bias",
    "self_attn.k_proj.bias": "attn_k.bias",
    "self_attn.v_proj.bias": "attn_v.bias",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "pre_feedforward_layernorm.weight": "ffn_norm.weight",
    "post_feedforward_layernorm.weight": "post_ffw_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "block_sparse_moe.gate.weight": "ffn_gate_inp.weight",
}
EXPERT_PARTS = {
    "gate_proj": "ffn_gate_exps.weight",
    "up_proj": "ffn_up_exps.weight",
    "down_proj": "ffn_down_exps.weight",
    "w1": "ffn_gate_exps.weight",
    "w3": "ffn_up_exps.weight",
    "w2": "ffn_down_exps.weight",
}


def interleave(rows: np.ndarray, width: int) -> np.ndarray:
    """Reorder the rows of q or k so that rotated pairs lie side by side within each head."""
    pairs = rows.reshape(-1, 2, width // 2, rows.shape[-1])
    return pairs.transpose(0, 2, 1, 3).reshape(rows.shape)


def gguf_tensors(arch: str, config: dict[str, Any], weights: dict) -> dict[str, np.ndarray]:
    """Return the tensors of a GGUF file, float32, by their names there."""
    gemma = config["model_type"] == "gemma3_text"
    width = head_dim_of(config)
    stacks: dict[str, list[np.ndarray]] = {}
    out = {}
    for name, stored in weights.items():
        values = stored
        if gemma and stored.ndim == 1:
            values = stored + np.float32(1.0)
        elif arch in ("llama", "smollm3") and name.endswith(("q_proj.weight", "k_proj.weight")):
            values = interleave(stored, width)
        words = name.split(".")
        if words[1] != "layers":
            out[f"{GGUF_OUTER[name]}.weight"] = values
        elif "experts" in words:
            part = EXPERT_PARTS[words[-2]]
            stacks.setdefault(f"blk.{words[2]}.{part}", []).append(values)
        else:
            part = PARTS[".".join(words[3:])]
            if gemma and words[3] == "post_attention_layernorm":
                part = "post_attention_norm.weight"
            out[f"blk.{words[2]}.{part}"] = values
    return out | {name: np.stack(parts) for name, parts in stacks.items()}


def write_gguf(
    path: Path, name: str, family: Family, tensors: dict[str, np.ndarray], block_format: str
) -> None:
    """Write one GGUF file whose matrices are stored in `block_format`."""
    config = toy_config(family)
    width = head_dim_of(config)
    writer = GGUFWriter(path, family.arch)
    writer.add_type("model")
    writer.add_name(f"rml toy {name}")
    writer.add_license("Apache-2.0")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    if "head_dim" in config:
        writer.add_key_length(width)
        writer.add_value_length(width)
    if family.arch in ("llama", "smollm3"):
        writer.add_rope_dimension_count(width)
    for key, value in family.gguf.items():
        writer.add_uint32(f"{family.arch}.{key}", value)
    writer.add_file_type(LlamaFileType[f"MOSTLY_{block_format}"])
    write_gguf_tokenizer(writer)
    block_type = GGMLQuantizationType[block_format]
    for tensor, values in tensors.items():
        if values.ndim == 1 or tensor.endswith("ffn_gate_inp.weight"):
            writer.add_tensor(tensor, np.ascontiguousarray(values))
        else:
            blocks = quantize(np.ascontiguousarray(values), block_type)
            writer.add_tensor(tensor, blocks, raw_dtype=block_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
