"""rml show: metadata, tensors, memory, single tensors."""

import json
import math
import re
import shutil

import gguf
import numpy as np
import pytest

import rml


def write_gguf(path, tensors=(), **metadata):
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in metadata.items():
        writer.add_key_value(key, *value)
    for name, array in tensors:
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_the_overview(rml_command, toy_path):
    result = rml_command("show", toy_path)
    text = result.stdout

    assert result.exit_code == 0
    assert text.startswith(f"{toy_path}: gguf, ")
    assert re.search(r"^general\.architecture +str +llama$", text, re.MULTILINE)
    assert re.search(
        r"^tokenizer\.ggml\.tokens +str\[288\] +<\|endoftext\|>, .* \.\.\.$", text, re.MULTILINE
    )
    assert re.search(r"^all +21 +37024 +\d+$", text, re.MULTILINE)
    assert "parameters: 37,024 (llama)" in text
    # 2 layers, keys and values of 2 heads of 8 channels, 4 bytes each
    assert re.search(r"^KV cache f32, one token +256 bytes$", text, re.MULTILINE)
    assert re.search(r"^KV cache f16, 128 tokens +16\.4 kB$", text, re.MULTILINE)
    assert max(map(len, text.splitlines())) < 140
    assert "blk.0.attn_q.weight" not in text


def test_every_tensor(rml_command, toy_path):
    text = rml_command("show", toy_path, "--tensors").stdout
    with rml.open_checkpoint(toy_path) as checkpoint:
        for tensor in checkpoint.tensors.values():
            shape = " x ".join(map(str, tensor.shape))
            row = rf"^{re.escape(tensor.name)} +{shape} +{tensor.type} +{tensor.n_bytes}$"
            assert re.search(row, text, re.MULTILINE)


def test_json(rml_command, toy_path):
    result = rml_command("show", toy_path, "-o", "json")
    facts = json.loads(result.stdout)

    assert len(result.stdout.splitlines()) == 1
    assert facts["format"] == "gguf"
    assert facts["size"] == toy_path.stat().st_size
    assert facts["parameters"] == 37024
    assert facts["metadata"]["llama.block_count"] == 2
    assert facts["metadata"]["tokenizer.ggml.tokens"]["length"] == 288
    assert len(facts["tensors"]) == 21
    assert facts["memory"]["kv_bytes_per_token"] == {"f32": 256, "f16": 128, "int8": 96}


def test_a_hugging_face_folder(rml_command, toy_path):
    text = rml_command("show", toy_path.parent / "hf").stdout
    assert ": safetensors, " in text
    assert re.search(r"^hidden_size +int +32$", text, re.MULTILINE)
    assert re.search(r"^BF16 +21 +37024 +74048 +16\.00$", text, re.MULTILINE)
    assert "parameters: 37,024 (llama)" in text


def test_one_key_in_full(rml_command, toy_path):
    template = rml_command("show", toy_path, "--key", "tokenizer.chat_template").stdout
    with rml.open_checkpoint(toy_path) as checkpoint:
        assert template == checkpoint.metadata["tokenizer.chat_template"] + "\n"
    tokens = rml_command("show", toy_path, "--key", "tokenizer.ggml.tokens").stdout.splitlines()
    assert len(tokens) == 288
    kinds = rml_command("show", toy_path, "--key", "tokenizer.ggml.token_type", "-o", "json")
    assert json.loads(kinds.stdout)[:4] == [3, 3, 3, 1]
    assert rml_command("show", toy_path, "--key", "llama.block_count").stdout == "2\n"
    missing = rml_command("show", toy_path, "--key", "x.y")
    assert missing.exit_code == 1
    assert "there is no key 'x.y'" in missing.stderr


@pytest.mark.parametrize("file", ["model.gguf", "model-q8_0.gguf", "model-q5_1.gguf"])
def test_one_tensor(rml_command, toy_path, file):
    path = toy_path.with_name(file)
    name = "blk.1.ffn_up.weight"
    with rml.open_checkpoint(path) as checkpoint:
        values = checkpoint.tensors[name].numpy().astype(np.float64)
        kind = checkpoint.tensors[name].type

    facts = json.loads(rml_command("show", path, "--tensor", name, "-o", "json").stdout)
    assert facts["shape"] == [64, 32]
    assert facts["type"] == kind
    assert facts["min"] == values.min()
    assert facts["max"] == values.max()
    assert facts["mean"] == pytest.approx(values.mean(), rel=1e-12, abs=1e-15)
    assert facts["sd"] == pytest.approx(values.std(), rel=1e-12)
    assert facts["first"] == values.reshape(-1)[:8].tolist()

    text = rml_command("show", path, "--tensor", name).stdout.splitlines()
    assert text[0].startswith(f"{name}: 64 x 32 {kind}, ")
    assert text[1] == f"range: ({values.min():.6g}, {values.max():.6g})"
    assert text[2].startswith("mean: ")
    assert text[3].endswith(" ...")


