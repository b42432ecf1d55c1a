"""Text to ids and back: seconds for 100,000 characters, byte-level BPE with 16,000 merges."""

from pathlib import Path

import numpy as np

from benchmarks.synthetic import words, write_gguf

N_WORDS = 4000
N_MERGES = 16_000
N_CHARACTERS = 100_000

# GPT-2's characters for bytes: visible Latin-1 ones stand for themselves.
VISIBLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
BYTES = [*map(chr, VISIBLE), *(chr(256 + i) for i in range(256 - len(VISIBLE)))]


def _vocabulary() -> dict:
    """Merges that build each word letter by letter, as far as `N_MERGES` go."""
    tokens = dict.fromkeys([*BYTES, "<|end|>"])
    merges = []
    for word in words(np.random.default_rng(0), N_WORDS):
        left = "Ġ"
        for letter in word:
            if left + letter not in tokens and len(merges) < N_MERGES:
                merges.append(f"{left} {letter}")
                tokens[left + letter] = None
            if left + letter in tokens:
                left += letter
    kinds = [3 if token == "<|end|>" else 1 for token in tokens]
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": list(tokens),
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": kinds.index(3),
    }


class Tokenize:
    """Words in the frequencies of a natural text."""

    def setup_cache(self):
        write_gguf(Path("bpe.gguf"), _vocabulary(), [])

    def setup(self):
        from rml import load_tokenizer

        rng = np.random.default_rng(1)
        vocabulary = words(np.random.default_rng(0), N_WORDS)
        chosen = np.minimum(rng.zipf(1.2, N_CHARACTERS // 4), N_WORDS) - 1
        self.text = " ".join(vocabulary[i] for i in chosen)[:N_CHARACTERS]
        self.tokenizer = load_tokenizer(Path("bpe.gguf"))
        self.ids = self.tokenizer.encode(self.text)
        if self.tokenizer.decode(self.ids) != self.text or len(self.ids) > N_CHARACTERS // 2:
            raise AssertionError("the text did not survive, or hardly a merge was applied")

    def time_encode(self):
        self.tokenizer.encode(self.text)

    def time_decode(self):
        self.tokenizer.decode(self.ids)

    def time_stream_decode(self):
        decoder = self.tokenizer.stream_decoder()
        for token in self.ids[:1000]:
            decoder.decode([token])
        decoder.flush()
