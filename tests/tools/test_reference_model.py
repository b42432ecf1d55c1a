"""The float64 reference is itself checked: against the case bank, and against its own cache."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
FAMILIES = sorted(path.name for path in (ROOT / "tests" / "fixtures").iterdir())
CASES = (
    "gemma3-linear",
    "llama-rope-llama3",
    "llama-untied",
    "mistral-nemo-headdim",
    "qwen2-bias-tied",
    "qwen3moe",
    "smollm3-nope",
)
ROUNDED = 1e-6  # both sides are float64; the case bank rounds to 6 decimals, GGUF's theta to f32


@pytest.fixture
def reference_model(monkeypatch: pytest.MonkeyPatch):
    """The module tools/reference_model.py."""
    monkeypatch.syspath_prepend(ROOT / "tools")
    import reference_model

    yield reference_model
    for name in ("reference_model", "reference_recipe", "reference_weights"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("file", ["model.gguf", "hf"])
@pytest.mark.parametrize("case", CASES)
def test_agrees_with_the_case_bank(reference_model, cases_dir: Path, case: str, file: str) -> None:
    folder = cases_dir / "tiny" / case
    expected = json.loads((folder / "expected.json").read_text("utf-8"))
    model = reference_model.ReferenceModel(folder / file)
    logits = model.logits(expected["tokens"])

    np.testing.assert_allclose(logits[-1], expected["logits_last"], rtol=0, atol=ROUNDED)
    assert logits.argmax(axis=1).tolist() == expected["argmax_per_position"]
    greedy, margins = model.greedy(expected["tokens"], len(expected["greedy_next_12"]))
    assert greedy == expected["greedy_next_12"]
    assert min(margins) == pytest.approx(expected["greedy_min_margin"], abs=2e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_cache_changes_nothing(reference_model, family: str) -> None:
    folder = ROOT / "tests" / "fixtures" / family
    ids = json.loads((folder / "logits.json").read_text("utf-8"))["ids"]
    model = reference_model.ReferenceModel(folder / "hf")
    cache = reference_model.Cache()

    pieces = [model.logits(ids[:3], cache)] + [model.logits([token], cache) for token in ids[3:]]

    np.testing.assert_allclose(np.concatenate(pieces), model.logits(ids), rtol=0, atol=1e-12)
