"""Opening files and importing the package: seconds, and memory at the peak."""

from pathlib import Path

import numpy as np

from benchmarks.synthetic import random_matrix, write_gguf

N_TOKENS = 262_144  # as many as Gemma 3 has
N_BYTES = 256


def _vocabulary() -> dict:
    """GGUF keys of a SentencePiece-like vocabulary."""
    rng = np.random.default_rng(0)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    pieces = dict.fromkeys(["<pad>", "<eos>", "<bos>", "<unk>"])
    pieces |= dict.fromkeys(f"<0x{byte:02X}>" for byte in range(N_BYTES))
    while len(pieces) < N_TOKENS:
        text = "".join(letters[rng.integers(0, 26, 4 * N_TOKENS)])
        sizes = rng.integers(1, 9, N_TOKENS // 2)
        starts = np.cumsum(sizes) - sizes
        for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
            pieces["▁" * (start % 2) + text[start : start + size]] = None
    tokens = list(pieces)[:N_TOKENS]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [-float(i) for i in range(N_TOKENS)],
        "tokenizer.ggml.token_type": [3] * 3 + [2] + [6] * N_BYTES + [1] * (N_TOKENS - 4 - N_BYTES),
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 3,
    }


class Open:
    """A GGUF file with 262,144 tokens in its vocabulary and 64 MB of weights."""

    timeout = 120

    def setup_cache(self):
        rng = np.random.default_rng(0)
        weights = random_matrix(rng, "Q8_0", 1024, 65536)
        metadata = {"general.architecture": "llama"} | _vocabulary()
        write_gguf(Path("vocabulary.gguf"), metadata, [("token_embd.weight", weights)])

    def open(self):
        from rml.files import open_checkpoint

        with open_checkpoint(Path("vocabulary.gguf")) as checkpoint:
            tokens = checkpoint.metadata["tokenizer.ggml.tokens"]
            if len(tokens) != N_TOKENS or tokens[1] != "<eos>":
                raise AssertionError("the vocabulary was not read right")

    def time_open(self):
        self.open()

    def peakmem_open(self):
        self.open()

    def peakmem_import(self):
        """Memory of the process without a file, to subtract."""
        from rml import files

        return files.__name__

    def time_load_tokenizer(self):
        from rml import load_tokenizer

        if load_tokenizer(Path("vocabulary.gguf")).n_vocab != N_TOKENS:
            raise AssertionError("the tokenizer has another vocabulary")


def timeraw_import_rml():
    """Import the package in a fresh process, interpreter start not counted."""
    return "import rml"


def timeraw_import_numpy():
    """Import numpy alone: the part of the above that is not rml's."""
    return "import numpy"
