"""The command line in this process, on toy models, with a cache of its own."""

import hashlib
import os
import zipfile
from pathlib import Path

import click.testing
import pytest

from rml.cli import cli
from rml.files.known import KnownModel, Wheel

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"


@pytest.fixture(autouse=True)
def clean_environment(tmp_path, monkeypatch):
    prefixes = ("RML_ARG_", "LLAMA_ARG_", "HF_", "PIP_")
    for variable in [name for name in os.environ if name.startswith(prefixes)]:
        monkeypatch.delenv(variable)
    monkeypatch.delenv("RML_LLAMA_ENV", raising=False)
    monkeypatch.setenv("RML_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def rml_command():
    """Run the command line: ``rml_command("list", input="...")`` -> click's Result."""

    def run(*args, **kwargs):
        runner = click.testing.CliRunner()
        return runner.invoke(cli, list(map(str, args)), prog_name="rml", **kwargs)

    return run


@pytest.fixture(scope="session")
def toy_path():
    """A Llama of two layers with 288 tokens, context 128, and a chat template."""
    return FIXTURES / "llama" / "model.gguf"


@pytest.fixture
def known_toy(toy_path, tmp_path, monkeypatch, set_known):
    """The toy model as the only known name, in a wheel that pip finds in a folder."""
    content = toy_path.read_bytes()
    source = tmp_path / "source"
    source.mkdir()
    wheel = source / "toy_model-1.0-py3-none-any.whl"
    info = "toy_model-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("toy_model/toy.gguf", content)
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: toy-model\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    entry = Wheel(
        "toy-model==1.0",
        "toy_model/toy.gguf",
        hashlib.sha256(wheel.read_bytes()).hexdigest(),
        wheel.stat().st_size,
    )
    model = KnownModel(
        "toy",
        "A toy Llama",
        "CC0-1.0",
        "Terms: none at all",
        len(content),
        hashlib.sha256(content).hexdigest(),
        (entry,),
    )
    set_known({"toy": model})
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(source))
    return model
