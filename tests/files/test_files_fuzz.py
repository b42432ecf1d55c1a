"""Damaged files: whatever is cut or flipped, an RmlError or a sound result, and soon."""

import json
from functools import partial

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rml.errors import RmlError
from rml.files import open_checkpoint

SETTINGS = settings(
    max_examples=300, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def exercise(path):
    """Open `path` and touch everything; only RmlError may come out, and says where."""
    faults = [(path.name, lambda: touch(path, faults))]
    for name, use in faults:  # grows by the tensors of a file that opens
        try:
            use()
        except RmlError as error:
            message = str(error)
        else:
            continue
        assert name in message


def touch(path, faults):
    checkpoint = open_checkpoint(path)
    for value in checkpoint.metadata.values():
        repr(value)
        if not isinstance(value, int | float):
            list(value)
    for tensor in checkpoint.tensors.values():
        assert tensor.data.nbytes == tensor.n_bytes
        faults.append((tensor.name, partial(expand, tensor)))


def expand(tensor):
    with np.errstate(all="ignore"):
        assert tensor.numpy().shape == tensor.shape


@pytest.fixture(scope="session")
def sound_gguf(make):
    keys = [
        make.text("general.architecture", "llama"),
        make.u32("general.alignment", 32),
        make.key("flag", make.BOOL, b"\x01"),
        make.array("tokens", make.STRING, 4, b"".join(map(make.string, ("a", "bb", "", "ccc")))),
        make.array("scores", make.F32, 3, bytes(12)),
        make.array("nested", make.ARRAY, 1, make.array("", make.U8, 2, b"\1\2")[12:]),
    ]
    table = [
        make.tensor("f32", [4, 2], 0, 0),
        make.tensor("q4_0", [32, 2], 2, 32),
        make.tensor("f16", [3], 1, 96),
    ]
    return make.gguf(keys, table, bytes(range(102)))


@pytest.fixture(scope="session")
def sound_safetensors(make):
    header = {
        "__metadata__": {"format": "pt"},
        "a": make.entry("F32", [2, 2], 0, 16),
        "b": make.entry("BF16", [3], 16, 22),
        "c": make.entry("I64", [], 22, 30),
    }
    return make.safetensors(header, bytes(range(30)))


def damage(data, flips, cut, insert):
    damaged = bytearray(data)
    for position, value in flips:
        damaged[position % len(damaged)] = value
    position, piece = insert
    position %= len(damaged)
    return bytes(damaged[:position] + piece + damaged[position:])[: len(data) - cut % len(data)]


# A few bytes that matter (counts, signs, limits) more often than by chance.
FLIPS = st.lists(
    st.tuples(
        st.integers(0, 10_000),
        st.one_of(st.sampled_from([0, 1, 127, 128, 255]), st.integers(0, 255)),
    ),
    max_size=4,
)
CUTS = st.one_of(st.just(0), st.integers(0, 10_000))
INSERTS = st.tuples(st.integers(0, 10_000), st.binary(max_size=4))


@SETTINGS
@given(flips=FLIPS, cut=CUTS, insert=INSERTS)
def test_damaged_gguf(sound_gguf, write, flips, cut, insert):
    exercise(write(damage(sound_gguf, flips, cut, insert)))


@SETTINGS
@given(flips=FLIPS, cut=CUTS, insert=INSERTS)
def test_damaged_safetensors(sound_safetensors, write, flips, cut, insert):
    exercise(write(damage(sound_safetensors, flips, cut, insert), "model.safetensors"))


@SETTINGS
@given(data=st.binary(max_size=80), magic=st.sampled_from([b"", b"GGUF\3\0\0\0", b"GGUF\2\0\0\0"]))
def test_noise(write, data, magic):
    exercise(write(magic + data))


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
ENTRIES = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.one_of(st.sampled_from(["F32", "F16", "I8", "F4", "F99"]), JSON),
        "shape": st.one_of(st.lists(st.integers(-1, 5), max_size=3), JSON),
        "data_offsets": st.one_of(st.lists(st.integers(0, 40), min_size=2, max_size=2), JSON),
    },
)


@SETTINGS
@given(
    header=st.dictionaries(st.text(max_size=3), st.one_of(ENTRIES, JSON), max_size=3),
    n_bytes=st.integers(0, 40),
)
def test_strange_safetensors_headers(make, write, header, n_bytes):
    exercise(write(make.safetensors(header, bytes(n_bytes)), "model.safetensors"))


@SETTINGS
@given(index=st.one_of(JSON, st.fixed_dictionaries({"weight_map": JSON})))
def test_strange_indexes(write, index):
    exercise(write(json.dumps(index).encode(), "model.safetensors.index.json"))


def test_the_sound_files_are_sound(sound_gguf, sound_safetensors, write):
    with open_checkpoint(write(sound_gguf)) as checkpoint:
        assert checkpoint.metadata["tokens"] == ["a", "bb", "", "ccc"]
        assert checkpoint.metadata["nested"][0].tolist() == [1, 2]
        assert list(checkpoint.tensors) == ["f32", "q4_0", "f16"]
        assert checkpoint.tensors["f16"].data.tolist() == list(range(96, 102))
    with open_checkpoint(write(sound_safetensors, "m.safetensors")) as checkpoint:
        assert checkpoint.tensors["c"].data.tolist() == list(range(22, 30))
