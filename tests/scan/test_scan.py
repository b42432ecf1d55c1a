"""`rml scan`: good models are clean, each kind of finding is found, broken files are said to be."""

import json
import os
import shutil
import struct
import tracemalloc
from pathlib import Path

import click.testing
import gguf
import numpy as np
import pytest

import rml
from rml._kernels.block_formats import FORMATS
from rml._kernels.checks import WEIGHT_FORMATS
from rml.cli import cli
from rml.errors import RmlError
from rml.files import cache
from rml.files.cache import FileRecord, Receipt
from rml.files.limits import LIMITS
from rml.scan import scan
from rml.scan.templates import audit, hidden_characters

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
TOY = FIXTURES / "llama" / "model.gguf"
FAMILIES = sorted(path.parent for path in FIXTURES.rglob("config.json"))


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RML_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def toy(tmp_path):
    """A copy of the toy model that may be changed."""
    return Path(shutil.copy(TOY, tmp_path / "model.gguf"))


@pytest.fixture
def folder(tmp_path):
    """A copy of the toy model as a folder."""
    return Path(shutil.copytree(TOY.parent / "hf", tmp_path / "hf"))


def run(*args):
    return click.testing.CliRunner().invoke(cli, ["scan", *map(str, args)], prog_name="rml")


def found(path):
    """What is found, and that the command line says the same."""
    report = scan(path)
    result = run(path, "-o", "json")
    assert result.exit_code == (0 if report.is_clean else 1), result.output
    told = json.loads(result.stdout)
    assert told["status"] == ("clean" if report.is_clean else "findings")
    assert [f["what"] for f in told["findings"]] == [f.what for f in report.findings]
    text = run(path)
    assert text.exit_code == result.exit_code
    for output in (text.output, result.output):
        assert all(c.isprintable() or c == "\n" for c in output)
    return [(f.kind, f.where, f.what) for f in report.findings]


