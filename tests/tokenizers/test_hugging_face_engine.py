"""Real vocabularies: ids of random text against Hugging Face's engine, and the way back."""

import functools

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers

from rml.files import open_checkpoint


def split(pattern):
    return pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")


ENGINES = {
    "gpt-2": [pre_tokenizers.ByteLevel(add_prefix_space=False)],
    "mpt": [pre_tokenizers.ByteLevel(add_prefix_space=False)],
    "smollm2": [
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
    ],
    "falcon": [
        pre_tokenizers.Punctuation("contiguous"),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        split("[0-9][0-9][0-9]"),
    ],
    "qwen2": [
        split(
            "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}"
            "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
        ),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ],
}


@pytest.fixture(scope="session")
def engine(path_of):
    """Function: name of a vocabulary -> the same in Hugging Face's engine."""

    @functools.cache
    def build(name):
        metadata = open_checkpoint(path_of(name)).metadata
        texts = list(metadata["tokenizer.ggml.tokens"])
        kinds = metadata["tokenizer.ggml.token_type"].tolist()
        vocab = {text: i for i, text in enumerate(texts)}
        if name == "llama-spm":
            built = tokenizers.Tokenizer(
                models.BPE(
                    vocab, scored_merges(vocab, metadata["tokenizer.ggml.scores"].tolist(), kinds),
                    unk_token="<unk>", fuse_unk=True, byte_fallback=True,
                )
            )  # fmt: skip
            built.normalizer = normalizers.Sequence(
                [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
            )
        else:
            merges = [tuple(line.split(" ")) for line in metadata["tokenizer.ggml.merges"]]
            built = tokenizers.Tokenizer(models.BPE(vocab, merges))
            built.pre_tokenizer = pre_tokenizers.Sequence(ENGINES[name])
            built.decoder = decoders.ByteLevel()
        built.add_tokens(
            [
                tokenizers.AddedToken(texts[i], normalized=False, special=False)
                for i in range(len(texts)) if kinds[i] == 4
            ]
        )  # fmt: skip
        return built

    return build


def scored_merges(vocab, scores, kinds):
    """Every way to put an ordinary token together of two, best score first."""
    merges = [
        (-scores[i], vocab[text[:n]], vocab[text[n:]], text[:n], text[n:])
        for text, i in vocab.items() if kinds[i] == 1
        for n in range(1, len(text))
        if text[:n] in vocab and text[n:] in vocab
    ]  # fmt: skip
    return [(left, right) for *_, left, right in sorted(merges)]


SNIPPETS = st.sampled_from(
    ["hello", " world", "It's", "DON'T", "we'll", " ", "  ", "\n", "\n\n", "\t", "\r\n", "\u00a0",
     "\u3000", "\u200b", "12345", "3.14", "٣٤", "½", "Ⅷ", "x²", "é", "e\u0301", "你好", "안녕",
     "ไทย",
     "🦙", "👩\u200d👩", "🇺🇦", "...", "!?", "_", "<|x|>", "f(x):\n    return x", "http://a.b/?d=1",
     "'", "\"", "'S", "ſ", "K", "\u2581"]
)  # fmt: skip
OLD = st.characters(exclude_categories=("Cs", "Co", "Cn"), max_codepoint=0x2FFF)
MIXED = st.one_of(st.lists(SNIPPETS, max_size=10).map("".join), st.text(OLD, max_size=20))


@pytest.mark.parametrize("name", [*ENGINES, "llama-spm"])
@settings(max_examples=60, deadline=None)
@given(text=MIXED)
def test_ids_are_those_of_hugging_face(real, engine, name, text):
    if name == "llama-spm":
        text = text.replace("▁", "")

    assert real(name).encode(text, add_special=False) == engine(name).encode(text).ids


@pytest.mark.parametrize("name", ["gpt-2", "qwen2", "llama-spm", "gemma3"])
@settings(max_examples=40, deadline=None)
@given(text=MIXED, data=st.data())
def test_text_comes_back_whole_and_in_pieces(real, name, text, data):
    tokenizer = real(name)
    text = text.replace("▁", "")
    ids = tokenizer.encode(text)
    whole = tokenizer.decode(ids)

    assert whole == text
    decoder = tokenizer.stream_decoder()
    pieces = []
    while ids:
        n = data.draw(st.integers(1, 4))
        pieces.append(decoder.decode(ids[:n]))
        del ids[:n]
    assert "".join(pieces) + decoder.flush() == text
