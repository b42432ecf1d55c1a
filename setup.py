"""Build the compiled kernels: one extension module per instruction-set level.

Everything else about the package is in pyproject.toml. The levels are built from one set of
sources (`rml/_kernels/twins.pxi`) through two-line shims, each with its own compiler flags
(`rml/_kernels/levels.py`), and chosen when rml is imported by what the processor can do. Nothing
installed is tuned to the machine that built it.

Environment
-----------
RML_REQUIRE_EXT=1    a kernel that does not compile is an error (default: install without it)
RML_NO_EXT=1         do not compile anything
RML_CFLAGS           further compiler flags for every level
RML_DEBUG_KERNELS=1  bounds-checked kernels without optimization
"""

import os
import platform
import runpy
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

KERNELS = Path("rml/_kernels")
REQUIRED = os.environ.get("RML_REQUIRE_EXT") == "1"
DISABLED = os.environ.get("RML_NO_EXT") == "1"
DEBUG = os.environ.get("RML_DEBUG_KERNELS") == "1"

DIRECTIVES = {
    "language_level": 3,
    "binding": True,
    "boundscheck": DEBUG,
    "initializedcheck": DEBUG,
    "wraparound": False,
    "cdivision": True,
}

# Floating-point results must not depend on how a compiler fuses or reorders, hence no contraction
# (the kernels fuse by name) and no -ffast-math.
CFLAGS = [
    "-O0" if DEBUG else "-O3",
    "-g1",
    "-std=gnu11",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fvisibility=hidden",
    "-Wno-unused-function",
    "-Wno-psabi",  # 64-byte vectors are passed between inlined functions only
    *os.environ.get("RML_CFLAGS", "").split(),
]


def target() -> str:
    """Name the machine to compile for: this one, or what a cross-compiling build sets."""
    if sys.platform == "darwin":
        # One processor, also where Python itself is built for two: each level has its own flags.
        return os.environ.setdefault("ARCHFLAGS", f"-arch {platform.machine()}").split()[-1]
    return sysconfig.get_platform().rpartition("-")[2]


TABLE = runpy.run_path(str(KERNELS / "levels.py"))
LEVELS: dict[str, list[str]] = TABLE["LEVELS"][TABLE["machine"](target())]
IS_CROSS_BUILD = TABLE["machine"](target()) != TABLE["machine"]()

OPENMP_PROBE = """
#include <omp.h>
int main(void) {
    int sum = 0;
    #pragma omp parallel for reduction(+:sum) num_threads(2)
    for (int i = 0; i < 4; ++i) sum += i;
    return sum == 6 && omp_get_max_threads() > 0 ? 0 : 1;
}
"""


def banner(*lines: str) -> None:
    """Write lines that are hard to overlook to standard error."""
    bar = "*" * 79
    print("\n".join(["", bar, *(f"* {line}" for line in lines), bar, ""]), file=sys.stderr)


class BuildKernels(build_ext):
    """Compile the kernels; without a compiler, install the Python definitions alone."""

    def build_extensions(self) -> None:
        """Probe OpenMP, then compile every level."""
        self.parallel = self.parallel or os.cpu_count()
        if self.openmp_works():
            for extension in self.extensions:
                if extension.name.endswith("._cpu"):
                    continue
                extension.extra_compile_args.append("-fopenmp")
                extension.extra_link_args.append("-fopenmp")
        else:
            banner("rml: the compiler has no OpenMP; the kernels will use one thread.")
        super().build_extensions()
        built = {e.name for e in self.extensions if Path(self.get_ext_fullpath(e.name)).exists()}
        failed = [e.name for e in self.extensions if e.name not in built]
        if failed:
            banner(
                "rml: these compiled kernels could not be built:",
                *(f"    {name}" for name in failed),
                "rml works without them, in plain Python, about a hundred times slower.",
                "A C compiler (gcc or clang) and Python's headers are needed.",
                "RML_REQUIRE_EXT=1 makes this an error and shows the compiler's message.",
            )

    def openmp_works(self) -> bool:
        """Compile, link and (if it is for this machine) run a small OpenMP program."""
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "probe.c"
            source.write_text(OPENMP_PROBE)
            try:
                objects = self.compiler.compile(
                    [str(source)], output_dir=folder, extra_postargs=["-fopenmp"]
                )
                program = Path(folder) / "probe"
                self.compiler.link_executable(objects, str(program), extra_postargs=["-fopenmp"])
                if not IS_CROSS_BUILD:
                    subprocess.run([program], timeout=60, check=True)
            # Whatever goes wrong in a probe means "no".
            except Exception:  # noqa: BLE001
                return False
        return True


def extensions() -> list[Extension]:
    """List the modules to compile: the processor check, and every level of the kernels."""
    if DISABLED:
        banner("rml: RML_NO_EXT=1, no kernel is compiled.")
        return []
    import numpy as np
    from Cython.Build import cythonize

    sources = sorted(str(p) for pattern in ("*.pyx", "*.pxi", "*.h") for p in KERNELS.glob(pattern))
    modules = [
        Extension("rml._kernels._cpu", [str(KERNELS / "_cpu.pyx")], extra_compile_args=["-O2"])
    ]
    modules += [
        Extension(
            f"rml._kernels._isa_{level}",
            [str(KERNELS / f"_isa_{level}.pyx")],
            include_dirs=[str(KERNELS), np.get_include()],
            define_macros=[("NPY_NO_DEPRECATED_API", "NPY_2_0_API_VERSION")],
            extra_compile_args=[*CFLAGS, *flags],
            depends=sources,
        )
        for level, flags in LEVELS.items()
    ]
    modules = cythonize(modules, compiler_directives=DIRECTIVES, include_path=[str(KERNELS)])
    for module in modules:
        module.optional = not REQUIRED  # cythonize() drops it when given to Extension
    return list(modules)


setup(ext_modules=extensions(), cmdclass={"build_ext": BuildKernels})
