"""A program may have every floating-point event raise and every warning be an error."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rml import _kernels
from rml.generation.scoring import Score, TokenLogprob
from rml.sampling import stages
from rml.sampling.candidates import Candidates

HERE = Path(__file__).resolve().parent
LLAMA = HERE.parent / "fixtures" / "llama" / "model.gguf"


@pytest.mark.parametrize("pure", ["1", "0"])
def test_results_are_the_same_where_floating_point_events_raise(pure):
    if pure == "0" and _kernels.TWINS is None:
        pure = "1"  # nothing was compiled: there is one kind of kernels
    done = subprocess.run(
        [sys.executable, HERE / "strict_numpy.py", LLAMA],
        env=os.environ | {"RML_PURE": pure},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stderr == ""
    assert done.returncode == 0
    first, *different = done.stdout.splitlines()
    assert int(first.split()[0]) > 1000
    assert different == []


def test_an_unlikely_text_has_an_infinite_perplexity():
    score = Score([1, 2], [None, TokenLogprob(2, -1e4, [])])

    assert score.perplexity == float("inf")


def test_a_bound_of_surprise_far_below_zero_keeps_the_likeliest():
    candidates = Candidates.of(np.array([1, 3, 2], np.float32))

    assert stages.limit_surprise(candidates, -5000.0).ids.tolist() == [1]
