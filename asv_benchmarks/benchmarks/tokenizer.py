"""Text to ids and back: seconds for 100,000 characters, a byte-level BPE of 16,384 tokens."""

from pathlib import Path

import numpy as np

from benchmarks.synthetic import byte_level_vocabulary, write_gguf

N_TOKENS = 16_384
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
