"""Which kernels run: chosen once at import, never by accident."""

import inspect
import os
import platform
import re
import shutil
import subprocess
import sys
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from itertools import pairwise
from pathlib import Path

import pytest

from rml import _kernels
from rml._kernels import levels

BUILT = _kernels.built_levels()


def run_python(code, **env):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("RML_")}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=clean | env
    )


def run_module(*args, **env):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("RML_")}
    return subprocess.run(
        [sys.executable, "-m", "rml", *args],
        capture_output=True,
        text=True,
        check=False,
        env=clean | env,
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


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"RML_PURE": "yes"}, "RML_PURE='yes': use 1"),
        ({"RML_PURE": "2"}, "RML_PURE='2': use 1"),
        ({"RML_ISA": "avx9"}, "RML_ISA='avx9' cannot be used"),
        ({"RML_ISA": "avx9", "RML_PURE": "1"}, "RML_ISA='avx9' cannot be used"),
        ({"RML_ISA": "BASE"}, "RML_ISA='BASE' cannot be used"),
    ],
)
def test_nonsense_is_refused_with_one_message(setting, message):
    said = run_python(SHOW, **setting).stderr
    assert said.splitlines()[-1].startswith(f"ImportError: {message}")
    assert said.count("ImportError: ") == 1
    assert "Warning" not in said
    for args in (["info"], ["--version"], ["list"]):
        done = run_module(*args, **setting)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith(f"Error: {message}")
        assert done.stderr.count("\n") == 1


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


@pytest.fixture
def clone(tmp_path):
    """A folder with the sources of rml, and none of its compiled kernels."""
    source = Path(_kernels.__file__).parents[1]
    ignored = shutil.ignore_patterns("*.so", "*.c", "__pycache__")
    shutil.copytree(source, tmp_path / "clone" / "rml", ignore=ignored)
    return tmp_path / "clone"


@pytest.fixture
def installed(tmp_path):
    """A folder that looks as if rml was installed there, with a compiled kernel."""
    kernels = tmp_path / "site" / "rml" / "_kernels"
    kernels.mkdir(parents=True)
    (kernels / f"_isa_{_kernels.LEVELS[0]}{EXTENSION_SUFFIXES[0]}").touch()
    return tmp_path / "site"


# numpy first, since an rml may be installed beside it, which is then not to be found.
ALONE = """
import sys
from pathlib import Path
import numpy.typing
sys.path = [p for p in sys.path if not Path(p, "rml", "_kernels").is_dir() or p in KEPT]
"""


def run_in(folder, *path, **env):
    """Import the rml of the first folder, where no rml but those of `path` can be found, too."""
    kept = {"", *map(str, path)}
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("RML_", "PYTHONSAFEPATH"))}
    return subprocess.run(
        [sys.executable, "-c", f"KEPT = {kept}\n{ALONE}{SHOW}"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env=clean | {"PYTHONPATH": os.pathsep.join(map(str, path))} | env,
    )


@pytest.mark.skipif(not _kernels.LEVELS, reason="no kernels are compiled for such machines")
def test_sources_that_hide_compiled_kernels_are_named(clone, installed):
    done = run_in(clone, installed)
    assert done.stdout == "python python\n", done.stderr
    assert done.stderr.count("Warning") == 1
    for part in (
        f"in {clone.resolve()}, whose",
        f"in {installed.resolve()}, which",
        "pip install -e .",
    ):
        assert part in done.stderr
    assert "run Python in another folder or use the rml command" in done.stderr
    refused = run_in(clone, installed, RML_PURE="0")
    assert refused.returncode == 1
    assert f"in {installed.resolve()}, which has them" in refused.stderr
    assert run_in(clone, installed, RML_PURE="1").stderr == ""


def test_sources_that_hide_nothing_are_not_blamed(clone, installed):
    for kernels in installed.glob("rml/_kernels/*"):
        kernels.unlink()
    said = run_in(clone, installed, clone).stderr
    assert "rml has no compiled kernels; reinstall it with a C compiler" in said
    assert "hide" not in said


@pytest.mark.skipif(not BUILT, reason="nothing is compiled in this installation")
def test_kernels_of_an_older_build_are_refused():
    code = """
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
name = "rml._kernels._isa_base"
old = sys.modules[name] = ModuleType(name)
old.__spec__, old.OPENMP, old.add = ModuleSpec(name, None), True, None
import rml._kernels
"""
    error = run_python(code, RML_ISA="base").stderr
    assert "ImportError: the compiled kernels are older than these files: they lack acc" in error
    assert "add," not in error
    assert "build_ext --inplace" in error


FOLDER = Path(_kernels.__file__).parent


def test_every_kernel_has_an_entry():
    """What a module of definitions hands out and takes threads is a kernel."""
    defined = {}
    for path in FOLDER.glob("*_py.py"):
        module = import_module(f"rml._kernels.{path.stem}")
        for name in module.__all__:
            function = getattr(module, name)
            if (
                inspect.isfunction(function)
                and "n_threads" in inspect.signature(function).parameters
            ):
                defined[name] = function
    assert defined == _kernels.DEFINITIONS
    assert list(_kernels.REGISTRY) == sorted(defined)


def test_every_kernel_is_a_name_of_the_room():
    for name, kernel in _kernels.KERNELS.items():
        assert getattr(_kernels, name) is kernel
        assert getattr(_kernels.registry, name) is _kernels.DEFINITIONS[name]


def test_entries_say_what_a_kernel_writes():
    for name, kernel in _kernels.REGISTRY.items():
        assert kernel.outputs, name
        assert set(kernel.outputs) <= set(inspect.signature(kernel.definition).parameters), name


def test_costs_take_the_arguments_of_their_kernels():
    for name, kernel in _kernels.REGISTRY.items():
        if kernel.operation is not None:
            wanted = list(inspect.signature(kernel.definition).parameters)
            cost = inspect.signature(kernel.operation.cost).parameters.values()
            given = [p.name for p in cost if p.kind is p.POSITIONAL_OR_KEYWORD]
            assert given == wanted[: len(given)], name


def test_a_twin_that_is_missing_is_found(twins):
    assert _kernels.missing_in(twins.module) == []
    entry = _kernels.registry.Kernel(
        _kernels.DEFINITIONS["add"], operation=_kernels.registry.Operation("AddTwice", None)
    )
    table = {**_kernels.REGISTRY, "add_twice": entry}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_kernels, "REGISTRY", table)
        assert _kernels.missing_in(twins.module) == ["add_twice", "AddTwice"]


