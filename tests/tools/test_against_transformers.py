"""A second opinion on the float64 references: Transformers, run in float64.

Needs torch and transformers, which nothing else here needs; without them these tests skip. A
family that the installed Transformers does not know skips by name.

    pip install torch transformers && pytest tests/tools/test_against_transformers.py
"""

import json
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
FAMILIES = sorted(path.parent.name for path in FIXTURES.glob("*/logits.json"))
# Transformers computes norms and rotary angles in float32 whatever the model's type is.
WITHIN = 1e-4


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_of_a_toy_model(family):
    folder = FIXTURES / family / "hf"
    if json.loads((folder / "config.json").read_text("utf-8"))["model_type"] not in (
        transformers.models.auto.configuration_auto.CONFIG_MAPPING
    ):
        pytest.skip(f"Transformers {transformers.__version__} does not know {family}")
    golden = json.loads((FIXTURES / family / "logits.json").read_text("utf-8"))
    # A padding id outside the vocabulary would be refused; it changes nothing here.
    config = transformers.AutoConfig.from_pretrained(folder, pad_token_id=None)
    config._experts_implementation = "eager"  # the others have no float64
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, config=config, torch_dtype=torch.float64, attn_implementation="eager"
    )

    with torch.no_grad():
        logits = model(torch.tensor([golden["ids"]])).logits[0].numpy()

    np.testing.assert_allclose(logits, np.array(golden["logits"]["exact"]), rtol=0, atol=WITHIN)
