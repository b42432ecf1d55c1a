"""Arithmetic only: every kernel as a readable definition and a compiled twin.

Which kernels there are says `registry`: one entry for each. The definitions are in
``<name>_py.py``, the twins in ``<name>_cy.pyx``. All twins are built into one module per
instruction-set level (``_isa_<level>``). One choice is made at import, for all kernels together:

=============  =======================================================================
``RML_PURE``   meaning
=============  =======================================================================
``1``          the Python definitions
``0``          the compiled twins, or an ImportError
unset          the compiled twins if they were built, else the definitions and a warning
=============  =======================================================================

``RML_ISA`` forces a level (``base``, ``avx2`` or ``avx512vnni`` on x86-64, ``neon`` or ``dotprod``
on AArch64; see levels.py); otherwise the best one that was built and that this processor can run
is taken.

Attributes
----------
BACKEND : str
    ``"cython"`` or ``"python"``.
ISA : str
    The level of the compiled twins, or ``"python"``.
OPENMP : bool
    Whether the compiled twins can use more than one thread.
"""

import os
import sys
import warnings
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES as _SUFFIXES
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from rml._kernels import levels
from rml._kernels.checks import WEIGHT_FORMATS
from rml._kernels.ieee import ieee
from rml._kernels.pages import Pages
from rml._kernels.registry import REGISTRY
from rml._kernels.step import Step

if TYPE_CHECKING:  # who, like readers, see the definitions
    from rml._kernels.registry import *  # noqa: F403  (its names are stated there)

__all__ = [
    "BACKEND",
    "DEFINITIONS",
    "ISA",
    "KERNELS",
    "OPENMP",
    "OPERATIONS",
    "REGISTRY",
    "TWINS",
    "WEIGHT_FORMATS",
    "Pages",
    "Scratch",
    "Step",
    "check_ids",
    "check_step",
    "operations_of",
    "twins_of",
]

LEVELS = tuple(levels.LEVELS[levels.machine()])  # of this machine, the best one last


def built_levels() -> list[str]:
    """List the levels whose compiled module was built, the best one last."""
    return [level for level in LEVELS if find_spec(f"{__name__}._isa_{level}") is not None]


def runnable_levels() -> list[str]:
    """List the built levels that this processor can run, the best one last."""
    if find_spec(f"{__name__}._cpu") is None:
        return []
    # The check comes before the import: a module may hold instructions the processor lacks.
    supported = import_module(f"{__name__}._cpu").supported_levels()
    return [level for level in built_levels() if level in supported]


def load_level(level: str) -> ModuleType:
    """Import the compiled twins of one runnable level."""
    return import_module(f"{__name__}._isa_{level}")


def _refusal(message: str) -> ImportError:
    """Make the error of an import that cannot be; the command line knows it by its name."""
    return ImportError(message, name=__name__)


def _hidden() -> Path | None:
    """Find the folder of an rml with compiled kernels that these files stand in front of.

    That is so where Python runs in a clone, and rml was installed elsewhere: the folder ``rml`` of
    the current directory comes first.
    """
    here = Path(__file__).parent
    for folder in map(Path, sys.path):
        kernels = folder / "rml" / "_kernels"
        twins = (kernels / f"_isa_{level}{suffix}" for level in LEVELS for suffix in _SUFFIXES)
        if any(map(os.path.isfile, twins)) and kernels.resolve() != here.resolve():
            return folder.resolve()
    return None


def _not_built(hidden: Path | None) -> str:
    """Say why there are no compiled kernels, and what can be done about it."""
    if hidden is None:
        return (
            "rml has no compiled kernels; reinstall it with a C compiler (RML_REQUIRE_EXT=1 shows "
            "why they do not compile)"
        )
    sources = Path(__file__).resolve().parents[2]
    return (
        f"rml has no compiled kernels in {sources}, whose sources hide the installed rml in "
        f"{hidden}, which has them; run Python in another folder or use the rml command, or build "
        "them here (pip install -e .)"
    )


def _select() -> tuple[str, ModuleType | None]:
    pure, forced = os.environ.get("RML_PURE", ""), os.environ.get("RML_ISA", "")
    if pure not in {"", "0", "1"}:
        raise _refusal(f"RML_PURE={pure!r}: use 1 (Python), 0 (compiled), or leave it unset")
    if forced and forced not in LEVELS:
        raise _refusal(
            f"RML_ISA={forced!r} cannot be used: machines of this kind have the levels "
            f"{', '.join(LEVELS) or '(none)'}"
        )
    if pure == "1":
        return "python", None
    runnable = runnable_levels()
    if forced:
        if forced not in runnable:
            raise _refusal(
                f"RML_ISA={forced!r} cannot be used: built here are "
                f"{', '.join(built_levels()) or 'none'}, of which this processor runs "
                f"{', '.join(runnable) or 'none'}"
            )
        return forced, load_level(forced)
    if runnable:
        return runnable[-1], load_level(runnable[-1])
    missing = _not_built(_hidden())
    if pure == "0":
        raise _refusal(f"RML_PURE=0 asks for the compiled kernels, but {missing}")
    warnings.warn(
        f"{missing}. It runs in plain Python, about a hundred times slower (RML_PURE=1 accepts it)",
        RuntimeWarning,
        stacklevel=4,
    )
    return "python", None


ISA, TWINS = _select()
BACKEND = "python" if TWINS is None else "cython"
OPENMP: bool = TWINS is not None and TWINS.OPENMP


def twins_of(module: ModuleType) -> dict[str, Any]:
    """Twins of all kernels, of one level, by name."""
    return {name: getattr(module, name) for name in REGISTRY}


def operations_of(module: ModuleType) -> dict[str, Any]:
    """Classes of one level that a plan is compiled from, by name of the kernel."""
    return {
        name: getattr(module, kernel.operation.twin)
        for name, kernel in REGISTRY.items()
        if kernel.operation is not None
    }


def missing_in(module: ModuleType) -> list[str]:
    """Names of twins, of their classes, and of what runs these, that a compiled module lacks."""
    classes = [k.operation.twin for k in REGISTRY.values() if k.operation is not None]
    others = ("Scratch", "Program", "program_bytes", "check_step", "check_ids")
    return [name for name in (*REGISTRY, *classes, *others) if not hasattr(module, name)]


if TWINS is not None and (missing := missing_in(TWINS)):
    raise _refusal(
        f"the compiled kernels are older than these files: they lack {', '.join(missing)}; build "
        "them again (python setup.py build_ext --inplace), or reinstall rml"
    )

# Every kernel by name: as defined, and as chosen; these are names of this module, too.
DEFINITIONS: dict[str, Any] = {name: kernel.definition for name, kernel in REGISTRY.items()}
KERNELS: dict[str, Any] = (
    {name: ieee(definition) for name, definition in DEFINITIONS.items()}
    if TWINS is None
    else twins_of(TWINS)
)
if not TYPE_CHECKING:
    globals().update(KERNELS)
# What a plan is compiled from, by name of the kernel.
OPERATIONS: dict[str, Any] = {} if TWINS is None else operations_of(TWINS)


class _NoScratch:
    """The definitions need no scratch memory."""

    nbytes = 0


Scratch: Any = _NoScratch if TWINS is None else TWINS.Scratch

# What `Step.check` and `Step.check_ids` ask, in the quickest way there is.
check_step: Any = Step.check if TWINS is None else TWINS.check_step
check_ids: Any = Step.check_ids if TWINS is None else TWINS.check_ids