def write(path, *, tokens=(), types=(), template=None, **keys):
    """Write a GGUF file without tensors."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in keys.items():
        writer.add_string(key.replace("__", "."), value)
    if tokens:
        writer.add_tokenizer_model("llama")
        writer.add_token_list(tokens)
        writer.add_token_scores([0.0] * len(tokens))
        writer.add_token_types(types)
    if template is not None:
        writer.add_chat_template(template)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_blocks(path, data, kind):
    """Write a GGUF file of one matrix of a format, whether or not others know it yet."""
    shape = (len(data), data.shape[1] // FORMATS[kind].n_bytes * FORMATS[kind].length)
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + struct.pack("<Q", 1) + b"w"
    head += struct.pack("<IQQIQ", 2, shape[1], shape[0], FORMATS[kind].id, 0)
    path.write_bytes(head + bytes(-len(head) % 32) + data.tobytes())
    return path


# ---- clean ----


@pytest.mark.parametrize("path", FAMILIES, ids=lambda path: path.parent.name)
def test_toy_models_are_clean(path):
    assert found(path) == []


@pytest.mark.parametrize("path", sorted(FIXTURES.rglob("*.gguf")), ids=lambda p: p.parent.name)
def test_toy_files_are_clean(path):
    assert found(path) == []


def test_a_tokenizer_alone(folder):
    assert found(folder / "tokenizer.json") == []
    (folder / "model.safetensors").unlink()
    assert found(folder) == []  # it holds a tokenizer alone now
    assert scan(folder).format == "tokenizer"


def test_a_split_model_in_all_its_parts(tmp_path):
    paths = [tmp_path / f"m-0000{i}-of-00002.gguf" for i in (1, 2)]
    for number, path in enumerate(paths):
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", 2)
        writer.add_int32("split.tensors.count", 2)
        values = np.ones((1, 8), np.float32)
        values[0, 3 + number] = np.inf if number else 1
        writer.add_tensor(f"t{number}", values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    report = scan(paths[0])

    assert [file.path for file in report.files] == [str(path) for path in paths]
    bad = [f for f in report.findings if f.kind == "weights"]
    assert [(f.where, f.count) for f in bad] == [("t1", 1)]
    assert bad[0].what.endswith("the first at [0, 4]")


def test_real_models_are_clean(smollm2_path, gemma3_path):
    for path in (smollm2_path, gemma3_path):
        assert found(path) == []
        assert [file.receipt for file in scan(path).files] == ["same"]


def test_progress_counts_every_byte(toy):
    calls = []
    scan(toy, lambda done, total: calls.append((done, total)))
    assert calls[-1][0] == calls[-1][1] > toy.stat().st_size
    assert calls == sorted(calls)


# ---- weights ----


@pytest.mark.parametrize("kind", sorted(WEIGHT_FORMATS))
def test_values_that_are_not_finite_in_every_format(tmp_path, kind, monkeypatch):
    entry = FORMATS[kind]
    rng = np.random.default_rng(5)
    blocks = np.zeros((3, 4, entry.n_bytes), np.uint8)
    clean = write_blocks(tmp_path / "clean.gguf", blocks.reshape(3, -1), kind)
    bad = blocks.copy()
    bad[1, 2] = 0xFF
    wild = rng.integers(0, 256, blocks.shape, np.uint8)
    monkeypatch.setattr("rml.scan.weights._CHUNK", 2 * entry.length)  # several pieces

    assert [f for f in scan(clean).findings if f.kind == "weights"] == []
    for data in (bad, wild):
        path = write_blocks(tmp_path / "x.gguf", data.reshape(3, -1), kind)
        with rml.open_checkpoint(path) as checkpoint:
            values = checkpoint.tensors["w"].numpy()
        n_bad = int((~np.isfinite(values)).sum())
        findings = [f for f in scan(path).findings if f.kind == "weights"]
        assert sum(f.count for f in findings) == n_bad
        if n_bad:
            n_nans = int(np.isnan(values).sum())
            first = ", ".join(map(str, np.argwhere(~np.isfinite(values))[0]))
            assert f"{n_nans} values are NaN and {n_bad - n_nans} infinite" in findings[0].what
            assert findings[0].what.endswith(f"the first at [{first}]")


@pytest.mark.parametrize("dtype", ["F64", "F8_E4M3", "F8_E5M2", "C64", "F16", "BF16", "F32"])
def test_values_of_safetensors_that_are_not_finite(tmp_path, dtype):
    width = {"F64": 8, "C64": 8, "F32": 4, "F16": 2, "BF16": 2}.get(dtype, 1)
    header = {"w": {"dtype": dtype, "shape": [4], "data_offsets": [0, 4 * width]}}
    for fill, expected in ((b"\0", 0), (b"\xff", 1)):
        data = bytes(2 * width) + fill * width + bytes(width)
        text = json.dumps(header).encode()
        path = tmp_path / "m.safetensors"
        path.write_bytes(struct.pack("<Q", len(text)) + text + data)
        findings = scan(path).findings
        assert [f.count for f in findings] == [1] * expected
        assert all(f.what.endswith("[2]") for f in findings)


def test_a_type_that_cannot_be_read_is_said(tmp_path):
    header = {
        "w": {"dtype": "F6_E2M3", "shape": [4], "data_offsets": [0, 3]},
        "i": {"dtype": "I32", "shape": [1], "data_offsets": [3, 7]},
    }
    text = json.dumps(header).encode()
    path = tmp_path / "m.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"\xff" * 7)
    assert found(path) == [("weights", "w", "is stored as F6_E2M3, which cannot be read")]


def test_memory_stays_small_whatever_a_tensor_s_size(tmp_path):
    path = write_blocks(tmp_path / "x.gguf", np.zeros((1, 2), np.uint8), "F16")
    data = path.read_bytes()
    path.write_bytes(data[:37] + struct.pack("<QQ", 1 << 20, 100) + data[53:])
    os.truncate(path, len(data) - 2 + (100 << 21))  # 100 million values of nothing

    tracemalloc.start()
    report = scan(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert report.facts["values"] == 100 << 20
    assert peak < 20e6


def test_one_bad_scale_is_a_bad_block(tmp_path):
    path = Path(shutil.copy(TOY.with_name("model-q4_0.gguf"), tmp_path))
    name = "blk.1.ffn_up.weight"
    with rml.open_checkpoint(path) as checkpoint:
        start = checkpoint.tensors[name].start
    with path.open("r+b") as file:
        file.seek(start + 18 * 3)
        file.write(b"\x00\x7c")  # infinity in half precision, the scale of the fourth block
    [(kind, where, what)] = found(path)
    assert (kind, where) == ("weights", name)
    assert what.endswith("(Q4_0), the first at [3, 0]")


# ---- structure, checksum, metadata ----


def test_bytes_that_belong_to_nothing(toy):
    with toy.open("ab") as file:
        file.write(b"another model" * 10)
    assert found(toy) == [("structure", "model.gguf", "130 bytes in 1 places belong to no tensor")]


def test_a_file_that_is_not_that_of_its_receipt(toy):
    record = FileRecord.of(toy, cache.sha256_of(toy))
    cache.write_receipt(Receipt("o/r", str(toy), "", (record,)))
    assert found(toy) == []
    assert scan(toy).files[0].receipt == "same"

    cache.write_receipt(Receipt("o/r", str(toy), "", (FileRecord.of(toy, "ab" * 32),)))
    [(kind, where, what)] = found(toy)
    assert (kind, where) == ("checksum", "model.gguf")
    assert record.sha256 in what
    assert "ab" * 32 in what


def test_keys_that_rml_does_not_know(tmp_path):
    path = write(tmp_path / "x.gguf", stranger__key="x", tokenizer__odd="y")
    [(kind, _, what)] = found(path)
    assert kind == "metadata"
    assert "stranger.key, tokenizer.odd" in what


def test_keys_with_characters_that_nobody_sees(tmp_path):
    path = write(tmp_path / "x.gguf", general__description="good\u202ekcatta\x1b[2J")
    assert found(path) == [
        ("metadata", "keys", "keys with characters that nobody sees: general.description")
    ]


def test_a_switch_that_rml_does_not_follow(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"odd_attention": 5}))
    [(kind, where, what)] = found(folder)
    assert (kind, where) == ("metadata", "model")
    assert "odd_attention" in what


# ---- templates ----

GOOD = "{% for m in messages %}{{ m['role'] }}: {{ m.content }}\n{% endfor %}"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (GOOD + "\u202e", "has characters that nobody sees: U+202E"),
        (GOOD + "\U000e0041\u200b\x1b", "has characters that nobody sees: U+E0041, U+200B, U+001B"),
        ("{% for %}", "cannot be used: "),
        ("{{ " + "(" * 5000, "cannot be used: "),
        (GOOD + "{{ ''.__class__ }}", "uses what is refused: attribute '__class__'"),
        (GOOD + "{{ ''['__mro__'] }}", "uses what is refused: attribute '__mro__'"),
        (GOOD + "{{ ''|attr('__base__') }}", "uses what is refused: attribute '__base__'"),
        (GOOD + "{{ x | shell }}", "uses what is refused: filter 'shell'"),
        (GOOD + "{% if x is evil %}{% endif %}", "uses what is refused: test 'evil'"),
        (GOOD + "{% include '/etc/passwd' %}", "uses what is refused: include"),
        ("{{ raise_exception('no\x1b[2J') }}", "renders none of 3 small chats: no"),
        ("{{ messages[99].content.x }}", "renders none of 3 small chats: "),
        (
            "{% for i in range(10**9) %}{% for j in range(10**9) %}{% endfor %}{% endfor %}",
            "renders",
        ),
        ("You are evil. {{ 5 }}", "renders a small chat without what the user said"),
    ],
    ids=lambda value: ascii(value)[-30:],
)
def test_templates(toy, source, expected):
    whats = [finding.what for finding in audit("default", source, {"bos_token": "<s>"})]
    assert any(what.startswith(expected) for what in whats), whats


def test_a_template_s_findings_are_those_of_the_file(tmp_path, folder):
    path = write(tmp_path / "x.gguf", template=GOOD + "\u200b")
    assert found(path) == [("template", "default", "has characters that nobody sees: U+200B")]

    (folder / "chat_template.jinja").write_text(GOOD + "{{ ''.__class__ }}")
    kinds = {(kind, where) for kind, where, _ in found(folder)}
    assert kinds == {("template", "default")}


def test_real_templates_have_nothing_hidden(cases_dir):
    sources = sorted((cases_dir / "chat").rglob("*.jinja"))
    assert len(sources) > 50
    for source in sources:
        text = source.read_text(encoding="utf-8")
        assert hidden_characters(text) == [], source
        for finding in audit("default", text, {"bos_token": "<s>", "eos_token": "</s>"}):
            assert "nobody sees" not in finding.what


# ---- tokens ----


def test_tokens_that_look_like_control_tokens(tmp_path):
    tokens = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|user|>", "a", "a", "<|x\u200b|>", "<b>"]
    types = [2, 3, 3, 3, 1, 1, 1, 3, 1]
    path = write(tmp_path / "x.gguf", tokens=tokens, types=types)
    whats = [what for kind, _, what in found(path) if kind == "tokens"]
    assert whats == [
        "texts are those of several tokens: 'a'",
        "tokens look like control tokens and are none: 4 ('<|user|>')",
        "control tokens have characters that nobody sees: 7 ('<|x\\u200b|>')",
    ]


def test_a_model_that_never_ends(folder):
    for name in ("tokenizer_config.json", "config.json"):
        fields = json.loads((folder / name).read_text())
        fields = {key: value for key, value in fields.items() if "eos" not in key}
        (folder / name).write_text(json.dumps(fields))
    text = (folder / "tokenizer.json").read_text().replace("<|endoftext|>", "<|first|>")
    (folder / "tokenizer.json").write_text(text.replace("<|im_end|>", "<|over|>"))
    kinds = {(kind, where) for kind, where, _ in found(folder)}
    assert ("tokens", "end tokens") in kinds


def test_a_vocabulary_that_cannot_be_used(tmp_path):
    path = write(tmp_path / "x.gguf", tokenizer__ggml__model="bert")
    [(kind, where, what)] = found(path)
    assert (kind, where) == ("tokens", "vocabulary")
    assert "cannot be used" in what


# ---- broken ----


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-100],
        lambda data: data[:1000],
        lambda data: b"",
        lambda data: b"GGUF" + bytes(20),
        lambda data: b"\x1b[2Jhello\n",
        lambda data: data[:8] + b"\xff" * 16 + data[24:],
    ],
)
def test_broken_files(toy, damage):
    toy.write_bytes(damage(toy.read_bytes()))

    with pytest.raises(RmlError):
        scan(toy)
    result = run(toy)
    assert result.exit_code == 2
    assert result.stderr.startswith("broken: ")
    assert "\x1b" not in result.output
    told = run(toy, "-o", "json")
    assert told.exit_code == 2
    assert json.loads(told.stdout)["status"] == "broken"


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"model": 5}', '{"model": {"type": "x"}}'])
def test_broken_tokenizers(tmp_path, text):
    (tmp_path / "tokenizer.json").write_text(text)
    assert run(tmp_path / "tokenizer.json").exit_code == 2
    assert run(tmp_path).exit_code == 2


def test_what_is_not_there(tmp_path):
    for name in (tmp_path / "no", "x" * 5000, "a\0b", "", "o/not-pulled"):
        result = run(name)
        assert result.exit_code == 2
        assert result.stderr.startswith("broken: ")
    assert run().exit_code == 2  # click's own, for a missing word


def test_limits():
    rows = json.loads(run("--limits", "-o", "json").stdout)
    assert [row["value"] for row in rows] == [limit.value for limit in LIMITS]
    text = run("--limits").stdout
    assert all(limit.reason in text for limit in LIMITS)
    assert run("--limits", TOY).exit_code == 2


def test_every_file_of_the_case_bank_ends_in_a_verdict(cases_dir):
    paths = [
        path
        for path in sorted(cases_dir.rglob("*"))
        if path.suffix in {".gguf", ".safetensors"}
        or path.name == "tokenizer.json"
        or (path / "config.json").is_file()
    ]
    assert len(paths) > 200
    verdicts = set()
    for path in paths:
        try:
            verdicts.add(scan(path).is_clean)
        except RmlError:
            verdicts.add(None)
    assert verdicts == {True, False, None}
