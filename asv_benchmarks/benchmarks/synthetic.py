"""Seeded data in the formats rml reads: weight matrices, GGUF files, vocabularies, text.

Written from the GGUF description, without rml and without other packages, so that a benchmark
never times its own reader's writer.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

__all__ = [
    "FORMATS",
    "PLAIN",
    "Matrix",
    "byte_level_vocabulary",
    "mixed_text",
    "random_matrix",
    "sentencepiece_vocabulary",
    "words",
    "write_gguf",
    "write_model",
]

ALIGNMENT = 32


@dataclass(frozen=True)
class Layout:
    """A tensor type: GGUF id, values and bytes of a block, what to put at which byte of a block.

    A float stands for its two bytes as an f16, an int for itself.
    """

    id: int
    length: int
    n_bytes: int
    scales: dict[int, float | int]


# Scales are such that a weight is of the order of 0.02, minimums such that the mean is about 0:
# else all rows of a product would be nearly equal. All other bytes of a block may be anything.
FORMATS = {
    "F32": Layout(0, 1, 4, {}),
    "F16": Layout(1, 1, 2, {}),
    "BF16": Layout(30, 1, 2, {}),
    "F64": Layout(28, 1, 8, {}),
    "Q8_0": Layout(8, 32, 34, {0: 3e-4}),
    "Q4_0": Layout(2, 32, 18, {0: 4e-3}),
    "Q4_1": Layout(3, 32, 20, {0: 4e-3, 2: -3e-2}),
    "Q5_0": Layout(6, 32, 22, {0: 2e-3}),
    "Q5_1": Layout(7, 32, 24, {0: 2e-3, 2: -3.1e-2}),
    "Q2_K": Layout(10, 256, 84, {80: 1e-3, 82: 1.5e-3}),
    "Q3_K": Layout(11, 256, 110, {108: 3e-4}),
    "Q4_K": Layout(12, 256, 144, {0: 1e-4, 2: 7.5e-4}),
    "Q5_K": Layout(13, 256, 176, {0: 6e-5, 2: 9.3e-4}),
    "Q6_K": Layout(14, 256, 210, {208: 3e-5}),
    "IQ1_S": Layout(19, 256, 50, {0: 2.8e-3}),
    "IQ1_M": Layout(29, 256, 56, {}),  # see _iq1_m_scale
    "IQ2_XXS": Layout(16, 256, 66, {0: 3.7e-4}),
    "IQ2_XS": Layout(17, 256, 74, {0: 3.6e-4}),
    "IQ2_S": Layout(22, 256, 82, {0: 3.5e-4}),
    "IQ3_XXS": Layout(18, 256, 98, {0: 1.4e-4}),
    "IQ3_S": Layout(21, 256, 110, {0: 1.4e-4}),
    "IQ4_NL": Layout(20, 32, 18, {0: 3e-4}),
    "IQ4_XS": Layout(23, 256, 136, {0: 3e-5}),
    "TQ1_0": Layout(34, 256, 54, {52: 2.4e-2}),
    "TQ2_0": Layout(35, 256, 66, {64: 1.6e-2}),
    "MXFP4": Layout(39, 32, 17, {0: 120}),  # an exponent: 2^-8
    "NVFP4": Layout(40, 64, 36, dict.fromkeys(range(4), 4)),  # four small floats: 2^-8
    "Q1_0": Layout(41, 128, 18, {0: 2e-2}),
    "Q2_0": Layout(42, 64, 18, {0: 1.6e-2}),
}
PLAIN = ("F32", "F16", "BF16", "F64")


@dataclass(frozen=True)
class Matrix:
    """A weight matrix, as rml's kernels take it."""

    type: str
    rows: int
    cols: int
    data: np.ndarray


