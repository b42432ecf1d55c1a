"""Safetensors files, alone and listed by an index."""

import json
import struct
from fractions import Fraction

import numpy as np
import pytest

from rml.errors import CheckpointError, UnsupportedModel
from rml.files import open_checkpoint

FOUR = np.array([1, 2, 3, 4], "<f4").tobytes()


@pytest.fixture
def opened(write):
    def _opened(data):
        return open_checkpoint(write(data, "model.safetensors"))

    return _opened


def refused(path, error, *words):
    with pytest.raises(error) as caught:
        open_checkpoint(path)
    for word in words:
        assert word in str(caught.value)


def test_weights(make, opened):
    header = {
        "__metadata__": {"format": "pt"},
        "f": make.entry("F32", [2, 2], 0, 16),
        "h": make.entry("F16", [2], 16, 20),
        "b": make.entry("BF16", [2], 20, 24),
        "s": make.entry("F32", [], 24, 28),
        "e": make.entry("F32", [0, 4], 28, 28),
    }
    data = FOUR + np.array([0.5, -2], "<f2").tobytes() + b"\xc0\x3f\x00\xc0" + FOUR[8:12]

    with opened(make.safetensors(header, data)) as checkpoint:
        assert checkpoint.format == "safetensors"
        assert dict(checkpoint.metadata) == {}
        assert checkpoint.config is None
        tensors = checkpoint.tensors
        assert {n: t.shape for n, t in tensors.items()} == {
            "f": (2, 2), "h": (2,), "b": (2,), "s": (), "e": (0, 4),
        }  # fmt: skip
        assert {n: t.numpy().tolist() for n, t in tensors.items()} == {
            "f": [[1, 2], [3, 4]], "h": [0.5, -2], "b": [1.5, -2], "s": 3, "e": [],
        }  # fmt: skip
        assert all(t.numpy().dtype == np.float32 for t in tensors.values())
        assert tensors["h"].data.tolist() == [0x00, 0x38, 0x00, 0xC0]
        assert not tensors["h"].data.flags.writeable


@pytest.mark.parametrize("padding", range(9))
@pytest.mark.parametrize("dtype", ["<f4", "<f2", "<i8", "<f8"])
def test_any_address(make, opened, padding, dtype):
    """Views of data at odd addresses are views, and outlive the checkpoint."""
    values = np.array([1, -2, 3], dtype)
    name = {"<f4": "F32", "<f2": "F16", "<i8": "I64", "<f8": "F64"}[dtype]
    head = json.dumps({"t": make.entry(name, [3], 0, values.nbytes)}).encode() + b" " * padding

    with opened(make.safetensors(head, values.tobytes())) as checkpoint:
        tensor = checkpoint.tensors["t"]
        assert tensor.numpy().tolist() == [1, -2, 3]
        assert tensor.numpy().flags.aligned
        view = tensor.data
    assert view.tobytes() == values.tobytes()


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("U8", "u1"), ("I8", "i1"), ("U16", "<u2"), ("I16", "<i2"), ("U32", "<u4"), ("I32", "<i4"),
     ("U64", "<u8"), ("I64", "<i8"), ("F64", "<f8")],
)  # fmt: skip
def test_types_that_are_no_weights_keep_their_own(make, opened, name, dtype):
    values = np.array([0, 1, 127], dtype)
    header = {"t": make.entry(name, [3], 0, values.nbytes)}

    with opened(make.safetensors(header, values.tobytes())) as checkpoint:
        tensor = checkpoint.tensors["t"]
        assert tensor.type == name
        assert tensor.numpy().dtype == np.dtype(dtype)
        assert tensor.numpy().tolist() == [0, 1, 127]


def test_bools(make, opened):
    header = {"t": make.entry("BOOL", [3], 0, 3)}

    with opened(make.safetensors(header, b"\x00\x01\x02")) as checkpoint:
        assert checkpoint.tensors["t"].numpy().tolist() == [False, True, True]


@pytest.mark.parametrize(("name", "n_bytes"), [("F4", 2), ("F6_E2M3", 3), ("F6_E3M2", 3)])
def test_types_without_arithmetic_can_be_seen_but_not_expanded(make, opened, name, n_bytes):
    header = {"t": make.entry(name, [4], 0, n_bytes)}

    with opened(make.safetensors(header, bytes(n_bytes))) as checkpoint:
        tensor = checkpoint.tensors["t"]
        assert (tensor.type, tensor.shape, len(tensor.data)) == (name, (4,), n_bytes)
        with pytest.raises(UnsupportedModel, match=f"'t'.*{name}"):
            tensor.numpy()


