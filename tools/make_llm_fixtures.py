"""Write the toy models of the tests: one per family, in both formats, with float64 logits.

    python tools/make_llm_fixtures.py [OUT]          OUT is tests/fixtures by default

Each folder ``<family>/`` gets

hf/           config.json, bf16 model.safetensors, tokenizer.json, tokenizer_config.json
model.gguf    the same model as llama.cpp's converter lays it out
model-*.gguf  (llama only) its matrices in each block format that the gguf package can write
logits.json   ids of a prompt, and the logits after each position by reference_model:
              ``logits`` of the exact weights and of each block format, by name; ``files``, which
              file holds which; ``variants``, each with the keys to change in hf/config.json and
              in model.gguf, and the logits at two positions after that

The families are a table in toy_families. The vocabulary has 288 ids, so that every byte of a text
has one. Everything is seeded: running it again gives the same bytes.
"""

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from reference_model import ReferenceModel, inverse_frequencies
from reference_weights import GgufWeights, HuggingFaceWeights
from toy_families import FAMILIES, Family, head_dim_of, toy_config, toy_weights
from toy_files import gguf_tensors, write_gguf, write_hf
from toy_tokenizer import TOKENS

ROOT = Path(__file__).resolve().parent.parent
N_IDS = 10
VARIANT_POSITIONS = (5, 9)
# GGUF keeps epsilon, theta and RoPE factors in f32: that moves a logit by no more than this.
SAME_MODEL = 1e-5


def rounded(logits: np.ndarray) -> list[list[float]]:
    return [[round(float(value), 6) for value in row] for row in logits]


def prompt(name: str) -> list[int]:
    """Ids of the family's prompt: any ids do."""
    return np.random.default_rng(len(name)).integers(0, len(TOKENS), N_IDS).tolist()


def rope_divisors(config: dict[str, Any]) -> list[float]:
    """Return what llama.cpp's converter stores as rope_freqs.weight for a llama3 config."""
    dims = (head_dim_of(config), 0, config["max_position_embeddings"])
    plain, _ = inverse_frequencies(config["rope_theta"], {}, *dims)
    scaling = dict(config["rope_scaling"])
    scaling["type"] = scaling.pop("rope_type")
    scaled, _ = inverse_frequencies(config["rope_theta"], scaling, *dims)
    return [float(np.float32(value)) for value in plain / scaled]


class Changed:
    """An opened checkpoint with some keys of its config changed."""

    def __init__(self, weights: Any, changes: dict[str, Any]) -> None:
        self._weights = weights
        self._tensors = {key: np.array(v) for key, v in changes.items() if key.endswith(".weight")}
        keys = {key: v for key, v in changes.items() if key not in self._tensors}
        if isinstance(weights, HuggingFaceWeights):
            self.config = weights.config | keys
        else:
            arch = weights.metadata["general.architecture"]
            self.metadata = weights.metadata | {f"{arch}.{key}": v for key, v in keys.items()}

    def __contains__(self, name: str) -> bool:
        return name in self._tensors or name in self._weights

    def __getitem__(self, name: str) -> np.ndarray:
        return self._tensors[name] if name in self._tensors else self._weights[name]

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape, outermost dimension first."""
        return self[name].shape


def variants(folder: Path, family: Family, ids: list[int]) -> dict[str, Any]:
    """Logits of each variant; both formats must agree."""
    out = {}
    for name, variant in family.variants.items():
        entry = dict(variant)
        n_ctx = entry.get("n_ctx")
        changed = Changed(HuggingFaceWeights(folder / "hf"), entry["config"])
        logits = ReferenceModel(changed, n_ctx).logits(ids)
        if "gguf" in entry:
            if "rope_freqs.weight" in entry["gguf"]:
                entry["gguf"] = {"rope_freqs.weight": rope_divisors(changed.config)}
            changed = Changed(GgufWeights(folder / "model.gguf"), entry["gguf"])
            same(ReferenceModel(changed, n_ctx).logits(ids), logits, f"{folder.name} {name}")
        entry["positions"] = list(VARIANT_POSITIONS)
        entry["logits"] = rounded(logits[list(VARIANT_POSITIONS)])
        out[name] = entry
    return out


def same(got: np.ndarray, want: np.ndarray, what: str) -> None:
    worst = np.abs(got - want).max()
    if worst > SAME_MODEL:
        raise SystemExit(f"{what}: GGUF and Hugging Face differ by {worst}")


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write JSON with a line for each row of logits."""
    text = json.dumps(value, separators=(",", ":"))
    path.write_text(text.replace("],[", "],\n[").replace(":[[", ":[\n[") + "\n", "utf-8")


def write_family(folder: Path, name: str, family: Family) -> None:
    """Write all files of one family into a new folder."""
    config, ids = toy_config(family), prompt(name)
    weights = toy_weights(name, config)
    tensors = gguf_tensors(family.arch, config, weights)
    write_hf(folder / "hf", family, weights)
    write_gguf(folder / "model.gguf", name, family, tensors, "F16")
    exact = ReferenceModel(folder / "hf").logits(ids)
    same(ReferenceModel(folder / "model.gguf").logits(ids), exact, name)
    logits = {"exact": rounded(exact)}
    files = {"hf": "exact", "model.gguf": "exact"}
    for block_format in family.formats:
        file = f"model-{block_format.lower()}.gguf"
        write_gguf(folder / file, name, family, tensors, block_format)
        logits[block_format] = rounded(ReferenceModel(folder / file).logits(ids))
        files[file] = block_format
    golden = {"ids": ids, "files": files, "variants": variants(folder, family, ids)}
    write_json(folder / "logits.json", golden | {"logits": logits})


def main() -> None:
    parser = argparse.ArgumentParser(description="toy models with float64 logits")
    parser.add_argument("out", type=Path, nargs="?", default=ROOT / "tests" / "fixtures")
    out = parser.parse_args().out
    with tempfile.TemporaryDirectory() as made:
        for name, family in FAMILIES.items():
            write_family(Path(made) / name, name, family)
        for name in FAMILIES:  # only a whole set replaces the old one
            shutil.rmtree(out / name, ignore_errors=True)
            shutil.copytree(Path(made) / name, out / name)


if __name__ == "__main__":
    main()
