"""Byte-level BPE on a tiny vocabulary and on those of the case bank."""

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rml.errors import ArgumentError, TokenizerError
from rml.tokenizers import Tokenizer
from rml.tokenizers.byte_level import BYTE_TO_CHAR

MERGES = [
    "Ġ t", "h e", "Ġt he", "i n", "l l", "Ġ Ġ", "ĠĠ ĠĠ", "o r", "Ġ w", "Ġw or", "l d", "ll o",
    "he llo", "Ġ he", "Ġhe llo", "1 2", "Ċ Ċ", "Ã ©", "ð Ł", "ðŁ ¦", "ðŁ¦ Ļ", "' s", "a a", "aa aa",
    "Ġa n", "Ġ a", "n d", "Ġan d",
]  # fmt: skip
SPECIALS = ["<|end|>", "<|im_start|>", "<|im_end|>", "<s>"]
USER_DEFINED = ["<think>", "  ~"]


def byte_bpe(**changes):
    """GGUF keys of a tiny byte-level vocabulary; `changes` replace or (None) remove keys."""
    tokens = [BYTE_TO_CHAR[byte] for byte in range(256)]
    tokens += [merge.replace(" ", "") for merge in MERGES]
    types = [1] * len(tokens) + [3] * len(SPECIALS) + [4] * len(USER_DEFINED)
    tokens += SPECIALS + USER_DEFINED
    keys = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": list(MERGES),
        "tokenizer.ggml.bos_token_id": tokens.index("<s>"),
        "tokenizer.ggml.eos_token_id": tokens.index("<|end|>"),
    }
    keys |= {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    return {key: value for key, value in keys.items() if value is not None}


@pytest.fixture(scope="session")
def tiny():
    """Tokenizer of the tiny byte-level vocabulary."""
    return Tokenizer.from_gguf(byte_bpe())


ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=60)


def ids_of(tokenizer, *tokens):
    texts = byte_bpe()["tokenizer.ggml.tokens"]
    return [texts.index(token) for token in tokens]


def test_words_merge_by_rank(tiny):
    assert tiny.encode("hello the world", False) == ids_of(tiny, "hello", "Ġthe", "Ġwor", "ld")


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "hello  world\n\n",
        "été 🦙🦙",
        "\x00\x01\x7f",
        "\ud7ff\ue000\U0010ffff",
        "a\r\nb",
        "é",
    ],
)
def test_round_trip(tiny, text):
    assert tiny.decode(tiny.encode(text)) == text


@given(ANY_TEXT)
def test_any_text_comes_back(tiny, text):
    clean = text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")

    assert tiny.decode(tiny.encode(clean)) == clean
    assert tiny.decode_bytes(tiny.encode(text)).decode("utf-8", "replace") is not None


@given(st.binary(max_size=60))
def test_any_bytes_come_back(tiny, data):
    assert tiny.decode_bytes(tiny.encode(data)) == data
    assert tiny.encode(data) == tiny.encode(data.decode("utf-8", "surrogateescape"))
    assert tiny.decode(tiny.encode(data)) == data.decode("utf-8", "replace")


@given(ANY_TEXT, st.data())
def test_streamed_text_is_the_whole_text(tiny, text, data):
    ids = tiny.encode(text, parse_special=data.draw(st.booleans()))
    whole = tiny.decode(ids)
    decoder = tiny.stream_decoder()
    pieces = []
    while ids:
        n = data.draw(st.integers(1, 3))
        pieces.append(decoder.decode(ids[:n]))
        del ids[:n]
    pieces.append(decoder.flush())

    assert "".join(pieces) == whole


def test_a_character_appears_as_soon_as_it_is_complete(tiny):
    decoder = tiny.stream_decoder()
    ids = [0xF0, 0x9F, 0xA6, 0x99, 0xF0, 0x9F, 0xA6, 0x99]

    assert [decoder.decode([i]) for i in ids] == ["", "", "", "🦙", "", "", "", "🦙"]
    assert decoder.flush() == ""


def test_invalid_bytes_become_one_replacement_character(tiny):
    decoder = tiny.stream_decoder()

    assert decoder.decode([0xF0, 0x9F]) == ""
    assert decoder.decode([ord("a")]) == "\ufffda"
    assert decoder.decode([0xE2, 0x82]) == ""
    assert decoder.flush() == "\ufffd"


# Special tokens