def small_float(code, sign, e, m, bias):
    """The format's text, bit by bit, in exact fractions: sign, exponent, mantissa."""
    bits = f"{code:08b}"
    exponent, mantissa = int(bits[sign : sign + e], 2), int(bits[sign + e :] or "0", 2)
    if exponent == 0 and m:
        value = Fraction(mantissa, 2**m) * Fraction(2) ** (1 - bias)
    else:
        value = (1 + Fraction(mantissa, 2**m)) * Fraction(2) ** (exponent - bias)
    return -float(value) if sign and bits[0] == "1" else float(value)


NAN, INF = float("nan"), float("inf")
SMALL = {
    "F8_E4M3": ((1, 4, 3, 7), {0x7F: NAN, 0xFF: NAN}),
    "F8_E5M2": (
        (1, 5, 2, 15),
        {0x7C: INF, 0xFC: -INF} | dict.fromkeys((0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF), NAN),
    ),
    "F8_E4M3FNUZ": ((1, 4, 3, 8), {0x80: NAN}),
    "F8_E5M2FNUZ": ((1, 5, 2, 16), {0x80: NAN}),
    "F8_E8M0": ((0, 8, 0, 127), {0xFF: NAN}),
}


@pytest.mark.parametrize("name", SMALL)
def test_floats_of_8_bits_to_the_bit(make, opened, name):
    sizes, own = SMALL[name]
    expected = [own.get(code, small_float(code, *sizes)) for code in range(256)]
    header = {"t": make.entry(name, [2, 128], 0, 256)}

    with opened(make.safetensors(header, bytes(range(256)))) as checkpoint:
        values = checkpoint.tensors["t"].numpy()

    assert (values.dtype, values.shape) == (np.float32, (2, 128))
    assert values.flags.writeable
    np.testing.assert_array_equal(values.reshape(-1), np.array(expected))  # float64: nothing lost
    sign = np.signbit(values.reshape(-1)[[0, 0x80]])
    assert sign.tolist() == [False, name in {"F8_E4M3", "F8_E5M2"}]  # the others have one zero


def test_known_floats_of_8_bits(make, opened):
    # As the specification lists them: largest, smallest normal, largest and smallest subnormal.
    e4m3, e5m2 = [0x7E, 0x08, 0x07, 0x01, 0xC0], [0x7B, 0x04, 0x03, 0x01, 0xC0]
    header = {"a": make.entry("F8_E4M3", [5], 0, 5), "b": make.entry("F8_E5M2", [5], 5, 10)}

    with opened(make.safetensors(header, bytes(e4m3 + e5m2))) as checkpoint:
        a, b = (checkpoint.tensors[name].numpy().tolist() for name in "ab")
    assert a == [448, 2**-6, 0.875 * 2**-6, 2**-9, -2]
    assert b == [57344, 2**-14, 0.75 * 2**-14, 2**-16, -2]


def test_complex_numbers(make, opened):
    data = np.array([1 + 2j, -3.5], "<c8")
    header = {"t": make.entry("C64", [2], 0, 16)}

    with opened(make.safetensors(header, data.tobytes())) as checkpoint:
        assert checkpoint.tensors["t"].numpy().tolist() == data.tolist()