def test_a_tensor_in_several_pieces(rml_command, toy_path, monkeypatch):
    monkeypatch.setattr("rml.cli.show._CHUNK", 96)
    test_one_tensor(rml_command, toy_path, "model-q8_0.gguf")
    test_one_tensor(rml_command, toy_path, "model.gguf")


def test_values_that_are_not_finite(rml_command, tmp_path):
    values = np.array([[1, 2, np.inf, np.nan]], np.float32)
    path = write_gguf(tmp_path / "x.gguf", [("w", values), ("e", values[:, 2:])])

    text = rml_command("show", path, "--tensor", "w").stdout
    assert "range: (1, 2)" in text
    assert "mean: 1.5 ± 0.5" in text
    assert "not finite: 2 values" in text
    facts = json.loads(rml_command("show", path, "--tensor", "e", "-o", "json").stdout)
    assert facts["mean"] == "nan"
    assert facts["first"] == ["inf", "nan"]


def test_integers(rml_command, tmp_path):
    path = write_gguf(tmp_path / "x.gguf", [("n", np.array([3, -1, 4], np.int32))])
    facts = json.loads(rml_command("show", path, "--tensor", "n", "-o", "json").stdout)
    assert (facts["min"], facts["max"], facts["mean"]) == (-1, 4, 2)
    assert math.isclose(facts["sd"], math.sqrt(14 / 3))


def test_a_tensor_that_is_not_there(rml_command, toy_path):
    result = rml_command("show", toy_path, "--tensor", "blk.0.attn_q")
    assert result.exit_code == 1
    assert "close to it: blk.0.attn_q.weight" in result.stderr


def test_a_file_with_a_vocabulary_only(rml_command, tmp_path):
    strings = gguf.GGUFValueType.ARRAY
    path = write_gguf(
        tmp_path / "vocab.gguf",
        **{
            "tokenizer.ggml.tokens": (["a", "\x1b[2J", "c" * 99], strings),
            "long": (list(range(20)), strings),
        },
    )
    result = rml_command("show", path)
    assert result.exit_code == 0
    assert r"\x1b[2J" in result.stdout
    assert "\x1b" not in result.stdout
    assert "MEMORY" not in result.stdout
    facts = json.loads(rml_command("show", path, "-o", "json").stdout)
    assert facts["parameters"] is None
    assert facts["unsupported"]


def test_an_architecture_that_rml_does_not_run(rml_command, tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "mamba")
    writer.add_tensor("w", np.zeros((2, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    result = rml_command("show", tmp_path / "m.gguf")
    assert result.exit_code == 0
    assert "weights" in result.stdout
    assert "rml cannot run this model:" in result.stderr
    assert "mamba" in result.stderr


def test_a_file_that_is_no_model(rml_command, tmp_path):
    (tmp_path / "x.gguf").write_bytes(b"<html>" + bytes(100))
    result = rml_command("show", tmp_path / "x.gguf")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "Traceback" not in result.stderr


def test_the_default_is_smollm2(rml_command, known_toy):
    result = rml_command("show")
    assert result.exit_code == 1
    assert "smollm2" in result.stderr


def test_the_model_may_be_an_option(rml_command, toy_path):
    assert rml_command("show", "-m", toy_path).stdout == rml_command("show", toy_path).stdout


def test_a_known_name(rml_command, known_toy, toy_path, tmp_path):
    (tmp_path / "cache").mkdir()
    shutil.copy(toy_path, tmp_path / "cache" / "toy.gguf")
    assert rml_command("show", "toy").stdout.startswith(f"{tmp_path / 'cache' / 'toy.gguf'}: ")


def test_smollm2(rml_command, smollm2_path):
    text = rml_command("show", smollm2_path).stdout
    assert re.search(r"^Q4_1 +210 +106168320 +66355200 +5\.00$", text, re.MULTILINE)
    assert "parameters: 134,515,008 (llama)" in text
    assert re.search(r"^KV cache f16, one token +23\.0 kB$", text, re.MULTILINE)


def test_stop_tokens_and_why(rml_command, toy_path):
    folder = toy_path.with_name("hf")
    text = rml_command("show", toy_path).stdout
    facts = json.loads(rml_command("show", folder, "-o", "json").stdout)

    assert re.search(
        r"^ +2  <\|im_end\|> +tokenizer\.ggml\.eos_token_id, its name$", text, re.MULTILINE
    )
    assert facts["stop_tokens"] == [
        {"id": 0, "text": "<|endoftext|>", "why": ["its name"]},
        {
            "id": 2,
            "text": "<|im_end|>",
            "why": ["tokenizer_config.json: eos_token", "config.json: eos_token_id", "its name"],
        },
    ]


def test_a_file_without_a_vocabulary_has_no_stop_tokens(rml_command, tmp_path):
    path = write_gguf(tmp_path / "x.gguf", [("a", np.ones(4, np.float32))])

    assert "STOP TOKEN" not in rml_command("show", path).stdout
    assert json.loads(rml_command("show", path, "-o", "json").stdout)["stop_tokens"] is None
