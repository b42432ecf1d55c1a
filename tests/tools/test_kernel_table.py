"""The table of all kernels prints what it says, in figures that make sense; no time is tested."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rml import _kernels
from rml._kernels.block_formats import FORMATS

ROOT = Path(__file__).resolve().parent.parent.parent
TOOL = ROOT / "tools" / "kernel_table.py"
MODEL = ROOT / "tests" / "fixtures" / "llama" / "model-q8_0.gguf"
RATE = re.compile(r"(\d+(?:\.\d+)?) \((\d+)%\)")

compiled = pytest.mark.skipif(_kernels.BACKEND == "python", reason="nothing to hold to limits")


def run(*options, **environment):
    # The tool's folder is on its path, as when it is called by hand.
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    return subprocess.run(
        [sys.executable, TOOL, *options],
        capture_output=True,
        text=True,
        check=False,
        env=clean | environment,
    )


def tables(text):
    """Tables by title, each a list of rows of cells, headings first."""
    found = {}
    for title, body in re.findall(r"\*\*(.+)\*\*\n\n((?:\|.*\n)+)", text):
        rows = [line.strip("| ").split(" |") for line in body.splitlines()]
        found[title] = [[cell.strip() for cell in row] for row in (rows[0], *rows[2:])]
    return found


@pytest.fixture(scope="module")
def printed():
    done = run("--quick", "--markdown", "--formats", "Q4_K,F16", "--threads", "1", "--model", MODEL)
    assert done.returncode == 0, done.stderr
    return done.stdout


@compiled
def test_limits_come_first(printed):
    first = printed.splitlines()[0]

    assert first.startswith(f"**Limits**: 1 thread, {_kernels.ISA}: ")
    assert all(float(x) > 0 for x in re.findall(r"(\d+\.?\d*) G", first))


@compiled
@pytest.mark.parametrize("kernel", ["matmul_many", "matmul_glu", "accumulate", "mix_experts"])
def test_products(printed, kernel):
    (rows,) = (rows for title, rows in tables(printed).items() if title.startswith(kernel))
    head, quantized, plain = rows

    assert head[0] == "format"
    assert (quantized[:2], plain[:2]) == (["Q4_K", "4.50"], ["F16", "16.00"])
    for cell in quantized[2:]:
        assert float(RATE.fullmatch(cell)[1]) >= 0, cell
    assert [bool(cell) for cell in plain[2:]] == [False, False, True] * 2
    # A share is above 0; below the level with bytes in registers it may round to that in decode.
    shares = [int(RATE.fullmatch(cell)[2]) for cell in (*quantized[5:], *plain[2:]) if cell]
    assert sum(shares) > 0


@compiled
def test_the_other_kernels_and_a_model(printed):
    found = tables(printed)
    titles = " ".join(found)
    for part in ("dequantize", "attend", "kernels without weights", "a step of model-q8_0.gguf"):
        assert part in titles

    attention = next(rows for title, rows in found.items() if title.startswith("attend"))
    assert [row[0].split(",")[0] for row in attention[1:]] == ["f32", "f16", "int8"]
    assert all(float(row[1]) > 0 and float(row[3]) > 0 for row in attention[1:])

    step = next(rows for title, rows in found.items() if title.startswith("a step"))
    assert [row[0] for row in step[1:]] == ["1, int8x2", "1, int8"]
    assert all(float(row[1]) > 0 for row in step[1:])
    assert re.search(r"load time of model-q8_0.gguf: \d+\.\d ms", printed)


@compiled
def test_plain_text_and_a_choice_of_parts():
    done = run("--quick", "--formats", "Q8_0", "--parts", "small", "--threads", "1")

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("limits: ")
    assert "|" not in done.stdout
    assert "rms_norm" in done.stdout
    assert "matmul_many" not in done.stdout


def test_refusals():
    unknown = run("--formats", "Q9_9")
    assert unknown.returncode == 2
    assert "unknown format 'Q9_9'" in unknown.stderr
    assert "unknown part 'all'" in run("--parts", "all").stderr
    reference = run(RML_PURE="1")
    assert reference.returncode == 1
    assert "unset RML_PURE" in reference.stderr


@pytest.mark.parametrize("name", sorted(_kernels.WEIGHT_FORMATS))
def test_random_matrices_are_sane_in_every_format(monkeypatch, name):
    monkeypatch.syspath_prepend(ROOT / "asv_benchmarks")
    from benchmarks import synthetic

    layout, entry = synthetic.FORMATS[name], FORMATS[name]
    assert (layout.id, layout.length, layout.n_bytes) == (entry.id, entry.length, entry.n_bytes)

    matrix = synthetic.random_matrix(np.random.default_rng(0), name, 16, 2048)
    values = np.empty(16 * 2048, np.float32)
    _kernels.dequantize(matrix.data, name, values)
    assert 0.01 < values.std() < 0.05  # "of the order of 0.02"
    assert abs(values.mean()) < 0.6 * values.std()