@pytest.mark.parametrize(
    "header", [{}, {"__metadata__": {"a": "b"}}, {"__metadata__": {}}, b"{}   "]
)
def test_no_tensors(make, opened, header):
    with opened(make.safetensors(header)) as checkpoint:
        assert dict(checkpoint.tensors) == {}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x02\0\0\0\0\0\0", ["7 bytes"]),
        (struct.pack("<Q", 100_000_001) + b"{}", ["100000001", "100000000"]),
        (struct.pack("<Q", 2**64 - 1) + b"{}", [str(2**64 - 1)]),
        (struct.pack("<Q", 9000) + b"{}", ["truncated", "8998 bytes"]),
    ],
)
def test_header_lengths(write, data, words):
    refused(write(data, "model.safetensors"), CheckpointError, *words)


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (b"", ["starts with"]),
        (b"[]", ["starts with"]),
        (b' {"a":1}', ["starts with"]),
        (b'{"a\xff":1}', ["UTF-8"]),
        (b"{} {}", ["JSON"]),
        (b"{}\0\0", ["JSON"]),
        (b'{"a":', ["JSON"]),
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", ["nested"]),
        (b'{"__metadata__":{"a":1}}', ["__metadata__"]),
        (b'{"__metadata__":[]}', ["__metadata__"]),
        (b'{"__metadata__":{"a":"1","a":"2"}}', ["'a'", "twice"]),
        (b'{"a":1,"a":1}', ["'a'", "twice"]),
        (b'{"a":{"dtype":"F32","dtype":"F16","shape":[0],"data_offsets":[0,0]}}', ["'dtype'"]),
        (b'{"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0],"x":NaN}}', ["NaN"]),
        (b'{"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0],"x":-Infinity}}', ["Infinity"]),
        (b'{"a":{"dtype":"F32","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,0]}}', []),
        (b'{"a":{"dtype":"F32","shape":[0],"data_offsets":[0,' + b"9" * 4300 + b"]}}", ["'a'"]),
        (b'{"\\ud800":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}', ["Unicode"]),
    ],
)
def test_header_text(make, write, header, words):
    refused(write(make.safetensors(header, bytes(16)), "m.safetensors"), CheckpointError, *words)


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": None},
        {"dtype": 0},
        {"shape": None},
        {"shape": 4},
        {"shape": [4.0]},
        {"shape": ["4"]},
        {"shape": [True, 4]},
        {"shape": [-4]},
        {"shape": [[4]]},
        {"shape": [3]},
        {"shape": [5]},
        {"shape": []},
        {"shape": [1000, 1000]},
        {"shape": [2**63, 2**63]},
        {"shape": [2**62, 0], "data_offsets": [0, 0]},
        {"shape": [1] * 70 + [4]},
        {"data_offsets": None},
        {"data_offsets": [0]},
        {"data_offsets": [0, 16, 16]},
        {"data_offsets": [16, 0]},
        {"data_offsets": [-16, 0]},
        {"data_offsets": [0, 15]},
        {"data_offsets": [0.0, 16.0]},
        {"data_offsets": {"begin": 0}},
        {"data_offsets": [2**64 - 16, 2**64]},
    ],
    ids=str,
)
def test_entries(make, write, change):
    entry = make.entry("F32", [4], 0, 16) | change
    entry = {key: value for key, value in entry.items() if value is not None}

    refused(write(make.safetensors({"w": entry}, FOUR), "m.safetensors"), CheckpointError, "'w'")


@pytest.mark.parametrize("entry", [None, 1, "F32", []])
def test_entries_that_are_no_objects(make, write, entry):
    refused(write(make.safetensors({"w": entry}), "m.safetensors"), CheckpointError, "'w'")


def test_an_unknown_dtype(make, write):
    header = {"w": make.entry("F13", [4], 0, 16)}

    refused(
        write(make.safetensors(header, FOUR), "m.safetensors"), UnsupportedModel, "'w'", "'F13'"
    )