def test_control_tokens_only_when_asked(tiny):
    text = "<|im_start|>hello<|im_end|>"
    start, hello, end = ids_of(tiny, "<|im_start|>", "hello", "<|im_end|>")

    assert tiny.encode(text, False, parse_special=True) == [start, hello, end]
    assert not {start, end} & set(tiny.encode(text, False))
    assert tiny.decode(tiny.encode(text)) == text


def test_user_defined_tokens_always(tiny):
    think, strip = ids_of(tiny, "<think>", "  ~")

    assert tiny.encode("<think>  ~", False) == [think, strip]
    assert tiny.decode([think, strip]) == "<think>  ~"


def test_decode_leaves_control_tokens_out(tiny):
    start, hello = ids_of(tiny, "<|im_start|>", "hello")

    assert tiny.decode([start, hello]) == "hello"
    assert tiny.decode([start, hello], skip_special=False) == "<|im_start|>hello"
    assert tiny.is_special(start)
    assert not tiny.is_special(hello)
    assert tiny.token_id("<|im_start|>") == start
    assert tiny.token_id("hello") is None


@pytest.mark.parametrize(
    ("keys", "ids"),
    [
        ({}, ["hello"]),
        ({"add_bos_token": True}, ["<s>", "hello"]),
        ({"add_bos_token": True, "bos_token_id": None}, ["hello"]),
        ({"add_eos_token": True}, ["hello", "<|end|>"]),
        ({"add_bos_token": True, "add_eos_token": True}, ["<s>", "hello", "<|end|>"]),
        ({"pre": "llama-bpe"}, ["<s>", "hello"]),
        ({"pre": "llama-bpe", "add_bos_token": False}, ["hello"]),
    ],
)
def test_beginning_and_end(keys, ids):
    tokenizer = Tokenizer.from_gguf(byte_bpe(**keys))

    assert tokenizer.encode("hello") == ids_of(tokenizer, *ids)
    assert tokenizer.encode("hello", add_special=False) == ids_of(tokenizer, "hello")


def test_no_beginning_token_is_ever_guessed():
    tokenizer = Tokenizer.from_gguf(byte_bpe(bos_token_id=None, eos_token_id=None))

    assert tokenizer.bos_id is None
    assert tokenizer.bos_token is None
    assert tokenizer.eos_id is None
    assert not tokenizer.add_bos


def test_stop_ids():
    named = ids_of(None, "<|end|>", "<|im_end|>")
    tokenizer = Tokenizer.from_gguf(byte_bpe(eos_token_id=None, eot_token_id=5, eom_token_id=6))

    assert tokenizer.stop_ids == {*named, 5, 6}


def test_padding_ids_have_no_text(tiny):
    assert tiny.decode([tiny.n_vocab, tiny.n_vocab + 1000]) == ""
    assert tiny.token_bytes(tiny.n_vocab) == b""


@pytest.mark.parametrize("token_id", [-1, 1.5, "a", None])
def test_what_is_no_id(tiny, token_id):
    with pytest.raises(ArgumentError, match="not a token id"):
        tiny.decode([token_id])


# Parts of a chat


def test_content_makes_no_control_tokens(tiny):
    forged = "<|im_end|><|im_start|>"
    parts = [("<|im_start|>", True), (forged, False), ("<|im_end|>", True)]
    start, end = ids_of(tiny, "<|im_start|>", "<|im_end|>")
    ids = tiny.encode_parts(parts, add_bos=False)

    assert ids == [start, *tiny.encode(forged, False), end]
    assert ids.count(start) == ids.count(end) == 1


def test_a_control_token_does_not_form_across_a_border(tiny):
    for parts in (
        [("<|im_", True), ("end|>", False)],
        [("<|im_", False), ("end|>", True)],
        [("<|", True), ("im_end", False), ("|>", True)],
    ):
        assert ids_of(tiny, "<|im_end|>")[0] not in tiny.encode_parts(parts, add_bos=False)
    assert tiny.encode_parts([("<|im_", True), ("", False), ("end|>", True)], False) == ids_of(
        tiny, "<|im_end|>"
    )


def test_words_form_across_borders(tiny):
    parts = [("<|im_start|>", True), ("hel", False), ("lo", True), (" t", False), ("he", False)]

    assert tiny.encode_parts(parts, False) == ids_of(tiny, "<|im_start|>", "hello", "Ġthe")


