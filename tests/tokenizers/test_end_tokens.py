"""Which tokens of a GGUF file end a generation, and why."""

import pytest

from rml.tokenizers import Tokenizer
from rml.tokenizers.byte_level import BYTE_TO_CHAR
from rml.tokenizers.end_tokens import END_NAMES

BYTES = [BYTE_TO_CHAR[byte] for byte in range(256)]
CONTROL, USER_DEFINED, NORMAL = 3, 4, 1

# Names that llama.cpp counts as ends of generation (src/llama-vocab.cpp), and its names of the
# padding, repository and file tokens of models that fill in code.
LLAMA_CPP = [
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>",
    "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
    "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>",
    "<｜end▁of▁sentence｜>", "[e~[",
    "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]",
    "<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>", "<|file_sep|>",
]  # fmt: skip


def read(*more, merges=(), **keys):
    """Tokenizer of all bytes, and from id 256 on of `more` tokens, each (text, type)."""
    tokens, types = [*BYTES, *(text for text, _ in more)], [NORMAL] * 256 + [t for _, t in more]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": list(merges),
    }
    return Tokenizer.from_gguf(metadata | {f"tokenizer.ggml.{k}": v for k, v in keys.items()})


def pieces(*more, **keys):
    """The same with scores, as a SentencePiece vocabulary."""
    tokens = [f"<0x{byte:02X}>" for byte in range(256)] + [text for text, _ in more]
    types = [6] * 256 + [kind for _, kind in more]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": [-float(i) for i in range(len(tokens))],
    }
    return Tokenizer.from_gguf(metadata | {f"tokenizer.ggml.{k}": v for k, v in keys.items()})


@pytest.mark.parametrize("kind", [CONTROL, USER_DEFINED, NORMAL])
@pytest.mark.parametrize("name", sorted(END_NAMES))
@pytest.mark.parametrize("vocabulary", [read, pieces])
def test_a_name_ends_whatever_its_type(vocabulary, name, kind):
    tokenizer = vocabulary((name, kind))

    assert tokenizer.end_tokens == {256: ("its name",)}
    assert tokenizer.is_special(256)
    assert tokenizer.decode([256]) == ""
    assert tokenizer.decode([256], skip_special=False) == name
    assert tokenizer.token_id(name) == 256
    # Text that others wrote does not become it; what a template writes does.
    assert 256 not in tokenizer.encode(f"a{name}b")
    assert 256 in tokenizer.encode(f"a{name}b", parse_special=True)
    assert 256 in tokenizer.encode_parts([("a", False), (name, True)], add_bos=False)


def test_all_names_of_llama_cpp_are_there():
    assert set(LLAMA_CPP) <= END_NAMES


@pytest.mark.parametrize("key", ["eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep"])
@pytest.mark.parametrize("kind", [CONTROL, USER_DEFINED, NORMAL])
def test_keys_name_ends(key, kind):
    tokenizer = read(("<my end>", kind), ("<other>", USER_DEFINED), **{f"{key}_token_id": 256})

    assert tokenizer.end_tokens == {256: (f"tokenizer.ggml.{key}_token_id",)}
    assert tokenizer.decode([256, 257]) == "<other>"
    assert 256 not in tokenizer.encode("<my end>")


def test_several_reasons_of_one_token():
    tokenizer = read(("<|im_end|>", NORMAL), eos_token_id=256, eot_token_id=256)

    assert tokenizer.end_tokens == {
        256: ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "its name")
    }


@pytest.mark.parametrize("name", ["prefix", "fim_pre", "suffix", "fim_suf", "middle", "fim_mid"])
def test_the_other_tokens_that_fill_in_end_nothing(name):
    tokenizer = read(("<|fim_prefix|>", USER_DEFINED), **{f"{name}_token_id": 256})

    assert tokenizer.stop_ids == frozenset()
    assert tokenizer.encode("<|fim_prefix|>") == [256]


def test_a_key_that_names_text_leaves_it_text():
    """A newline, and a word that merges make."""
    newline = BYTES.index(BYTE_TO_CHAR[10])
    tokenizer = read(("ab", NORMAL), merges=["a b"], eos_token_id=256, eot_token_id=newline)

    assert tokenizer.stop_ids == {256, newline}
    assert tokenizer.encode("ab\n") == [256, newline]
    assert tokenizer.decode([256, newline]) == "ab\n"


def test_names_that_merges_make_are_text():
    """As </s> in Qwen's vocabulary, which was learned from web pages."""
    tokenizer = read(("</s", NORMAL), ("</s>", NORMAL), merges=["</ s", "</s >"])

    assert tokenizer.stop_ids == frozenset()
    assert not tokenizer.is_special(257)
    assert read(("</s>", CONTROL), merges=["</s >"]).stop_ids == {256}


@pytest.mark.parametrize(
    ("names", "ends"),
    [
        (["<|return|>", "<|call|>", "<|end|>"], ["<|return|>", "<|call|>"]),
        (["<|flush|>", "<|calls|>", "<|end|>"], ["<|flush|>", "<|calls|>"]),
        (["<|return|>", "<|end|>"], ["<|return|>", "<|end|>"]),
        (["<|call|>", "<|end|>"], ["<|call|>", "<|end|>"]),
        (["<|tool_response>", "<turn|>", "</s>"], ["<|tool_response>", "<turn|>"]),
        (["<turn|>", "</s>"], ["<turn|>", "</s>"]),
        (["</s>", "</b>", "<eos>"], ["<eos>"]),
    ],
)
@pytest.mark.parametrize("kind", [USER_DEFINED, NORMAL])
def test_names_that_end_nothing_beside_others(names, ends, kind):
    tokenizer = read(*((name, kind) for name in names))

    assert tokenizer.stop_ids == {256 + names.index(name) for name in ends}
    left = next((name for name in names if name not in ends and name in END_NAMES), None)
    if left is not None:
        assert not tokenizer.is_special(256 + names.index(left))


def test_the_end_of_a_message_by_a_key_beside_those_of_a_turn():
    harmony = [(name, CONTROL) for name in ("<|return|>", "<|call|>", "<|end|>")]

    assert read(*harmony, eot_token_id=258).stop_ids == {256, 257}
    assert read(*harmony, eos_token_id=258).stop_ids == {256, 257, 258}


@pytest.mark.parametrize("key", ["eot", "eom", "fim_pad", "fim_rep", "fim_sep"])
def test_an_end_beyond_the_vocabulary_is_left_out_with_a_reason(key, caplog):
    tokenizer = read(("<|im_end|>", CONTROL), **{f"{key}_token_id": 9999})

    assert tokenizer.stop_ids == {256}
    assert f"tokenizer.ggml.{key}_token_id is 9999, but the vocabulary has 257" in caplog.text


@pytest.mark.parametrize("key", ["padding", "seperator", "mask", "cls", "prefix"])
def test_an_id_that_nothing_uses_may_be_anything(key, caplog):
    assert read(("<|im_end|>", CONTROL), **{f"{key}_token_id": 9999}).stop_ids == {256}
    assert caplog.text == ""