@pytest.mark.parametrize(
    ("ranges", "n_bytes", "words"),
    [
        ([(0, 4), (12, 16)], 16, ["hole of 8 bytes", "'t1'"]),
        ([(4, 8), (8, 16)], 16, ["hole of 4 bytes", "'t0'"]),
        ([(0, 8), (4, 12)], 12, ["overlap", "'t0'", "'t1'"]),
        ([(0, 8), (0, 8)], 8, ["overlap"]),
        ([(0, 16), (4, 8)], 16, ["overlap"]),
        ([(0, 8), (8, 16)], 17, ["1 bytes after the last tensor"]),
        ([(0, 8), (8, 16)], 15, ["truncated", "1 bytes", "'t1'"]),
        ([(0, 8), (8, 16)], 7, ["truncated", "9 bytes", "'t0'"]),
        ([(0, 8), (8, 16)], 0, ["truncated", "16 bytes", "'t0'"]),
        ([], 4, ["4 bytes after"]),
    ],
)
def test_layout(make, write, ranges, n_bytes, words):
    header = {f"t{i}": make.entry("F32", [(b - a) // 4], a, b) for i, (a, b) in enumerate(ranges)}

    refused(
        write(make.safetensors(header, bytes(n_bytes)), "m.safetensors"), CheckpointError, *words
    )


def test_tensors_in_another_order(make, opened):
    header = {"b": make.entry("F32", [2], 8, 16), "a": make.entry("F32", [2], 0, 8)}

    with opened(make.safetensors(header, FOUR)) as checkpoint:
        assert {n: t.numpy().tolist() for n, t in checkpoint.tensors.items()} == {
            "b": [3, 4],
            "a": [1, 2],
        }


def test_an_adapter(make, write):
    name = "base_model.model.layers.0.self_attn.q_proj.lora_A.weight"
    header = {name: make.entry("F32", [4], 0, 16)}

    refused(write(make.safetensors(header, FOUR), "a.safetensors"), UnsupportedModel, "LoRA")


@pytest.fixture
def sharded(make, tmp_path):
    """Write a model of two files that hold tensors a, b and c; `change` may edit the index."""

    def _sharded(change=None, **extra):
        shards = {
            "model-00001-of-00002.safetensors": {"a": [1.0], "b": [2.0]},
            "model-00002-of-00002.safetensors": {"c": [3.0], **extra},
        }
        for file, tensors in shards.items():
            header = {
                name: make.entry("F32", [1], 4 * i, 4 * i + 4) for i, name in enumerate(tensors)
            }
            data = b"".join(struct.pack("<f", *value) for value in tensors.values())
            (tmp_path / file).write_bytes(make.safetensors(header, data))
        weight_map = {n: file for file, tensors in shards.items() for n in tensors if n in "abc"}
        index = {"metadata": {"total_size": 12}, "weight_map": weight_map}
        if change:
            change(index)
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
        return tmp_path

    return _sharded


def values(checkpoint):
    return {name: tensor.numpy().tolist() for name, tensor in checkpoint.tensors.items()}


def test_an_index(sharded):
    folder = sharded()

    for path in (folder, folder / "model.safetensors.index.json", str(folder)):
        with open_checkpoint(path) as checkpoint:
            assert values(checkpoint) == {"a": [1], "b": [2], "c": [3]}
            assert checkpoint.tensors["c"].path.name == "model-00002-of-00002.safetensors"


def test_an_index_decides_what_belongs_to_the_model(sharded):
    with open_checkpoint(sharded(unlisted=[4.0])) as checkpoint:
        assert values(checkpoint) == {"a": [1], "b": [2], "c": [3]}


def test_a_tensor_in_two_files(sharded):
    refused(sharded(a=[9.0]), CheckpointError, "'a'", "model-00001-of-00002.safetensors")


def test_a_missing_file(sharded):
    folder = sharded()
    (folder / "model-00002-of-00002.safetensors").unlink()

    refused(folder, CheckpointError, "1 of 2", "model-00002-of-00002.safetensors")


def test_a_missing_index(sharded):
    folder = sharded()
    (folder / "model.safetensors.index.json").unlink()

    refused(folder, CheckpointError, "model.safetensors.index.json is missing")


def test_one_file_of_several(sharded):
    refused(sharded() / "model-00002-of-00002.safetensors", CheckpointError, "2 of 2", "folder")


def test_a_truncated_file_of_several(sharded):
    folder = sharded()
    path = folder / "model-00002-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:-2])

    refused(folder, CheckpointError, str(path), "2 bytes", "'c'")


@pytest.mark.parametrize(
    ("shard", "word"),
    [
        ("/etc/hostname", "same folder"),
        ("../other.safetensors", "same folder"),
        ("sub/model.safetensors", "same folder"),
        ("..\\other.safetensors", "same folder"),
        ("..", "same folder"),
        ("", "same folder"),
        ("a\0b", "same folder"),
        (7, "same folder"),
        (None, "same folder"),
        (["model-00001-of-00002.safetensors"], "same folder"),
        ("model-00001-of-00002.safetensors", "does not hold it"),
        ("absent.safetensors", "missing"),
    ],
)
def test_wrong_entries_of_an_index(sharded, shard, word):
    def change(index):
        index["weight_map"]["c"] = shard

    refused(sharded(change), CheckpointError, "model.safetensors.index.json", word)


def test_a_tensor_in_another_file_than_the_index_says(sharded):
    def change(index):
        index["weight_map"]["b"] = "model-00002-of-00002.safetensors"

    refused(sharded(change), CheckpointError, "'b'", "00002-of-00002", "does not hold it")


def test_a_tensor_that_no_file_holds(sharded):
    def change(index):
        index["weight_map"]["d"] = "model-00002-of-00002.safetensors"

    refused(sharded(change), CheckpointError, "'d'", "does not hold it")


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"weight_map": []}', '{"weight_map": {}}', '{"weight_map": "a"}', "\xff",
     '{"weight_map": {"a": "x", "a": "y"}}', "[" * 100_000],
)  # fmt: skip
def test_a_broken_index(sharded, text):
    folder = sharded()
    (folder / "model.safetensors.index.json").write_bytes(text.encode("latin-1"))

    refused(folder, CheckpointError, "model.safetensors.index.json")
