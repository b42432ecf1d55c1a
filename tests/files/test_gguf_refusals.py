"""GGUF files that are broken, hostile or not for rml: each refused, quickly and by name."""

import struct
import time
import tracemalloc

import pytest

from rml.errors import CheckpointError, UnsupportedModel
from rml.files import open_checkpoint

HUGE = (2**64 - 1, 2**63, 2**63 - 1, 2**61, 2**40)


def refused(path, error, *words):
    with pytest.raises(error) as caught:
        open_checkpoint(path)
    message = str(caught.value)
    assert str(path) in message
    for word in words:
        assert word in message
    return message


def one(make, dims, type_id=0, offset=0, data=bytes(64), **kwargs):
    """A file with the one tensor 'w'."""
    return make.gguf([], [make.tensor("w", dims, type_id, offset)], data, **kwargs)


@pytest.mark.parametrize("version", [0, 4, 99])
def test_unknown_version(make, write, version):
    refused(write(make.gguf(version=version)), UnsupportedModel, f"version {version}", "2 and 3")


def test_version_1(make, write):
    refused(write(b"GGUF" + struct.pack("<III", 1, 0, 0)), UnsupportedModel, "version 1", "convert")


def test_big_endian(write):
    swapped = b"GGUF" + struct.pack(">IQQ", 3, 0, 0)
    refused(write(swapped), UnsupportedModel, "big-endian")
    refused(write(b"FUGG" + swapped[4:]), UnsupportedModel, "big-endian")


@pytest.mark.parametrize("count", HUGE)
def test_counts_larger_than_the_file(make, write, count):
    refused(write(make.gguf(n_tensors=count)), CheckpointError, str(count), "tensors")
    refused(write(make.gguf(n_keys=count)), CheckpointError, str(count), "keys")


@pytest.mark.parametrize("count", HUGE)
@pytest.mark.parametrize("element", [0, 4, 7, 8, 9, 12])
def test_arrays_larger_than_the_file(make, write, count, element):
    path = write(make.gguf([make.array("many", element, count, b"")]))

    refused(path, CheckpointError, str(count), "'many'")


@pytest.mark.parametrize("length", HUGE)
def test_lengths_larger_than_the_file(make, write, length):
    prefix = struct.pack("<Q", length)
    tail = bytes(40)

    refused(write(make.gguf([prefix + tail])), CheckpointError, str(length))
    refused(
        write(make.gguf([make.key("k", 8, prefix + tail)])), CheckpointError, str(length), "'k'"
    )
    refused(write(make.gguf([make.array("k", 8, 2, prefix + tail)])), CheckpointError, "'k'")
    refused(write(make.gguf(tensors=[prefix + tail])), CheckpointError, str(length), "tensor 0")


def test_a_hostile_file_costs_nothing(make, write):
    path = write(make.gguf([make.array("a", 4, 2**63, b"")])[:43])
    tracemalloc.start()
    start = time.process_time()  # not what other processes take

    refused(path, CheckpointError)

    seconds, peak = time.process_time() - start, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seconds < 0.05
    assert peak < 1e6


@pytest.mark.parametrize("depth", [5, 1000, 20_000])
def test_nested_arrays_are_bounded(make, write, depth):
    value = struct.pack("<IQ", 9, 1) * depth + struct.pack("<IQ", 0, 1) + b"\x07"

    refused(write(make.gguf([make.key("deep", 9, value)])), CheckpointError, "'deep'", "nested")


@pytest.mark.parametrize("type_id", [13, 99, 2**32 - 1])
def test_unknown_value_types(make, write, type_id):
    refused(
        write(make.gguf([make.key("k", type_id, bytes(16))])), CheckpointError, "'k'", "unknown"
    )
    refused(
        write(make.gguf([make.array("k", type_id, 0, bytes(16))])),
        CheckpointError,
        "'k'",
        "unknown",
    )


def test_bools_other_than_0_and_1(make, write):
    refused(write(make.gguf([make.key("k", 7, b"\x02")])), CheckpointError, "'k'", "bool")
    refused(write(make.gguf([make.array("k", 7, 2, b"\x01\xff")])), CheckpointError, "'k'", "255")


def test_the_same_key_or_tensor_twice(make, write):
    refused(write(make.gguf([make.u32("k", 1), make.u32("k", 1)])), CheckpointError, "'k'", "twice")
    table = [make.tensor("w", [4], 0, 0), make.tensor("w", [4], 0, 32)]
    refused(write(make.gguf([], table, bytes(64))), CheckpointError, "'w'", "twice")


def test_names_that_are_not_text_or_too_long(make, write):
    refused(write(make.gguf([make.u32(b"\xff", 1)])), CheckpointError, "key 0", "UTF-8")
    table = [make.tensor(b"\xff", [4], 0, 0)]
    refused(write(make.gguf([], table, bytes(64))), CheckpointError, "tensor 0", "UTF-8")
    table = [make.tensor("n" * 65, [4], 0, 0)]
    refused(write(make.gguf([], table, bytes(64))), CheckpointError, "65", "64")
    refused(write(make.gguf([make.u32("k" * 65536, 1)])), CheckpointError, "65536")