def random_matrix(rng: np.random.Generator, format_name: str, rows: int, cols: int) -> Matrix:
    """Make a matrix of random weights; quantized blocks are random codes."""
    layout = FORMATS[format_name]
    if format_name in PLAIN:
        values = (rng.standard_normal((rows, cols), np.float32) * np.float32(0.02)).ravel()
        if format_name == "F16":
            values = values.astype(np.float16)
        elif format_name == "BF16":
            values = (values.view(np.uint32) >> 16).astype(np.uint16)
        elif format_name == "F64":
            values = values.astype(np.float64)
        return Matrix(format_name, rows, cols, values.view(np.uint8))
    shape = (rows * cols // layout.length, layout.n_bytes)
    blocks = rng.integers(0, 256, shape, dtype=np.uint8)
    for offset, value in layout.scales.items():
        if isinstance(value, int):
            blocks[:, offset] = value
        else:
            blocks[:, offset : offset + 2] = np.array([value], np.float16).view(np.uint8)
    if format_name == "IQ1_M":
        _iq1_m_scale(blocks, 2.8e-3)
    return Matrix(format_name, rows, cols, blocks.ravel())


def _iq1_m_scale(blocks: np.ndarray, value: float) -> None:
    """Put an f16 where IQ1_M has it: four bits each in the upper half of bytes 49, 51, 53, 55."""
    bits = int(np.array([value], np.float16).view(np.uint16)[0])
    for i in range(4):
        byte = blocks[:, 49 + 2 * i]
        byte &= 15
        byte |= (bits >> 4 * i & 15) << 4


def words(rng: np.random.Generator, n: int) -> list[str]:
    """Make n different words of two to nine letters."""
    letters = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))
    common = 1.0 / np.arange(1, len(letters) + 1)
    found: dict[str, None] = {}
    while len(found) < n:
        size = int(rng.integers(2, 10))
        found["".join(rng.choice(letters, size, p=common / common.sum()))] = None
    return list(found)


# GPT-2's characters for bytes: visible Latin-1 ones stand for themselves.
VISIBLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
BYTES = [*map(chr, VISIBLE), *(chr(256 + i) for i in range(256 - len(VISIBLE)))]
END = "<|end|>"


def byte_level_vocabulary(n_tokens: int) -> tuple[dict[str, Any], list[str]]:
    """Make a byte-level BPE vocabulary whose merges build words letter by letter.

    Returns
    -------
    metadata : dict
        GGUF keys of a file with this tokenizer.
    known : list of str
        Words that are one token each with a space before them.
    """
    tokens = dict.fromkeys([END, *BYTES])
    merges: list[str] = []
    known = []
    rng = np.random.default_rng(0)
    while len(tokens) < n_tokens:
        for word in words(rng, n_tokens // 16):
            left = "Ġ"
            for letter in word:
                if left + letter not in tokens and len(tokens) < n_tokens:
                    merges.append(f"{left} {letter}")
                    tokens[left + letter] = None
                left += letter
            if left in tokens:
                known.append(word)
    metadata = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": list(tokens),
        "tokenizer.ggml.token_type": [3] + [1] * (n_tokens - 1),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": 0,
    }
    return metadata, known


def sentencepiece_vocabulary(n_tokens: int) -> dict[str, Any]:
    """Make a vocabulary with scores whose words grow letter by letter, with all bytes.

    Returns
    -------
    dict
        GGUF keys of a file with this tokenizer. No space is put before a text.
    """
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens = dict.fromkeys([*special, "▁", *map(chr, range(0x21, 0x7F))])
    rng = np.random.default_rng(0)
    while len(tokens) < n_tokens:
        for word in words(rng, n_tokens // 16):
            for end in range(1, len(word) + 1):
                if len(tokens) < n_tokens:
                    tokens[f"▁{word[:end]}"] = None
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": list(tokens),
        "tokenizer.ggml.scores": [-float(n) for n in range(n_tokens)],
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * (n_tokens - len(special)),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_space_prefix": False,
    }


