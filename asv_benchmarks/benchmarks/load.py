"""Opening files and importing the package: seconds, and memory at the peak."""

from pathlib import Path

import numpy as np

from benchmarks.synthetic import byte_level_vocabulary, random_matrix, write_gguf

N_TOKENS = 262_144  # as many as Gemma 3 has


class Open:
    """A GGUF file with 262,144 tokens in its vocabulary and 71 MB of weights."""

    timeout = 120

    def setup_cache(self):
        weights = random_matrix(np.random.default_rng(0), "Q8_0", 1024, 65536)
        metadata, _ = byte_level_vocabulary(N_TOKENS)
        write_gguf(Path("vocabulary.gguf"), metadata, [("token_embd.weight", weights)])

    def open(self):
        from rml.files import open_checkpoint

        with open_checkpoint(Path("vocabulary.gguf")) as checkpoint:
            tokens = checkpoint.metadata["tokenizer.ggml.tokens"]
            if len(tokens) != N_TOKENS or tokens[0] != "<|end|>":
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


def timeraw_import_rml_load():
    """Import it as far as `rml.load` needs."""
    return "import rml; rml.load"


def timeraw_import_numpy():
    """Import numpy alone: the part of the above that is not rml's."""
    return "import numpy"
