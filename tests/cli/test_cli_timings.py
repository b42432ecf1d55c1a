"""What is said of the end of a generation."""

from dataclasses import replace

import click
import pytest

import rml
from rml.cli.timings import report

CUT = "[the answer is cut: the context is full with {} tokens; -c N makes room for N tokens]\n"
STOPPED = "[stopped after 3 tokens; -n sets another length, -n -1 goes on to the end]\n"


@pytest.fixture(scope="module")
def completion(toy_path):
    with rml.load(toy_path) as model:
        return model.generate("the cat", max_tokens=3, temperature=0, ignore_eos=True)


@pytest.mark.parametrize(
    ("finish", "stop", "n_given", "said"),
    [
        ("length", "context", True, CUT),
        ("length", "context", False, CUT),
        ("length", "max_tokens", True, ""),
        ("length", "max_tokens", False, STOPPED),
        ("stop", 2, False, ""),
        ("stop", "context", False, ""),  # a stop string of that name
        ("cancelled", None, False, ""),
    ],
)
def test_an_end_that_surprises_is_said(completion, capsys, finish, stop, n_given, said):
    result = replace(completion, finish_reason=finish, stop_reason=stop)
    with click.Context(click.Command("run")):
        report(result, n_given=n_given)
    assert capsys.readouterr().err == said.format(result.usage.total_tokens)
