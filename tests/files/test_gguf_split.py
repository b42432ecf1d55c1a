"""Models in several GGUF files."""

import struct

import numpy as np
import pytest

from rml.errors import CheckpointError
from rml.files import open_checkpoint


@pytest.fixture
def split(make, tmp_path):
    """Write the parts of a model; part i holds one tensor of the value i."""

    def _split(count=3, *, total=None, alignments=(32, 64, 8), change=None):
        paths = []
        for i in range(count):
            keys = {
                "split.no": make.key("split.no", make.U16, struct.pack("<H", i)),
                "split.count": make.key("split.count", make.U16, struct.pack("<H", count)),
                "split.tensors.count": make.key(
                    "split.tensors.count",
                    make.I32,
                    struct.pack("<i", count if total is None else total),
                ),
                "general.alignment": make.u32("general.alignment", alignments[i]),
            }
            if i == 0:
                keys["arch"] = make.text("general.architecture", "llama")
            name = f"t{i}"
            if change:
                name = change(i, keys) or name
            data = np.array([i], "<f4").tobytes()
            path = tmp_path / f"m-{i + 1:05d}-of-{count:05d}.gguf"
            path.write_bytes(
                make.gguf(
                    keys.values(), [make.tensor(name, [1], 0, 0)], data, alignment=alignments[i]
                )
            )
            paths.append(path)
        return paths

    return _split


def refused(path, *words):
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(path)
    for word in words:
        assert word in str(caught.value)


def test_the_first_part_opens_all(split):
    paths = split()

    with open_checkpoint(paths[0]) as checkpoint:
        assert checkpoint.path == paths[0]
        assert checkpoint.metadata["general.architecture"] == "llama"
        assert {n: t.numpy().tolist() for n, t in checkpoint.tensors.items()} == {
            "t0": [0],
            "t1": [1],
            "t2": [2],
        }
        assert [t.path for t in checkpoint.tensors.values()] == paths
        view = checkpoint.tensors["t2"].data
    assert view.view("<f4")[0] == 2


def test_their_folder_opens_all(split):
    paths = split()

    with open_checkpoint(paths[0].parent) as checkpoint:
        assert checkpoint.path == paths[0]
        assert len(checkpoint.tensors) == 3


def test_another_part_names_the_first(split):
    refused(split()[1], "part 2 of 3", "m-00001-of-00003.gguf")


def test_missing_parts_are_named(split):
    paths = split()
    paths[1].unlink()
    refused(paths[0], "m-00002-of-00003.gguf", "missing")
    paths[2].unlink()
    refused(paths[0], "2 of 3", "m-00002-of-00003.gguf, m-00003-of-00003.gguf")
    split()[0].unlink()
    refused(paths[0].parent, "m-00001-of-00003.gguf", "missing")


def test_a_wrong_name(split):
    paths = split()
    wrong = paths[0].rename(paths[0].with_name("model.gguf"))

    refused(wrong, "split.count is 3", "-00001-of-00003.gguf")


def test_a_first_part_under_the_name_of_another(split):
    paths = split()
    paths[1].write_bytes(paths[0].read_bytes())

    refused(paths[0], paths[1].name, "split.no is 0", "1 is expected")
    refused(paths[1], "m-00001-of-00003.gguf")


def test_a_part_of_another_model(split, make):
    def other_count(i, keys):
        if i == 2:
            keys["split.count"] = make.key("split.count", make.U16, struct.pack("<H", 4))

    refused(split(change=other_count)[0], "m-00003-of-00003.gguf", "split.count is 4")


@pytest.mark.parametrize("key", ["split.no", "split.count", "split.tensors.count"])
def test_a_part_without_a_split_key(split, key):
    def drop(i, keys):
        if i == 1:
            del keys[key]

    refused(split(change=drop)[0], "m-00002-of-00003.gguf", key)


def test_the_first_part_without_a_total(split):
    def drop(i, keys):
        del keys["split.tensors.count"]

    refused(split(change=drop)[0], "split.tensors.count is missing")


def test_a_wrong_total(split):
    refused(split(total=4)[0], "split.tensors.count is 4", "3 tensors")


def test_a_split_key_of_another_type(split, make):
    def widen(i, keys):
        keys["split.count"] = make.u32("split.count", 3)

    refused(split(change=widen)[0], "split.count", "uint32", "uint16")


def test_the_same_tensor_in_two_parts(split):
    paths = split(change=lambda i, keys: "t0" if i == 2 else None)

    refused(paths[0], "'t0'", "m-00001-of-00003.gguf")


def test_a_truncated_part(split):
    paths = split()
    paths[2].write_bytes(paths[2].read_bytes()[:-1])

    refused(paths[0], "m-00003-of-00003.gguf", "1 bytes are missing", "'t2'")


def test_one_part_of_one(split):
    with open_checkpoint(split(1)[0]) as checkpoint:
        assert list(checkpoint.tensors) == ["t0"]
