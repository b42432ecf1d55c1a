"""The case bank's GGUF and safetensors files, one test a file: accepted with values, or refused."""

import json
import os
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from rml.errors import CheckpointError, UnsupportedModel
from rml.files import open_checkpoint


def cases(kind):
    """Cases of the bank for containers; one that skips, by name, where there is no bank."""
    root = Path(__file__).resolve().parents[3] / "shared" / "cases"
    index = Path(os.environ.get("RML_CASES_DIR", root)) / kind / "index.json"
    if not index.is_file():
        return [pytest.param(None, id="no-case-bank")]
    found = json.loads(index.read_text())["cases"]
    return [pytest.param(c, id=c["id"]) for c in found if c.get("level") != "model"]


def check(folder, case):
    path = folder / (case.get("file") or case["folder"])
    tracemalloc.start()
    start = time.perf_counter()
    try:
        with open_checkpoint(path) as checkpoint:
            values = {name: tensor.numpy() for name, tensor in checkpoint.tensors.items()}
        outcome, message = "accept", path.name
    except (CheckpointError, UnsupportedModel) as error:
        outcome, message = "reject", str(error)
    finally:
        seconds, peak = time.perf_counter() - start, tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()

    assert path.name in message
    assert outcome in case["expect"].split("-or-")
    assert seconds < 2
    assert peak < 20e6
    if outcome == "accept" and "values_flat" in case:
        assert values.keys() == case["values_flat"].keys()
        for name, expected in case["values_flat"].items():
            np.testing.assert_array_equal(values[name].reshape(-1), expected)


@pytest.mark.parametrize("case", cases("gguf"))
def test_gguf_case(cases_dir, case):
    check(cases_dir / "gguf", case)


@pytest.mark.parametrize("case", cases("safetensors"))
def test_safetensors_case(cases_dir, case):
    check(cases_dir / "safetensors", case)
