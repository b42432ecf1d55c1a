"""Ids in every form that programs have them in, texts too, and what is neither."""

from pathlib import Path

import numpy as np
import pytest

from rml.errors import ArgumentError
from rml.tokenizers import load_tokenizer

LLAMA = Path(__file__).resolve().parents[1] / "fixtures" / "llama"


@pytest.fixture(scope="module", params=["model.gguf", "hf"])
def tokenizer(request):
    return load_tokenizer(LLAMA / request.param)


def test_one_id_and_several(tokenizer):
    ids = tokenizer.encode("the cat", add_special=False)
    text = tokenizer.decode(ids)

    assert text == "the cat"
    forms = [tuple(ids), np.array(ids), np.array(ids, np.uint8 if max(ids) < 256 else np.uint16),
             np.array(ids, np.int32), list(map(np.int64, ids)), iter(ids), dict.fromkeys(ids),
             (i for i in ids)]  # fmt: skip
    for form in forms:
        assert tokenizer.decode(form) == text
    for one in (ids[0], np.int64(ids[0]), np.uint32(ids[0])):
        assert tokenizer.decode(one) == tokenizer.decode([ids[0]])
        assert tokenizer.decode_bytes(one) == tokenizer.token_bytes(one)
        assert tokenizer.stream_decoder().decode(one) == tokenizer.decode([ids[0]])
    assert tokenizer.decode([]) == tokenizer.decode(np.array([], np.int64)) == ""


@pytest.mark.parametrize(
    "wrong",
    ["5", b"5", bytearray(b"5"), None, 5.0, [5.5], ["5"], [None], [[5]], [[5, 6]], -1, [5, -1],
     np.array([[5, 6]]), np.array([5.0]), {"a": 1}, object()],
)  # fmt: skip
def test_what_is_no_id(tokenizer, wrong):
    for decode in (tokenizer.decode, tokenizer.decode_bytes, tokenizer.stream_decoder().decode):
        with pytest.raises(ArgumentError, match="token id"):
            decode(wrong)
    assert tokenizer.decode(tokenizer.encode("a", add_special=False)) == "a"


@pytest.mark.parametrize("wrong", ["5", None, 5.5, -1, [5], np.array([5, 6])])
def test_what_is_no_single_id(tokenizer, wrong):
    with pytest.raises(ArgumentError, match="token id"):
        tokenizer.token_bytes(wrong)


def test_texts(tokenizer):
    ids = tokenizer.encode("the cat")

    for form in (b"the cat", bytearray(b"the cat"), memoryview(b"the cat"), np.str_("the cat")):
        assert tokenizer.encode(form) == ids
    for wrong in (None, 5, ["the cat"], ("a", "b"), {}, np.array(["a"]), object()):
        with pytest.raises(ArgumentError, match="text is str or bytes, not"):
            tokenizer.encode(wrong)
