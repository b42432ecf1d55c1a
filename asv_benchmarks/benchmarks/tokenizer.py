"""Text to ids and back.

Seconds for 100,000 characters and a byte-level BPE of 16,384 tokens; megabytes a second for mixed
text, and the times of a short prompt and of a long word, with BPE and SentencePiece. Real
vocabularies are measured, too, where ``RML_MODELS_DIR`` names a folder with their files.
"""

import os
from pathlib import Path

import numpy as np

from benchmarks.common import seconds_per_call
from benchmarks.synthetic import (
    byte_level_vocabulary,
    mixed_text,
    sentencepiece_vocabulary,
    write_gguf,
)

N_TOKENS = 16_384
N_SCORED = 262_144  # as many as Gemma 3 has
N_BYTES = 1_000_000
N_PROMPT = 200  # bytes
N_LETTERS = 43_000
REAL = ["smollm2.gguf", "gemma3-270m.gguf"]
N_CHARACTERS = 100_000
N_STREAMED = 1000


class Tokenize:
    """Words in the frequencies of a natural text."""

    def setup_cache(self):
        metadata, known = byte_level_vocabulary(N_TOKENS)
        write_gguf(Path("bpe.gguf"), metadata, [])
        rng = np.random.default_rng(1)
        chosen = (rng.zipf(1.2, N_CHARACTERS // 3) - 1) % len(known)
        return "".join(f" {known[i]}" for i in chosen)[:N_CHARACTERS]

    def setup(self, text):
        from rml import load_tokenizer

        self.tokenizer = load_tokenizer(Path("bpe.gguf"))
        self.ids = self.tokenizer.encode(text)
        if self.tokenizer.decode(self.ids) != text or len(self.ids) > text.count(" ") + 9:
            raise AssertionError("the text did not survive, or its words are not one token each")

    def time_encode(self, text):
        self.tokenizer.encode(text)

    def time_decode(self, text):
        self.tokenizer.decode(self.ids)

    def time_stream_decode(self, text):
        """A thousand tokens, one a call."""
        decoder = self.tokenizer.stream_decoder()
        for token in self.ids[:N_STREAMED]:
            decoder.decode([token])
        decoder.flush()


class Encode:
    """Mixed text (prose, code, Chinese, emoji), a prompt of 200 bytes, 43,000 equal letters."""

    params = [["bpe.gguf", "spm.gguf", *REAL]]
    param_names = ["vocabulary"]
    timeout = 120

    def setup_cache(self):
        write_gguf(Path("bpe.gguf"), _with_runs(byte_level_vocabulary(N_TOKENS)[0]), [])
        write_gguf(Path("spm.gguf"), _with_runs(sentencepiece_vocabulary(N_SCORED)), [])
        return mixed_text(N_BYTES)

    def setup(self, text, vocabulary):
        from rml import load_tokenizer

        folder = Path()
        if vocabulary in REAL:
            folder = Path(os.environ.get("RML_MODELS_DIR", "no-such-folder"))
            if not (folder / vocabulary).exists():
                raise NotImplementedError(f"no {vocabulary} in RML_MODELS_DIR")
        self.tokenizer = load_tokenizer(folder / vocabulary)
        self.prompt = text[:N_PROMPT]
        self.word = "a" * N_LETTERS
        for sample in (text[:20_000], self.prompt, self.word):
            ids = self.tokenizer.encode(sample)
            if self.tokenizer.decode(ids) != sample or len(ids) >= len(sample.encode()):
                raise AssertionError("a text did not survive, or nothing was merged")

    def track_mixed_text(self, text, vocabulary):
        seconds = seconds_per_call(lambda: self.tokenizer.encode(text))
        return round(len(text.encode()) / seconds / 1e6, 2)

    track_mixed_text.unit = "MB/s"

    def time_prompt(self, text, vocabulary):
        self.tokenizer.encode(self.prompt)

    def time_long_word(self, text, vocabulary):
        self.tokenizer.encode(self.word)


def _with_runs(metadata):
    """Add tokens of two and of four letters a."""
    metadata["tokenizer.ggml.tokens"] += ["aa", "aaaa"]
    metadata["tokenizer.ggml.token_type"] += [1, 1]
    if "tokenizer.ggml.merges" in metadata:
        metadata["tokenizer.ggml.merges"] += ["a a", "aa aa"]
    else:
        metadata["tokenizer.ggml.scores"] += [-1e6, -2e6]
    return metadata
