"""Kernels under test: the definitions, and the twins of every level that can run here."""

from types import SimpleNamespace

import pytest

from rml import _kernels

LEVELS = [] if _kernels.BACKEND == "python" else _kernels.runnable_levels()


def namespace(name: str) -> SimpleNamespace:
    """All kernels of one implementation, ``"py"`` or a level."""
    if name == "py":
        return SimpleNamespace(name=name, module=None, **_kernels.DEFINITIONS)
    module = _kernels.load_level(name)
    operations = _kernels.operations_of(module)
    return SimpleNamespace(
        name=name, module=module, operations=operations, **_kernels.twins_of(module)
    )


@pytest.fixture(params=["py", *(pytest.param(x, marks=pytest.mark.compiled) for x in LEVELS)])
def kernels(request):
    """The definitions and each level in turn."""
    return namespace(request.param)


@pytest.fixture(params=[pytest.param(x, marks=pytest.mark.compiled) for x in LEVELS])
def twins(request):
    """Each compiled level in turn; no test where nothing is compiled."""
    return namespace(request.param)


@pytest.fixture
def definitions():
    """The definitions."""
    return namespace("py")