def mixed_text(n_bytes: int) -> str:
    """Make text of words, code, Chinese characters and emoji, in turns of a few hundred bytes."""
    rng = np.random.default_rng(2)
    known = words(rng, 2000)
    emoji = ["🙂", "🔥", "🦙", "👩\u200d💻", "🇩🇪", "❤\ufe0f", " "]

    def prose(n: int) -> str:
        chosen = (rng.zipf(1.3, n) - 1) % len(known)
        return " ".join(known[i] for i in chosen).capitalize() + ".\n"

    def code(n: int) -> str:
        names = [known[i] for i in rng.integers(0, len(known), n)]
        return "".join(f"    if {x}_{i} != {i * 37}:\n        return {x}['{x}']\n"
                       for i, x in enumerate(names))  # fmt: skip

    def chinese(n: int) -> str:
        return "".join(map(chr, rng.integers(0x4E00, 0x4E00 + 3000, n))) + "。\n"

    parts: list[str] = []
    size = 0
    while size < n_bytes:
        pictures = "".join(rng.choice(emoji, 10))
        parts += [prose(80), code(7), chinese(60), pictures, "\n"]
        size += sum(len(part.encode()) for part in parts[-5:])
    return "".join(parts).encode()[:n_bytes].decode("utf-8", "ignore")


def write_gguf(path: Path, metadata: dict[str, Any], tensors: Iterable[tuple[str, Matrix]]) -> None:
    """Write a GGUF file, version 3.

    Parameters
    ----------
    path : Path
        The file.
    metadata : dict
        int becomes uint32, float float32; a list is an array of its first element's type (int32,
        float32 or string).
    tensors : iterable of (name, Matrix)
        A matrix of one row is written as a vector.
    """
    tensors = list(tensors)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(_string(key) + _value(value) for key, value in metadata.items())
    offset = 0
    for name, matrix in tensors:
        shape = (matrix.cols,) if matrix.rows == 1 else (matrix.cols, matrix.rows)
        head += _string(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        head += struct.pack("<IQ", FORMATS[matrix.type].id, offset)
        offset += _padded(matrix.data.nbytes)
    with path.open("wb") as file:
        file.write(head.ljust(_padded(len(head)), b"\0"))
        for _, matrix in tensors:
            file.write(matrix.data.tobytes().ljust(_padded(matrix.data.nbytes), b"\0"))


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value: Any) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _string(value)
    head = struct.pack("<I", 9)
    if isinstance(value[0], str):
        return head + struct.pack("<IQ", 8, len(value)) + b"".join(map(_string, value))
    kind, dtype = (5, "<i4") if isinstance(value[0], int) else (6, "<f4")
    return head + struct.pack("<IQ", kind, len(value)) + np.array(value, dtype).tobytes()


def write_model(
    path: Path,
    format_name: str,
    *,
    n_layers: int,
    d_model: int,
    d_ffn: int,
    n_heads: int,
    n_kv_heads: int,
    n_vocab: int,
) -> None:
    """Write a Llama of random weights, every matrix in one format."""
    rng = np.random.default_rng(1)
    kv_rows = n_kv_heads * (d_model // n_heads)
    metadata = {
        "general.architecture": "llama",
        "llama.block_count": n_layers,
        "llama.context_length": 4096,
        "llama.embedding_length": d_model,
        "llama.feed_forward_length": d_ffn,
        "llama.attention.head_count": n_heads,
        "llama.attention.head_count_kv": n_kv_heads,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "llama.rope.dimension_count": d_model // n_heads,
        "llama.vocab_size": n_vocab,
    }
    ones = Matrix("F32", 1, d_model, np.ones(d_model, np.float32).view(np.uint8))

    def matrix(rows: int, cols: int) -> Matrix:
        return random_matrix(rng, format_name, rows, cols)

    tensors = [
        ("token_embd.weight", matrix(n_vocab, d_model)),
        ("output.weight", matrix(n_vocab, d_model)),
        ("output_norm.weight", ones),
    ]
    for i in range(n_layers):
        tensors += [
            (f"blk.{i}.attn_norm.weight", ones),
            (f"blk.{i}.attn_q.weight", matrix(d_model, d_model)),
            (f"blk.{i}.attn_k.weight", matrix(kv_rows, d_model)),
            (f"blk.{i}.attn_v.weight", matrix(kv_rows, d_model)),
            (f"blk.{i}.attn_output.weight", matrix(d_model, d_model)),
            (f"blk.{i}.ffn_norm.weight", ones),
            (f"blk.{i}.ffn_gate.weight", matrix(d_ffn, d_model)),
            (f"blk.{i}.ffn_up.weight", matrix(d_ffn, d_model)),
            (f"blk.{i}.ffn_down.weight", matrix(d_model, d_ffn)),
        ]
    write_gguf(path, metadata, tensors)
