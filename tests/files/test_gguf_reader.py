"""GGUF files that are sound: every value type, every layout the format allows."""

import struct
import time
import tracemalloc

import numpy as np
import pytest

from rml.files import open_checkpoint

FOUR = np.array([1, 2, 3, 4], "<f4")


def read(path):
    with open_checkpoint(path) as checkpoint:
        return dict(checkpoint.metadata), {n: t.numpy() for n, t in checkpoint.tensors.items()}


@pytest.mark.parametrize("version", [2, 3])
def test_metadata_and_tensors(make, write, version):
    path = write(
        make.gguf(
            [make.text("general.architecture", "llama"), make.u32("llama.block_count", 2)],
            [make.tensor("a", [4], 0, 0), make.tensor("b", [2, 3], 1, 32)],
            FOUR.tobytes() + bytes(16) + np.arange(6, dtype="<f2").tobytes(),
            version=version,
        )
    )

    with open_checkpoint(path) as checkpoint:
        assert checkpoint.path == path
        assert checkpoint.format == "gguf"
        assert checkpoint.config is None
        assert dict(checkpoint.metadata) == {
            "general.architecture": "llama",
            "llama.block_count": 2,
        }
        assert list(checkpoint.tensors) == ["a", "b"]
        b = checkpoint.tensors["b"]
        assert (b.name, b.shape, b.type, b.n_bytes, b.path) == ("b", (3, 2), "F16", 12, path)
        assert b.data.dtype == np.uint8
        assert b.data.shape == (12,)
        assert not b.data.flags.writeable
        assert b.numpy().dtype == np.float32
        np.testing.assert_array_equal(b.numpy(), [[0, 1], [2, 3], [4, 5]])
        np.testing.assert_array_equal(checkpoint.tensors["a"].numpy(), FOUR)


@pytest.mark.parametrize(
    ("type_id", "code", "value"),
    [
        (0, "B", 255),
        (1, "b", -128),
        (2, "H", 65535),
        (3, "h", -32768),
        (4, "I", 2**32 - 1),
        (5, "i", -(2**31)),
        (6, "f", 0.1),
        (10, "Q", 2**64 - 1),
        (11, "q", -(2**63)),
        (12, "d", 0.1),
    ],
)
def test_every_number_type_alone_and_in_an_array(make, write, type_id, code, value):
    stored = struct.pack(f"<{code}", value)
    path = write(
        make.gguf(
            [
                make.key("one", type_id, stored),
                make.array("many", type_id, 3, stored * 3),
                make.array("none", type_id, 0, b""),
            ]
        )
    )

    metadata, _ = read(path)

    assert metadata["one"] == struct.unpack(f"<{code}", stored)[0]
    assert type(metadata["one"]) is type(value)
    many = metadata["many"]
    assert many.dtype == np.dtype(f"<{code}")
    assert many.tolist() == [metadata["one"]] * 3
    assert not many.flags.writeable
    assert metadata["none"].tolist() == []


def test_bools_strings_and_nested_arrays(make, write):
    inner = struct.pack("<IQ", make.U8, 2) + b"\x01\x02"
    words = struct.pack("<IQ", make.STRING, 2) + make.string("x") + make.string("")
    path = write(
        make.gguf(
            [
                make.key("yes", make.BOOL, b"\x01"),
                make.key("no", make.BOOL, b"\x00"),
                make.array("bools", make.BOOL, 3, b"\x00\x01\x01"),
                make.text("text", "Grüße 🙂\0."),
                make.array("nested", make.ARRAY, 2, inner + words),
            ]
        )
    )

    metadata, _ = read(path)

    assert metadata["yes"] is True
    assert metadata["no"] is False
    assert metadata["bools"].dtype == np.bool_
    assert metadata["bools"].tolist() == [False, True, True]
    assert metadata["text"] == "Grüße 🙂\0."
    assert [list(part) for part in metadata["nested"]] == [[1, 2], ["x", ""]]


def test_bytes_that_are_not_utf8_survive(make, write):
    raw = b"\xe2\x96 \xff\xfe ok"

    metadata, _ = read(write(make.gguf([make.text("token", raw)])))

    assert metadata["token"].encode("utf-8", "surrogateescape") == raw