@pytest.mark.skipif(not BUILT, reason="nothing is compiled in this installation")
def test_every_file_of_twins_is_compiled():
    if not (sources := FOLDER / "twins.pxi").exists():
        pytest.skip("sources are not installed")
    included = re.findall(r'^include "(\w+\.pyx)"$', sources.read_text("utf-8"), re.MULTILINE)
    assert sorted(included) == sorted(path.name for path in FOLDER.glob("*_cy.pyx"))


def test_twins_have_the_parameters_of_their_definitions(twins):
    for name, definition in _kernels.DEFINITIONS.items():
        twin = getattr(twins.module, name)
        assert _parameters(twin) == _parameters(definition), name


def _parameters(function):
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


# What no processor of a kind needs to have: wider registers than the first level's on x86-64, and
# on AArch64 what came after ARMv8.0 (dot products, rounding multiply-add, atomics in one
# instruction, arithmetic on half-precision numbers).
OPTIONAL = {
    "x86_64": r"%[yz]mm\d|\tv[a-z]+",
    "aarch64": r"\t(?:[su]dot|sqrdml[as]h|cas|swp|ld(?:add|clr|set)[a-z]*)\s"
    r"|\tf(?!cvt)\w+\s.*\.[48]h",
}
OBJDUMP = shutil.which(f"{platform.machine()}-linux-gnu-objdump") or shutil.which("objdump")


def optional_instructions(module):
    path = import_module(f"rml._kernels.{module}").__file__
    text = subprocess.run([OBJDUMP, "-d", path], capture_output=True, text=True, check=True).stdout
    assert len(text) > 10_000
    # The compiler's own helpers of this name ask the processor before they use such an atomic.
    text = re.sub(r"<__aarch64_\w+>:\n(?:.+\n)*", "", text)
    return re.findall(OPTIONAL[levels.machine()], text)


@pytest.mark.skipif(not BUILT, reason="nothing is compiled in this installation")
@pytest.mark.skipif(OBJDUMP is None, reason="objdump is not installed")
@pytest.mark.skipif(levels.machine() not in OPTIONAL, reason="a machine with one level")
def test_only_levels_that_are_asked_for_first_have_optional_instructions():
    for module in (f"_isa_{_kernels.LEVELS[0]}", "_cpu"):
        assert not optional_instructions(module), module
    for level in _kernels.runnable_levels()[1:]:
        assert optional_instructions(f"_isa_{level}"), level


@pytest.mark.parametrize("machine", levels.LEVELS)
def test_a_level_includes_those_before_it(machine):
    names = list(levels.LEVELS[machine])
    assert levels.LEVELS[machine][names[0]] == []
    for lower, higher in pairwise(levels.LEVELS[machine].values()):
        assert higher[: len(lower)] == lower
        assert len(higher) > len(lower)


def test_every_level_has_its_shim():
    folder = Path(__file__).parents[2] / "rml" / "_kernels"  # sources are not installed
    names = {name for table in levels.LEVELS.values() for name in table}
    assert {path.stem for path in folder.glob("_isa_*.pyx")} == {f"_isa_{name}" for name in names}


def test_machines_have_several_names(monkeypatch):
    assert [levels.machine(name) for name in ("x86_64", "AMD64")] == ["x86_64"] * 2
    assert [levels.machine(name) for name in ("aarch64", "arm64")] == ["aarch64"] * 2
    assert [levels.machine(name) for name in ("armv7l", "riscv64", "i686", "")] == ["other"] * 4
    monkeypatch.setattr(sys, "maxsize", 2**31 - 1)
    assert [levels.machine(name) for name in ("x86_64", "aarch64")] == ["other"] * 2


@pytest.mark.skipif(not BUILT, reason="nothing is compiled in this installation")
def test_the_processor_runs_the_first_levels_of_its_machine():
    supported = import_module("rml._kernels._cpu").supported_levels()
    assert supported
    assert supported == list(_kernels.LEVELS[: len(supported)])
    assert set(_kernels.runnable_levels()) == set(supported) & set(BUILT)