@pytest.mark.parametrize("before", [0, 1, 3])
def test_keys_without_a_name(make, write, before):
    keys = [make.u32(f"k{i}", i) for i in range(before)]
    for last in (make.u32("", 1), make.key("", 8, make.string("text")), make.array("", 4, 0, b"")):
        data = make.gguf([*keys, last, make.u32("z", 1)])
        path = write(data)
        refused(path, CheckpointError, path.name, f"metadata key {before} of {before + 2}", "empty")


@pytest.mark.parametrize("alignment", [0, 3, 24, 2**21, 2**31, 2**32 - 1])
def test_alignment_values(make, write, alignment):
    keys = [make.u32("general.alignment", alignment)]

    refused(write(make.gguf(keys)), CheckpointError, "general.alignment", str(alignment))


@pytest.mark.parametrize("type_id", [0, 5, 8, 10])
def test_alignment_type(make, write, type_id):
    value = make.string("32") if type_id == 8 else struct.pack("<Q", 32)
    path = write(make.gguf([make.key("general.alignment", type_id, value)]))

    refused(path, CheckpointError, "general.alignment", "uint32")


@pytest.mark.parametrize("n_dims", [5, 6, 2**32 - 1])
def test_dimension_counts(make, write, n_dims):
    table = make.string("w") + struct.pack("<I", n_dims) + struct.pack("<6Q", *[1] * 6) + bytes(12)

    refused(write(make.gguf([], [table], bytes(64))), CheckpointError, "'w'", str(n_dims), "4")


@pytest.mark.parametrize(
    "dims",
    [
        [4, 2**30 - 1, 2**30 + 1],
        [2**62],
        [2**63, 2],
        [2**32, 2**32],
        [2**64 - 1],
        [2**62, 0],
        [0, 2**63],
    ],
)
def test_products_of_dimensions_do_not_wrap(make, write, dims):
    refused(write(one(make, dims)), CheckpointError, "'w'", "impossible")


@pytest.mark.parametrize(("type_id", "name"), [(4, "Q4_2"), (31, "Q4_0_4_4"), (38, "IQ4_NL_8_8")])
def test_retired_tensor_types(make, write, type_id, name):
    refused(write(one(make, [32], type_id)), UnsupportedModel, "'w'", name, "retired")


@pytest.mark.parametrize("type_id", [99, 2**32 - 1])
def test_unknown_tensor_types(make, write, type_id):
    refused(write(one(make, [32], type_id)), UnsupportedModel, "'w'", str(type_id), "unknown")


@pytest.mark.parametrize(
    ("dims", "type_id", "name"),
    [([128, 2], 12, "Q4_K"), ([31], 8, "Q8_0"), ([], 2, "Q4_0"), ([16, 2], 2, "Q4_0")],
)
def test_rows_of_part_blocks(make, write, dims, type_id, name):
    refused(write(one(make, dims, type_id, data=bytes(512))), CheckpointError, "'w'", name, "rows")


@pytest.mark.parametrize("offset", [1, 8, 16, 33])
def test_offsets_off_the_alignment(make, write, offset):
    refused(write(one(make, [4], offset=offset)), CheckpointError, "'w'", f"offset {offset}", "32")


@pytest.mark.parametrize("offset", [2**64 - 32, 2**63, 2**40])
def test_offsets_outside_the_file(make, write, offset):
    refused(write(one(make, [4], offset=offset)), CheckpointError, "'w'", str(offset), "outside")


@pytest.mark.parametrize("offsets", [(0, 0), (0, 32), (32, 0)])
def test_overlapping_tensors(make, write, offsets):
    table = [make.tensor(f"t{o}", [16], 0, o) for o in offsets[:1]]
    table += [make.tensor("other", [16], 0, offsets[1])]

    refused(write(make.gguf([], table, bytes(256))), CheckpointError, "'other'", "overlap")


@pytest.mark.parametrize("kept", [0, 1, 31, 32, 33, 63])
def test_truncated_data_names_bytes_and_tensor(make, write, kept):
    table = [make.tensor("b", [8], 0, 32), make.tensor("a", [8], 0, 0)]
    whole = make.gguf([], table, bytes(64))
    first = "'a'" if kept < 32 else "'b'"

    refused(write(whole[: len(whole) - 64 + kept]), CheckpointError, f"{64 - kept} bytes", first)


def test_truncated_anywhere(make, write):
    whole = make.gguf(
        [make.text("general.architecture", "llama"), make.array("s", 8, 2, make.string("ab") * 2)],
        [make.tensor("w", [4], 0, 0)],
        bytes(16),
    )
    open_checkpoint(write(whole)).close()

    for n in range(1, len(whole)):
        with pytest.raises(CheckpointError):
            open_checkpoint(write(whole[:n]))


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"general.architecture": "clip"}, ["vision projector", "mmproj"]),
        ({"general.type": "mmproj", "general.architecture": "x"}, ["vision projector"]),
        ({"general.type": "imatrix"}, ["imatrix"]),
        ({"general.type": "adapter", "general.base_model.0.name": "Llama 3"}, ["LoRA", "Llama 3"]),
        ({"general.architecture": "llama", "adapter.type": "lora"}, ["LoRA"]),
        ({"general.architecture": "controlvector"}, ["control vector"]),
    ],
)
def test_other_things_than_models(make, write, keys, words):
    path = write(make.gguf([make.text(name, value) for name, value in keys.items()]))

    refused(path, UnsupportedModel, *words)
