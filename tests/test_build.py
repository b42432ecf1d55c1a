"""What an installation does without a compiler: succeed loudly, or fail where it is asked to."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rml._kernels import LEVELS, levels

pytest.importorskip("Cython", reason="building needs Cython")

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A copy of what a build needs, without anything compiled."""
    folder = tmp_path_factory.mktemp("source")
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(
        ROOT / "rml", folder / "rml", ignore=shutil.ignore_patterns("*.so", "__pycache__")
    )
    return folder


def build(source, **env):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("RML_")}
    return subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--build-lib", "lib"],
        cwd=source,
        env=clean | env,
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_a_compiler_it_says_so_and_succeeds(source):
    done = build(source, CC="false")

    assert done.returncode == 0, done.stderr
    assert "these compiled kernels could not be built" in done.stderr
    assert all(f"_isa_{level}" in done.stderr for level in LEVELS)
    assert "RML_REQUIRE_EXT=1 makes this an error" in done.stderr
    assert not list(source.rglob("*.so"))


def test_kernels_can_be_required(source):
    done = build(source, CC="false", RML_REQUIRE_EXT="1")

    assert done.returncode != 0


def test_kernels_can_be_left_out(source):
    done = build(source, RML_NO_EXT="1")

    assert done.returncode == 0, done.stderr
    assert "RML_NO_EXT=1, no kernel is compiled" in done.stderr


def test_nothing_is_tuned_to_the_building_machine():
    assert "march=native" not in (ROOT / "setup.py").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("platform", "machine"),
    [("linux-x86_64", "x86_64"), ("linux-aarch64", "aarch64"), ("linux-riscv64", "other")],
)
def test_a_build_for_another_machine_takes_the_levels_of_that(source, platform, machine):
    # Both are what cross-compiling builds set, the first on Linux, the second on macOS.
    name = platform.partition("-")[2]
    env = {"_PYTHON_HOST_PLATFORM": platform, "ARCHFLAGS": f"-arch {name}", "RML_NO_EXT": "1"}
    code = (
        "import runpy, setuptools; setuptools.setup = lambda **kwargs: None\n"
        "print(*runpy.run_path('setup.py')['LEVELS'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=source,
        env=os.environ | env,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout.split() == list(levels.LEVELS[machine]), done.stderr
