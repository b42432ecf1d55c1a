"""Which kernels run: chosen once at import, never by accident."""

import inspect
import os
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from rml import _kernels

BUILT = _kernels.built_levels()


def run_python(code, **env):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("RML_")}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=clean | env
    )


SHOW = "from rml import _kernels as k; print(k.BACKEND, k.ISA)"


def test_backend_is_what_was_asked_for():
    assert os.environ.get("RML_EXPECT_BACKEND", _kernels.BACKEND) == _kernels.BACKEND


def test_pure():
    done = run_python(SHOW, RML_PURE="1")
    assert (done.stdout, done.stderr) == ("python python\n", "")


@pytest.mark.skipif(not BUILT, reason="nothing is compiled in this installation")
def test_best_level_without_asking():
    done = run_python(SHOW)
    assert (done.stdout, done.stderr) == (f"cython {_kernels.runnable_levels()[-1]}\n", "")


@pytest.mark.skipif(not BUILT, reason="nothing is compiled in this installation")
@pytest.mark.parametrize("level", BUILT)
def test_a_level_can_be_forced(level):
    done = run_python(SHOW, RML_ISA=level)
    if level in _kernels.runnable_levels():
        assert done.stdout == f"cython {level}\n"
    else:
        assert f"RML_ISA='{level}' cannot be used" in done.stderr


def test_nonsense_is_refused():
    assert "RML_PURE='yes'" in run_python(SHOW, RML_PURE="yes").stderr
    assert "RML_ISA='avx9' cannot be used" in run_python(SHOW, RML_ISA="avx9").stderr


HIDE = """
import importlib.util as util, warnings
find = util.find_spec
hidden = lambda name: "._isa_" in name or name.endswith("._cpu")
util.find_spec = lambda name, *a: None if hidden(name) else find(name, *a)
"""


def test_without_a_build_there_is_one_warning():
    done = run_python(HIDE + SHOW)
    assert done.stdout == "python python\n"
    assert done.stderr.count("rml has no compiled kernels") == 1
    assert run_python(HIDE + SHOW, RML_PURE="1").stderr == ""


def test_without_a_build_the_compiled_kernels_can_be_insisted_on():
    done = run_python(HIDE + SHOW, RML_PURE="0")
    assert done.returncode == 1
    assert "RML_PURE=0 asks for the compiled kernels" in done.stderr


def definitions_modules():
    folder = Path(_kernels.__file__).parent
    return sorted(p.stem for p in folder.glob("*_py.py"))


def test_every_kernel_is_listed():
    exported = set()
    for module in map(import_module, (f"rml._kernels.{name}" for name in definitions_modules())):
        functions = {name: getattr(module, name) for name in module.__all__}
        exported |= {
            name
            for name, function in functions.items()
            if inspect.isfunction(function)
            and "n_threads" in inspect.signature(function).parameters
        }
    assert exported == set(_kernels.DEFINITIONS)


def test_twins_have_the_parameters_of_their_definitions(twins):
    for name, definition in _kernels.DEFINITIONS.items():
        twin = getattr(twins.module, name)
        assert _parameters(twin) == _parameters(definition), name


def _parameters(function):
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


def test_every_operation_of_a_program_is_a_kernel(twins):
    assert set(twins.module.OPS) <= set(_kernels.DEFINITIONS)


@pytest.mark.skipif("base" not in BUILT, reason="nothing is compiled in this installation")
@pytest.mark.skipif(shutil.which("objdump") is None, reason="objdump is not installed")
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="not an x86-64 machine")
@pytest.mark.parametrize("module", ["_isa_base", "_cpu"])
def test_baseline_modules_have_no_wide_instructions(module):
    path = import_module(f"rml._kernels.{module}").__file__
    text = subprocess.run(
        ["objdump", "-d", path], capture_output=True, text=True, check=True
    ).stdout
    assert len(text) > 10_000
    assert not re.findall(r"%[yz]mm\d|\tv[a-z]+", text)
