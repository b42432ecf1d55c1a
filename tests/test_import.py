"""Importing rml: light, silent, and everything public is there."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import rml
from rml import errors

ROOT = Path(__file__).resolve().parent.parent


def python(code, *options, **environment):
    """Run a new interpreter; return what it wrote."""
    done = subprocess.run(
        [sys.executable, *options, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "RML_PURE": "1", **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.mark.parametrize("name", rml.__all__)
def test_every_public_name_is_there(name):
    assert getattr(rml, name) is not None
    assert name in dir(rml)


def test_the_errors_are_public():
    assert set(errors.__all__) <= set(rml.__all__)


def test_a_name_that_is_not_public_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'rml' has no attribute 'laod'"):
        rml.laod  # noqa: B018


def test_import_loads_nothing_that_is_not_needed():
    out, err = python("import rml, sys; print(*sys.modules)")

    loaded = set(out.split())
    assert not loaded & {"numpy", "jinja2", "regex", "rich", "click", "platformdirs", "asyncio"}
    assert err == ""


def test_completing_a_text_needs_no_command_line_and_no_templates():
    file = ROOT / "tests" / "fixtures" / "llama" / "model.gguf"
    out, _ = python(
        f"import rml, sys; rml.load({str(file)!r}).generate('a', max_tokens=1); print(*sys.modules)"
    )

    assert not set(out.split()) & {"rich", "click", "huggingface_hub", "asyncio", "jinja2"}


def test_import_takes_less_than_two_tenths_of_a_second():
    _, report = python("import rml", "-X", "importtime")

    (line,) = (line for line in report.splitlines() if line.split("|")[-1].strip() == "rml")
    assert int(line.split("|")[1]) < 200_000  # microseconds, imports of others included


def test_version_is_the_projects():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    assert rml.__version__ == project["version"]


def test_info_says_what_runs_and_why():
    info = rml.info()

    assert info["version"] == rml.__version__
    assert info["backend"] in {"cython", "python"}
    assert (info["isa"] == "python") == (info["backend"] == "python")
    assert info["n_threads"] >= 1
    assert info["n_threads_why"]
    assert isinstance(info["openmp"], bool)


def test_dequantize_is_exact():
    # Two blocks of Q8_0: scale 1 and scale 0.5 (half precision), 32 signed bytes each.
    block = bytes([0x00, 0x3C, *range(32)]) + bytes([0x00, 0x38, *range(255, 223, -1)])

    values = rml.dequantize(block, "Q8_0")

    assert values.tolist() == [*range(32)] + [-0.5 * i for i in range(1, 33)]


@pytest.mark.parametrize(
    ("data", "name", "message"),
    [
        (bytes(33), "Q8_0", "33 bytes are no whole number of Q8_0 blocks of 34"),
        (bytes(34), "Q9_9", "Q9_9"),
        (bytes(4), "I32", "I32"),
        ([1, 2], "Q8_0", "not list"),
    ],
)
def test_dequantize_refuses(data, name, message):
    with pytest.raises(rml.ArgumentError, match=message):
        rml.dequantize(data, name)
