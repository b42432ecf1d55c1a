"""Weights of a checkpoint as float64 arrays, for the reference model.

Two readers with one face. Both know a tensor by its GGUF name (``blk.0.attn_q.weight``):

GgufWeights         a GGUF file; blocks are expanded by the gguf package's own `dequantize`
HuggingFaceWeights  a folder with config.json and safetensors (one file, or shards with an index)

Nothing here is shared with rml: the two must be able to disagree.
"""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

__all__ = ["GgufWeights", "HuggingFaceWeights", "open_weights", "read_safetensors"]

# Hugging Face name -> GGUF name, for the families whose blocks are Llama's.
OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
LAYER = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "attn_q.bias": "self_attn.q_proj.bias",
    "attn_k.bias": "self_attn.k_proj.bias",
    "attn_v.bias": "self_attn.v_proj.bias",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
    "ffn_gate_inp.weight": "mlp.gate.weight",
}
# Gemma norms the output of each half block too, and reuses one of Llama's names for that.
GEMMA_LAYER = LAYER | {
    "post_attention_norm.weight": "post_attention_layernorm.weight",
    "ffn_norm.weight": "pre_feedforward_layernorm.weight",
    "post_ffw_norm.weight": "post_feedforward_layernorm.weight",
}
MIXTRAL_LAYER = LAYER | {"ffn_gate_inp.weight": "block_sparse_moe.gate.weight"}
LAYER_TABLES = {"gemma3_text": GEMMA_LAYER, "mixtral": MIXTRAL_LAYER}

EXPERTS = {
    "ffn_gate_exps.weight": "mlp.experts.{e}.gate_proj.weight",
    "ffn_up_exps.weight": "mlp.experts.{e}.up_proj.weight",
    "ffn_down_exps.weight": "mlp.experts.{e}.down_proj.weight",
}
MIXTRAL_EXPERTS = {
    "ffn_gate_exps.weight": "block_sparse_moe.experts.{e}.w1.weight",
    "ffn_up_exps.weight": "block_sparse_moe.experts.{e}.w3.weight",
    "ffn_down_exps.weight": "block_sparse_moe.experts.{e}.w2.weight",
}
EXPERT_TABLES = {"mixtral": MIXTRAL_EXPERTS}


class GgufWeights:
    """Tensors and metadata of one GGUF file.

    Parameters
    ----------
    path : Path
        The file.

    Attributes
    ----------
    metadata : dict
        GGUF keys and their values, arrays as lists.
    """

    def __init__(self, path: Path) -> None:
        reader = GGUFReader(path)
        self.metadata: dict[str, Any] = {
            name: field.contents()
            for name, field in reader.fields.items()
            if not name.startswith(("GGUF.", "tokenizer."))
        }
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape, outermost dimension first."""
        return tuple(int(size) for size in reversed(self._tensors[name].shape))

    def __getitem__(self, name: str) -> np.ndarray:
        tensor = self._tensors[name]
        values = dequantize(tensor.data, tensor.tensor_type)
        return values.astype(np.float64).reshape(self.shape(name))


class HuggingFaceWeights:
    """Tensors and config of a Hugging Face folder.

    Parameters
    ----------
    folder : Path
        Holds config.json and the safetensors files.

    Attributes
    ----------
    config : dict
        What config.json says.
    """

    def __init__(self, folder: Path) -> None:
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text("utf-8"))
        index = folder / "model.safetensors.index.json"
        if index.is_file():
            names = set(json.loads(index.read_text("utf-8"))["weight_map"].values())
        else:
            names = {"model.safetensors"}
        self._tensors: dict[str, np.ndarray] = {}
        for name in sorted(names):
            self._tensors |= read_safetensors(folder / name)
        family = self.config["model_type"]
        self._layer = LAYER_TABLES.get(family, LAYER)
        self._experts = EXPERT_TABLES.get(family, EXPERTS)
        # Gemma's RMSNorm multiplies by 1 + w.
        self._norm_offset = 1.0 if family == "gemma3_text" else 0.0

    def _names(self, name: str) -> list[str]:
        """Names in the files: one, or one an expert."""
        if name in OUTER:
            return [OUTER[name]]
        match = re.fullmatch(r"blk\.(\d+)\.(.+)", name)
        if not match:
            return [name]
        layer, part = match.groups()
        prefix = f"model.layers.{layer}."
        if part in self._experts:
            n_experts = self.config.get("num_local_experts", self.config.get("num_experts", 0))
            return [prefix + self._experts[part].format(e=e) for e in range(n_experts)]
        return [prefix + self._layer[part]] if part in self._layer else [name]

    def __contains__(self, name: str) -> bool:
        return all(each in self._tensors for each in self._names(name))

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape, outermost dimension first."""
        return self[name].shape

    def __getitem__(self, name: str) -> np.ndarray:
        parts = [self._tensors[each].astype(np.float64) for each in self._names(name)]
        values = np.stack(parts) if name.endswith("_exps.weight") else parts[0]
        return values + self._norm_offset if name.endswith("norm.weight") else values


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """Every tensor of a safetensors file; bf16 becomes float32, which holds it exactly."""
    data = path.read_bytes()
    header_size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + header_size])
    body = memoryview(data)[8 + header_size :]
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        raw = body[begin:end]
        if entry["dtype"] == "BF16":
            values = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.frombuffer(raw, {"F16": "<f2", "F32": "<f4", "F64": "<f8"}[entry["dtype"]])
        tensors[name] = values.reshape(entry["shape"])
    return tensors


def open_weights(path: Path) -> GgufWeights | HuggingFaceWeights:
    """Open `path`: a folder is Hugging Face's, a file is GGUF."""
    return HuggingFaceWeights(path) if path.is_dir() else GgufWeights(path)
