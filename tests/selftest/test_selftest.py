"""The self-test passes here, and would not if any kernel were wrong."""

import inspect
import json

import click.testing
import numpy as np
import pytest

from rml import _kernels, selftest
from rml._kernels.pages import Pages
from rml.cli import cli
from rml.cli import selftest as cli_selftest
from rml.selftest.problem import Kernels

OUTPUTS = {name: kernel.outputs for name, kernel in _kernels.REGISTRY.items()}
PAIRS = [(name, output) for name, outputs in OUTPUTS.items() for output in outputs]


@pytest.fixture(scope="module")
def measured():
    return list(selftest.run())


def test_everything_passes(measured):
    assert [m for m in measured if not m.passed] == []


def test_every_kernel_and_implementation_is_measured(measured):
    assert {m.kernel for m in measured} == set(_kernels.DEFINITIONS)
    assert set(selftest.implementations()) == {"python", *_kernels.runnable_levels()}
    cases = {(m.kernel, m.case) for m in measured}
    assert len(measured) == len(cases) * len(selftest.implementations())
    for name in _kernels.WEIGHT_FORMATS:
        assert {("dequantize", name), ("matmul_many", name), ("embed", name)} <= cases


def test_a_kernel_without_a_problem_is_found(monkeypatch):
    further = _kernels.registry.Kernel(lambda out: None)
    monkeypatch.setitem(_kernels.REGISTRY, "further", further)
    found = list(selftest.run({"python": Kernels(_kernels.DEFINITIONS)}))

    assert [m.kernel for m in found if not m.passed] == ["further"]


def test_bounds_are_worth_something(measured):
    """Errors are not thousands of times below what is allowed, but for where there are none."""
    largest = {}
    for m in measured:
        if m.bound:
            largest[m.kernel] = max(largest.get(m.kernel, 0), m.share)
    assert min(largest.values()) > 0.003, largest


def broken(name, output, spoil):
    """The definitions, of which one writes a result that is off."""
    kernel = _kernels.DEFINITIONS[name]
    signature = inspect.signature(kernel)

    def wrong(*args, **kwargs):
        kernel(*args, **kwargs)
        written = signature.bind(*args, **kwargs).arguments[output]
        if isinstance(written, Pages):
            written = [array for slab in written.slabs for array in slab.arrays()]
        for array in written if isinstance(written, list) else [written]:
            spoil(array)

    return Kernels({**_kernels.DEFINITIONS, name: wrong})


def nudge(array):
    """Move one value by a thousandth, or a whole number by one."""
    flat = array.reshape(-1)
    at = np.abs(np.where(np.isfinite(flat), flat, 0).astype(np.float64)).argmax()
    flat[at] -= 1 if array.dtype.kind == "i" else flat[at] / 512
    assert np.shares_memory(flat, array)


@pytest.mark.parametrize(("name", "output"), PAIRS)
def test_a_wrong_result_is_found(name, output):
    found = list(selftest.run({"broken": broken(name, output, nudge)}))

    assert any(m.kernel == name and not m.passed for m in found)


@pytest.mark.parametrize("name", ["attend", "matmul_many", "rms_norm"])
def test_what_is_no_number_is_found(name):
    def spoil(array):
        array.reshape(-1)[0] = np.nan

    found = list(selftest.run({"broken": broken(name, OUTPUTS[name][0], spoil)}))

    wrong = [m for m in found if m.kernel == name and not m.passed]
    assert wrong
    assert all(m.error == m.share == np.inf for m in wrong if m.bound)


def invoke(*args):
    return click.testing.CliRunner().invoke(cli, ["selftest", *args], prog_name="rml")


def test_the_command(monkeypatch):
    monkeypatch.setattr(
        cli_selftest, "implementations", lambda: {"python": Kernels(_kernels.DEFINITIONS)}
    )
    result = invoke()
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["KERNEL", "python"]
    assert {line.split()[0] for line in lines[1:]} == set(_kernels.DEFINITIONS)
    assert "all within their bounds" in result.stderr
    assert "dequantize Q4_K" in invoke("--all").stdout
    facts = json.loads(invoke("-o", "json").stdout)
    assert {fact["kernel"] for fact in facts} == set(_kernels.DEFINITIONS)
    assert all(fact["passed"] for fact in facts)


def test_the_command_fails_where_a_kernel_is_wrong(monkeypatch):
    monkeypatch.setattr(
        cli_selftest, "implementations", lambda: {"avx2": broken("add", "x", nudge)}
    )
    result = invoke()

    assert result.exit_code == 1
    assert [line.split() for line in result.stdout.splitlines() if "WRONG" in line] == [
        ["add", "WRONG"]
    ]
    assert "WRONG: add 99 wide (avx2)" in result.stderr
