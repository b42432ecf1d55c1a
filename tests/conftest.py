"""Where larger test data lives, and what to skip by name when it is absent.

RML_CASES_DIR   the case bank (default: ``../shared/cases`` beside the checkout)
RML_MODELS_DIR  a folder with real models, as ``rml pull --to DIR`` writes them
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

import rml
from rml.files.known import KnownModel

ROOT = Path(__file__).resolve().parent.parent

# How long an example takes says nothing on a shared machine; CI must not fail by luck.
settings.register_profile("rml", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("rml")

# Processes that tests start use the rml that the tests use, not what lies in the current folder.
os.environ["PYTHONSAFEPATH"] = "1"
os.environ["PYTHONPATH"] = str(Path(rml.__file__).resolve().parent.parent)

# A shell starts what runs in its background deaf to Ctrl-C, and processes inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tests remember nothing in the user's cache."""
    os.environ.setdefault("RML_CACHE", str(tmp_path_factory.mktemp("cache")))


def _folder(variable: str, default: Path | None) -> Path | None:
    value = os.environ.get(variable)
    path = Path(value) if value else default
    return path if path is not None and path.is_dir() else None


@pytest.fixture(scope="session")
def cases_dir() -> Path:
    """Folder of the case bank."""
    path = _folder("RML_CASES_DIR", ROOT.parent / "shared" / "cases")
    if path is None:
        pytest.skip("no case bank: set RML_CASES_DIR")
    return path


@pytest.fixture(scope="session")
def models_dir() -> Path:
    """Folder of real models."""
    path = _folder("RML_MODELS_DIR", None)
    if path is None:
        pytest.skip("no models: set RML_MODELS_DIR (rml pull smollm2 --to DIR)")
    return path


def _model(folder: Path, name: str) -> Path:
    path = folder / name
    if not path.is_file():
        pytest.skip(f"no {name} in RML_MODELS_DIR")
    return path


@pytest.fixture(scope="session")
def smollm2_path(models_dir: Path) -> Path:
    """SmolLM2-135M-Instruct, Q4_1, a GGUF file."""
    return _model(models_dir, "smollm2.gguf")


@pytest.fixture(scope="session")
def gemma3_path(models_dir: Path) -> Path:
    """Gemma 3 270M, Q4_K_M, a GGUF file."""
    return _model(models_dir, "gemma3-270m.gguf")


@pytest.fixture
def set_known(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, KnownModel]], None]:
    """`set_known({"toy": model})`: these are the models that rml knows by name."""

    def set_known(models: dict[str, KnownModel]) -> None:
        for name in ("files.known", "files.local", "files.locate", "files.pull", "cli.models"):
            monkeypatch.setattr(f"rml.{name}.KNOWN", models)

    return set_known