@pytest.mark.parametrize("alignment", [1, 8, 16, 64, 1 << 20])
def test_alignment(make, write, alignment):
    tensors = [make.tensor("a", [4], 0, 0), make.tensor("b", [1], 0, max(alignment, 16))]
    data = FOUR.tobytes().ljust(max(alignment, 16), b"\xaa") + FOUR[3:].tobytes()
    path = write(
        make.gguf([make.u32("general.alignment", alignment)], tensors, data, alignment=alignment)
    )

    _, values = read(path)

    assert values["a"].tolist() == [1, 2, 3, 4]
    assert values["b"].tolist() == [4]


def test_data_in_another_order_with_holes_and_a_tail(make, write):
    table = [make.tensor("last", [4], 0, 128), make.tensor("first", [4], 0, 0)]
    data = FOUR.tobytes() + b"\xff" * 112 + FOUR[::-1].tobytes() + b"\xff" * 1000

    _, values = read(write(make.gguf([], table, data)))

    assert list(values) == ["last", "first"]
    assert values["first"].tolist() == [1, 2, 3, 4]
    assert values["last"].tolist() == [4, 3, 2, 1]


def test_scalar_empty_and_four_dimensional_tensors(make, write):
    table = [
        make.tensor("scalar", [], 0, 0),
        make.tensor("empty", [4, 0], 0, 32),
        make.tensor("empty blocks", [32, 0], 2, 32),
        make.tensor("deep", [1, 2, 1, 2], 0, 32),
    ]

    _, values = read(write(make.gguf([], table, FOUR.tobytes() + bytes(16) + FOUR.tobytes())))

    assert values["scalar"].shape == ()
    assert values["scalar"] == 1
    assert values["empty"].shape == (0, 4)
    assert values["empty blocks"].shape == (0, 32)
    assert values["deep"].tolist() == [[[[1], [2]]], [[[3], [4]]]]


def test_a_file_without_tensors_may_end_without_padding(make, write):
    metadata, values = read(write(make.gguf([make.text("tokenizer.ggml.model", "gpt2")])))

    assert metadata == {"tokenizer.ggml.model": "gpt2"}
    assert values == {}


@pytest.mark.parametrize(
    ("type_id", "dtype", "name"),
    [
        (24, "<i1", "I8"),
        (25, "<i2", "I16"),
        (26, "<i4", "I32"),
        (27, "<i8", "I64"),
        (28, "<f8", "F64"),
    ],
)
def test_types_that_are_no_weights_keep_their_own(make, write, type_id, dtype, name):
    stored = np.array([-1, 0, 7], dtype)
    path = write(make.gguf([], [make.tensor("n", [3], type_id, 0)], stored.tobytes()))

    with open_checkpoint(path) as checkpoint:
        tensor = checkpoint.tensors["n"]
        assert tensor.type == name
        assert tensor.numpy().dtype == np.dtype(dtype)
        assert tensor.numpy().tolist() == [-1, 0, 7]
        tensor.numpy()[0] = 5  # a copy
        assert tensor.numpy()[0] == -1


def test_names_up_to_the_limit(make, write):
    path = write(make.gguf([], [make.tensor("n" * 64, [4], 0, 0)], FOUR.tobytes()))

    assert list(read(path)[1]) == ["n" * 64]


def test_a_large_vocabulary_opens_quickly_and_small(gemma3_path):
    def seconds():
        start = time.perf_counter()
        with open_checkpoint(gemma3_path) as checkpoint:
            assert len(checkpoint.metadata["tokenizer.ggml.tokens"]) == 262_144
        return time.perf_counter() - start

    assert min(seconds() for _ in range(3)) < 0.5

    tracemalloc.start()
    open_checkpoint(gemma3_path).close()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 30e6  # of a file of 253 MB


def test_gemma_tensor_types(gemma3_path):
    with open_checkpoint(gemma3_path) as checkpoint:
        types = [tensor.type for tensor in checkpoint.tensors.values()]

        assert {name: types.count(name) for name in set(types)} == {
            "F32": 109,
            "Q5_0": 81,
            "Q4_K": 27,
            "Q8_0": 10,
            "Q6_K": 9,
        }
        assert checkpoint.tensors["token_embd.weight"].shape == (262_144, 640)