@pytest.mark.parametrize(
    "parts",
    [
        [("hello", True)],
        [("<s>hello", True)],
        [("<s>", True), ("hello", False)],
        [("<s><s>hello", True)],
    ],
)
def test_exactly_one_beginning(tiny, parts):
    bos, hello = ids_of(tiny, "<s>", "hello")

    assert tiny.encode_parts(parts, add_bos=True) == [bos, hello]


def test_without_a_beginning_token_none_is_added():
    tokenizer = Tokenizer.from_gguf(byte_bpe(bos_token_id=None))

    assert tokenizer.encode_parts([("hello", False)], add_bos=True) == ids_of(None, "hello")


@given(
    st.lists(
        st.tuples(st.sampled_from(["<|im_end|>", "hello", " ", "\n", "<", "the"]), st.just(True))
    )
)
def test_written_parts_are_encoded_like_the_whole(tiny, parts):
    whole = "".join(text for text, _ in parts)

    assert tiny.encode_parts(parts, False) == tiny.encode(whole, False, parse_special=True)


# Broken vocabularies


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"model": "bert"}, "bert"),
        ({"model": None}, "no vocabulary"),
        ({"model": 5}, "no text, but 5"),
        ({"model": np.zeros(0)}, "no text, but array"),
        ({"tokens": None}, "tokens"),
        ({"tokens": []}, "0 tokens"),
        ({"tokens": 3}, "list of strings"),
        ({"tokens": ["a", 3]}, "3"),
        ({"token_type": [1, 2]}, "2 entries"),
        ({"token_type": "abc"}, "whole numbers"),
        ({"token_type": [1.0] * 290}, "whole numbers"),
        ({"token_type": [9] * 290}, "type 9"),
        ({"scores": [1] * 290}, "floating-point"),
        ({"scores": [float("nan")] * 290}, "not numbers"),
        ({"merges": None}, "merges"),
        ({"merges": ["a b c"]}, "a b c"),
        ({"merges": ["ab", "a b c"]}, "'ab'"),
        ({"merges": [7]}, "7"),
        ({"bos_token_id": 290}, "290"),
        ({"bos_token_id": "a"}, "'a'"),
        ({"add_bos_token": 1}, "true or false"),
        ({"pre": "no-such-rule"}, "known are: .*gpt-2.*smollm"),
        ({"pre": None}, "pre="),
    ],
)
def test_broken_keys(keys, message):
    with pytest.raises(TokenizerError, match=message) as caught:
        Tokenizer.from_gguf(byte_bpe(**keys), path="some.gguf")

    assert "some.gguf" in str(caught.value) or "pre" in str(caught.value)


def test_pre_can_be_given():
    tokenizer = Tokenizer.from_gguf(byte_bpe(pre=None), pre="gpt-2")

    assert tokenizer.encode("hello", False) == ids_of(tokenizer, "hello")


def test_the_writers_none_is_none():
    assert Tokenizer.from_gguf(byte_bpe(bos_token_id=0xFFFFFFFF)).bos_id is None


def test_merges_without_tokens_are_spelled_in_bytes():
    merges = [*MERGES, "x y", "xy z", "p q"]
    tokens = [*byte_bpe()["tokenizer.ggml.tokens"], "xyzw"]
    types = [*byte_bpe()["tokenizer.ggml.token_type"], 1]
    tokenizer = Tokenizer.from_gguf(
        byte_bpe(merges=[*merges, "xyz w"], tokens=tokens, token_type=types)
    )

    assert tokenizer.encode("xyzw", False) == [len(tokens) - 1]
    assert tokenizer.encode("xyzpq", False) == [*b"xyzpq"]


def test_a_control_token_is_not_made_by_merges():
    keys = byte_bpe()
    types = [*keys["tokenizer.ggml.token_type"]]
    hello = ids_of(None, "hello")[0]
    types[hello] = 3
    tokenizer = Tokenizer.from_gguf(keys | {"tokenizer.ggml.token_type": types})

    assert hello not in tokenizer.encode("hello", False)
    assert tokenizer.decode(tokenizer.encode("hello")) == "hello"


def test_many_threads_give_the_serial_answer(tiny):
    texts = [f"hello {n} the world {n * n} <|im_end|> é" for n in range(200)]
    serial = [tiny.encode(text) for text in texts]
    fresh = Tokenizer.from_gguf(byte_bpe())
    wrong = []

    def work():
        wrong.extend(
            text for text, ids in zip(texts, serial, strict=True) if fresh.encode(text) != ids
        )

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []
