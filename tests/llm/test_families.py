"""Every family's toy model, and the toy Llama's RoPE variants, against float64.

The logits.json of each fixture was made by tools/make_llm_fixtures.py. Both formats hold the same
weights, so both must give the same numbers. A variant changes keys of the config alone; its files
are made here from the committed ones.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader, GGUFValueType, GGUFWriter

from rml.engine.sessions import open_session
from rml.files import open_checkpoint
from rml.llm.decoder import DecoderLM

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
DENSE = ("llama", "mistral", "qwen2", "qwen3", "gemma3_text", "smollm3")
EXPERTS = ("mixtral", "qwen3_moe", "olmoe")
FAMILIES = (*DENSE, *EXPERTS)
FORMATS = ("hf", "model.gguf")
COMPUTES = ("f32", "int8x2", "int8")
N_CTX = 32
WITHIN = 1e-4


def golden_of(family: str) -> dict[str, Any]:
    return json.loads((FIXTURES / family / "logits.json").read_text("utf-8"))


LLAMA = golden_of("llama")
VARIANTS = [
    (name, file)
    for name, variant in LLAMA["variants"].items()
    for file in FORMATS
    if file == "hf" or "gguf" in variant
]


def logits_of(
    path: Path,
    ids: list[int],
    *,
    chunk: int = N_CTX,
    n_ctx: int = N_CTX,
    compute: str = "f32",
    n_threads: int = 1,
) -> np.ndarray:
    """Logits of all positions, `chunk` tokens a call: (n, n_vocab) float32."""
    with open_checkpoint(path) as checkpoint:
        decoder = DecoderLM(checkpoint, compute=compute, n_threads=n_threads, n_ctx=n_ctx)
        cache = open_session(decoder, n_ctx, kv_type="f32")
        rows = [
            cache.forward(ids[start : start + chunk], all_logits=True)
            for start in range(0, len(ids), chunk)
        ]
    return np.concatenate(rows)


def test_every_fixture_is_a_family() -> None:
    assert sorted(FAMILIES) == sorted(path.name for path in FIXTURES.iterdir() if path.is_dir())


@pytest.mark.parametrize("file", FORMATS)
@pytest.mark.parametrize("family", FAMILIES)
def test_logits(family: str, file: str) -> None:
    golden = golden_of(family)
    logits = logits_of(FIXTURES / family / file, golden["ids"])

    np.testing.assert_allclose(logits, golden["logits"]["exact"], rtol=0, atol=WITHIN)


@pytest.mark.parametrize("compute", COMPUTES)
@pytest.mark.parametrize("file", FORMATS)
@pytest.mark.parametrize("family", FAMILIES)
def test_chunks_and_threads_change_no_bit(family: str, file: str, compute: str) -> None:
    """Windows, layers without RoPE, norms of heads and experts do not care how a prompt is cut."""
    ids, path = golden_of(family)["ids"], FIXTURES / family / file
    whole = logits_of(path, ids, compute=compute)

    for n_threads in (1, 2):
        for chunk in (1, 3, 4, len(ids)):
            again = logits_of(path, ids, chunk=chunk, compute=compute, n_threads=n_threads)
            np.testing.assert_array_equal(again, whole)


@pytest.mark.parametrize(("name", "file"), VARIANTS)
def test_rope_variant(tmp_path: Path, name: str, file: str) -> None:
    variant = LLAMA["variants"][name]
    path = tmp_path / file
    if file == "hf":
        change_config(FIXTURES / "llama" / "hf", path, variant["config"])
    else:
        change_gguf(FIXTURES / "llama" / file, path, variant["gguf"])

    logits = logits_of(path, LLAMA["ids"], n_ctx=variant.get("n_ctx", N_CTX))

    got = logits[variant["positions"]]
    np.testing.assert_allclose(got, variant["logits"], rtol=0, atol=WITHIN)
    plain = np.array(LLAMA["logits"]["exact"])[variant["positions"]]
    assert np.abs(got - plain).max() > 100 * WITHIN  # the variant is not the plain model


def change_config(folder: Path, out: Path, keys: dict[str, Any]) -> None:
    """Copy a Hugging Face folder and set keys of its config.json."""
    shutil.copytree(folder, out)
    config = json.loads((out / "config.json").read_text("utf-8"))
    (out / "config.json").write_text(json.dumps(config | keys), "utf-8")


def change_gguf(path: Path, out: Path, keys: dict[str, Any]) -> None:
    """Copy a GGUF file and set keys of its architecture; a list is a tensor."""
    reader = GGUFReader(path)
    arch = reader.fields["general.architecture"].contents()
    writer = GGUFWriter(out, arch)
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            kind, *inner = field.types
            writer.add_key_value(name, field.contents(), kind, inner[-1] if inner else None)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    kinds = {str: GGUFValueType.STRING, float: GGUFValueType.FLOAT32, int: GGUFValueType.UINT32}
    for key, value in keys.items():
        if isinstance(value, list):
            writer.add_tensor(key, np.array(value, np.float32))
        else:
            writer.add_key_value(f"{arch}.{key}", value, kinds[type(value)])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
