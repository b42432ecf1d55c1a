"""SentencePiece vocabularies with scores, on a small one made here."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rml._kernels import spm_merge
from rml._kernels.merge_tables import TokenTable, code_points
from rml.errors import TokenizerError
from rml.tokenizers import Tokenizer
from rml.tokenizers.sentencepiece import WordCutter

PIECES = ["▁", "h", "e", "l", "o", "he", "ll", "hell", "hello", "▁hello", "▁he", "a", "▁a", "▁▁",
          "b", "ab", "ba", "é", ">", ">▁", "aa", "lo"]  # fmt: skip
CONTROL = ["<unk>", "<s>", "</s>", "[INST]"]
USER_DEFINED = ["<think>", "\n\n"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def spm(**changes):
    """GGUF keys of a tiny vocabulary; `changes` replace or (None) remove keys."""
    tokens = CONTROL + BYTES + USER_DEFINED + PIECES
    types = [2, 3, 3, 3] + [6] * 256 + [4] * len(USER_DEFINED) + [1] * len(PIECES)
    scores = [0.0] * (len(tokens) - len(PIECES)) + [-float(n // 2) for n in range(len(PIECES))]
    keys = {
        "model": "llama",
        "tokens": tokens,
        "token_type": np.array(types, np.int32),
        "scores": np.array(scores, np.float32),
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    } | changes
    return {f"tokenizer.ggml.{k}": v for k, v in keys.items() if v is not None}


@pytest.fixture(scope="module")
def tiny():
    return Tokenizer.from_gguf(spm())


@pytest.fixture(scope="module")
def bare():
    return Tokenizer.from_gguf(spm(add_space_prefix=False))


def ids_of(*tokens):
    known = spm()["tokenizer.ggml.tokens"]
    return [known.index(token) for token in tokens]


def pieces_of(text, table, borders):
    points = code_points(text)
    ids = np.empty(len(points), np.int32)
    spm_merge(points, np.array(borders, np.int64), table, ids)
    return ids.tolist()


@given(
    st.text("abc▁", max_size=30),
    st.dictionaries(st.text("abc▁", min_size=1, max_size=4), st.integers(-3, 0), max_size=20),
)
def test_cutting_into_words_changes_nothing(text, pieces):
    vocab = {piece: i for i, piece in enumerate(pieces)}
    table = TokenTable(vocab, np.array([*pieces.values()], np.float32))
    cutter = WordCutter(vocab)
    borders = cutter.borders(code_points(text))

    assert "".join(cutter.split(text)) == text
    assert pieces_of(text, table, borders) == pieces_of(text, table, [0, len(text)])


def test_words_are_cut_where_no_token_reaches():
    assert WordCutter(["▁a", "▁▁", "x"]).split("▁a▁▁b▁") == ["▁a", "▁▁b", "▁"]
    assert WordCutter(["▁a", ">▁"]).split("▁a>▁b▁c") == ["▁a>▁b", "▁c"]
    assert WordCutter([f"{chr(n)}▁" for n in range(0x4E00, 0x4F00)]).split("a▁b") == ["a", "▁b"]
    assert WordCutter([]).split("") == [""]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", []),
        ("hello", ["▁hello"]),
        (" hello", ["▁", "▁hello"]),
        (" ", ["▁▁"]),
        ("ab", ["▁a", "b"]),
        ("é", ["▁", "é"]),
        ("ü", ["▁", "<0xC3>", "<0xBC>"]),
        ("\n", ["▁", "<0x0A>"]),
        ("\n\n", ["\n\n"]),
        ("\n\nhello", ["\n\n", "▁hello"]),
        ("<think>hello", ["<think>", "▁hello"]),
    ],
)
def test_space_before_text(tiny, text, tokens):
    ids = tiny.encode(text, add_special=False)

    assert ids == ids_of(*tokens)
    assert tiny.encode(text) == [1, *ids]
    assert tiny.decode(ids) == text


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("hello", ["hello"]), (" hello", ["▁hello"]), (" ", ["▁"]), ("<think> a", ["<think>", "▁a"])],
)
def test_no_space_before_text_where_the_file_says_so(bare, text, tokens):
    assert bare.encode(text, add_special=False) == ids_of(*tokens)
    assert bare.decode(ids_of(*tokens)) == text


def test_text_after_a_control_token_gets_a_space_too(tiny):
    ids = tiny.encode("hello</s>hello</s> hello", False, parse_special=True)

    assert ids == ids_of("▁hello", "</s>", "▁hello", "</s>", "▁", "▁hello")
    assert tiny.decode(ids, skip_special=False) == "hello</s>hello</s> hello"


@pytest.mark.parametrize("text", ["<s>", "</s>", "<unk>", "[INST]", "<0x0A>", "<0xFF>"])
def test_text_becomes_no_control_or_byte_token(tiny, text):
    ids = tiny.encode(text, add_special=False)

    assert not set(ids) & set(ids_of(*CONTROL, "<0x0A>", "<0xFF>"))
    assert tiny.decode(ids) == text


@given(st.text(max_size=40), st.booleans())
def test_any_text_comes_back(tiny, bare, text, prefix):
    assume("▁" not in text)
    tokenizer = tiny if prefix else bare
    decoder = tokenizer.stream_decoder()
    ids = tokenizer.encode(text)

    assert tokenizer.decode(ids) == text
    assert "".join(decoder.decode([i]) for i in ids) + decoder.flush() == text


@given(st.binary(max_size=40))
def test_any_bytes_come_back(bare, data):
    assume("▁".encode() not in data)

    assert bare.decode_bytes(bare.encode(data)) == data


def test_the_other_spelling_of_a_space(tiny):
    assert tiny.encode("a▁b") == tiny.encode("a b")
    assert tiny.decode(tiny.encode("▁▁▁")) == "   "


@pytest.mark.parametrize(
    ("previous", "text"), [(None, "hello"), (1, "hello"), (ids_of("a")[0], " hello")]
)
def test_a_stream_knows_what_stood_before_it(tiny, previous, text):
    decoder = tiny.stream_decoder(previous=previous)

    assert decoder.decode(ids_of("▁hello")) == text


def test_defaults_of_the_kind():
    tokenizer = Tokenizer.from_gguf(spm())

    assert tokenizer.add_bos
    assert not tokenizer.add_eos
    assert not Tokenizer.from_gguf(spm(bos_token_id=None)).add_bos
    assert not Tokenizer.from_gguf(spm(add_bos_token=False)).add_bos
    assert tokenizer.stop_ids == {2}


def test_unknown_characters_without_byte_tokens():
    types = [2, 3, 3, 3] + [5] * 256 + [4] * len(USER_DEFINED) + [1] * len(PIECES)
    tokenizer = Tokenizer.from_gguf(spm(token_type=np.array(types)))

    assert tokenizer.encode("aüü", False) == ids_of("▁a", "<unk>", "<unk>")
    assert tokenizer.decode(ids_of("▁a", "<unk>")) == "a"
    assert "256 bytes" in " ".join(tokenizer.check())


@pytest.mark.parametrize("text", ["<0x-1>", "<0x0a>", "<0xA>", "<0x100>", "x", "<0x0A>\n"])
def test_byte_tokens_are_checked(text):
    tokens = spm()["tokenizer.ggml.tokens"]
    tokens[4] = text

    with pytest.raises(TokenizerError, match="byte"):
        Tokenizer.from_gguf(spm(tokens=tokens))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scores": None}, "scores"),
        ({"scores": np.zeros(3, np.float32)}, "3 entries"),
        ({"scores": ["a"] * 284}, "floating-point"),
        ({"add_space_prefix": "yes"}, "true or false"),
    ],
)
def test_broken_keys(changes, message):
    with pytest.raises(TokenizerError, match=message):
        Tokenizer.from_gguf(spm(**changes))


def phi3():
    """As much of Phi-3's vocabulary as tells it: its control tokens."""
    tokens = spm()["tokenizer.ggml.tokens"]
    types = spm()["tokenizer.ggml.token_type"].tolist()
    fill = 32000 - len(tokens)
    tokens += [f"filler{n}" for n in range(fill)]
    names = ["endoftext", "assistant", "placeholder1", "placeholder2", "placeholder3",
             "placeholder4", "system", "end", "placeholder5", "placeholder6", "user"]  # fmt: skip
    tokens += [f"<|{name}|>" for name in names]
    types += [1] * fill + [3] * len(names)
    scores = np.zeros(len(tokens), np.float32)
    return Tokenizer.from_gguf(spm(tokens=tokens, token_type=np.array(types), scores=scores))


def test_control_tokens_of_phi3_swallow_white_space():
    tokenizer = phi3()
    hello = tokenizer.encode("hello", add_special=False)
    ids = tokenizer.encode("<|user|>\nhello<|end|>\n<|assistant|>\n", False, parse_special=True)

    assert ids == [32010, *hello, 32007, 32001]
    assert tokenizer.encode("<|endoftext|>\n", False, True) != [32000]
