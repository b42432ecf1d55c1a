"""The `gguf` package as an independent writer and reader."""

import gguf
import numpy as np
import pytest

from rml._kernels.checks import WEIGHT_FORMATS
from rml.errors import UnsupportedModel
from rml.files import open_checkpoint


def written(path, add, **kwargs):
    writer = gguf.GGUFWriter(path, "llama", **kwargs)
    add(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_its_metadata(tmp_path):
    def add(writer):
        writer.add_block_count(7)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_token_list(["<s>", "▁a", b"\xff"])
        writer.add_token_scores([0.0, -1.5, 2.0])
        writer.add_token_types([3, 1, 6])
        writer.add_add_bos_token(True)
        writer.add_chat_template("{{ messages }}")
        writer.add_uint64("big", 2**63)
        writer.add_array("ints", [1, -2, 3])

    with open_checkpoint(written(tmp_path / "m.gguf", add)) as checkpoint:
        metadata = checkpoint.metadata

    assert metadata["general.architecture"] == "llama"
    assert metadata["llama.block_count"] == 7
    assert metadata["llama.attention.layer_norm_rms_epsilon"] == np.float32(1e-5)
    assert metadata["tokenizer.ggml.tokens"] == ["<s>", "▁a", "\udcff"]
    assert metadata["tokenizer.ggml.scores"].tolist() == [0.0, -1.5, 2.0]
    assert metadata["tokenizer.ggml.token_type"].tolist() == [3, 1, 6]
    assert metadata["tokenizer.ggml.add_bos_token"] is True
    assert metadata["tokenizer.chat_template"] == "{{ messages }}"
    assert metadata["big"] == 2**63
    assert metadata["ints"].tolist() == [1, -2, 3]


QUANTIZED = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "BF16", "TQ1_0", "TQ2_0")


def test_its_quantized_tensors(tmp_path):
    """Values are equal bit for bit, or the type is refused by name."""
    values = np.random.default_rng(0).standard_normal((6, 256)).astype(np.float32)
    kinds = {name: gguf.GGMLQuantizationType[name] for name in QUANTIZED}

    def add(writer):
        writer.add_tensor("F32", values)
        writer.add_tensor("F16", values.astype(np.float16))
        for name, kind in kinds.items():
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)

    with open_checkpoint(written(tmp_path / "m.gguf", add)) as checkpoint:
        tensors = checkpoint.tensors
        np.testing.assert_array_equal(tensors["F32"].numpy(), values)
        np.testing.assert_array_equal(tensors["F16"].numpy(), values.astype(np.float16))
        for name, kind in kinds.items():
            tensor = tensors[name]
            assert tensor.type == name
            assert tensor.shape == (6, 256)
            if name not in WEIGHT_FORMATS:
                with pytest.raises(UnsupportedModel, match=name):
                    tensor.numpy()
                continue
            stored = gguf.quants.quantize(values, kind)
            np.testing.assert_array_equal(tensor.data, stored.reshape(-1).view(np.uint8))
            expected = gguf.quants.dequantize(stored, kind)
            np.testing.assert_array_equal(tensor.numpy(), expected)


def test_its_split_files(tmp_path):
    values = np.arange(32, dtype=np.float32)

    def add(writer):
        for i in range(5):
            writer.add_tensor(f"t{i}", values + i)

    written(tmp_path / "m.gguf", add, split_max_tensors=2)

    with open_checkpoint(tmp_path / "m-00001-of-00003.gguf") as checkpoint:
        assert sorted(checkpoint.tensors) == ["t0", "t1", "t2", "t3", "t4"]
        for i in range(5):
            np.testing.assert_array_equal(checkpoint.tensors[f"t{i}"].numpy(), values + i)


def test_its_big_endian_files(tmp_path):
    path = written(
        tmp_path / "m.gguf",
        lambda writer: writer.add_tensor("t", np.ones(4, np.float32)),
        endianess=gguf.GGUFEndian.BIG,
    )

    with pytest.raises(UnsupportedModel, match="big-endian"):
        open_checkpoint(path)


def test_it_reads_a_real_model_alike(smollm2_path):
    reader = gguf.GGUFReader(smollm2_path)

    with open_checkpoint(smollm2_path) as checkpoint:
        keys = [key for key in reader.fields if not key.startswith("GGUF.")]
        assert list(checkpoint.metadata) == keys
        for key in keys:
            found, expected = checkpoint.metadata[key], reader.fields[key].contents()
            assert (list(found) if isinstance(expected, list) else found) == expected
        assert [t.name for t in reader.tensors] == list(checkpoint.tensors)
        for theirs in reader.tensors:
            ours = checkpoint.tensors[theirs.name]
            assert ours.shape == tuple(reversed(theirs.shape.tolist()))
            assert ours.type == theirs.tensor_type.name
            assert ours.start == theirs.data_offset
            np.testing.assert_array_equal(ours.data[:64], theirs.data.reshape(-1).view("u1")[:64])
