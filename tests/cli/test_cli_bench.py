"""rml bench: what is measured, and how it is printed."""

import csv
import io
import json

import numpy as np
import pytest

from rml.cli import bench

FAST = ("-p", "8", "-n", "3", "-r", "2")


def test_json_is_one_line_with_pp_and_tg(rml_command, toy_path):
    result = rml_command(
        "bench", "-m", toy_path, *FAST, "-t", "1", "--compute", "int8", "-o", "json"
    )
    assert result.exit_code == 0, result.stderr
    assert len(result.stdout.splitlines()) == 1
    facts = json.loads(result.stdout)
    assert facts["pp"] > 0
    assert facts["tg"] > 0
    assert len(facts["pp_samples"]) == len(facts["tg_samples"]) == 2
    assert facts["pp"] == pytest.approx(np.mean(facts["pp_samples"]), abs=1e-3)
    assert facts["pp_sd"] == pytest.approx(np.std(facts["pp_samples"], ddof=1), abs=2e-3)
    expected = {"threads": 1, "compute": "int8", "n_prompt": 8, "n_gen": 3, "parameters": 37024}
    assert expected.items() <= facts.items()


@pytest.mark.parametrize(("flag", "absent", "present"), [("-p", "pp", "tg"), ("-n", "tg", "pp")])
def test_zero_leaves_one_out(rml_command, toy_path, flag, absent, present):
    result = rml_command("bench", "-m", toy_path, *FAST, flag, "0", "-o", "json")
    facts = json.loads(result.stdout)
    assert facts[absent] is None
    assert facts[present] > 0


def test_nothing_to_measure(rml_command, toy_path):
    assert rml_command("bench", "-m", toy_path, "-p", "0", "-n", "0").exit_code == 2


def test_markdown(rml_command, toy_path):
    lines = rml_command("bench", "-m", toy_path, *FAST, "-d", "5").stdout.splitlines()
    assert lines[0].startswith("| model | size |")
    assert [line.split("|")[7].strip() for line in lines[2:]] == ["pp8 @ d5", "tg3 @ d5"]
    assert all(" ± " in line for line in lines[2:])
    assert len({line.count("|") for line in lines}) == 1


def test_csv(rml_command, toy_path):
    result = rml_command("bench", "-m", toy_path, *FAST, "-o", "csv")
    [row] = csv.DictReader(io.StringIO(result.stdout))
    assert row["engine"] == "rml"
    assert float(row["tg"]) > 0


class Session:
    """Writes down what is evaluated."""

    def __init__(self):
        self.position = 0
        self.calls = []

    def forward(self, ids, out):
        self.calls.append((self.position, len(ids)))
        self.position += len(ids)

    def truncate(self, n):
        self.position = n


def test_a_prompt_starts_at_the_depth_and_goes_in_batches():
    session = Session()
    measured = bench._Bench(session, 100, 5, 4)
    measured.prompt(10)
    assert session.calls == [(0, 4), (4, 1), (5, 4), (9, 4), (13, 2)]
    session.calls.clear()
    measured.steps(3)  # the depth is still in the cache
    assert session.calls == [(5, 1), (6, 1), (7, 1)]


def test_without_depth_both_start_in_an_empty_cache():
    session = Session()
    measured = bench._Bench(session, 100, 0, 512)
    measured.prompt(10)
    measured.steps(2)
    assert session.calls == [(0, 10), (0, 1), (1, 1)]


def test_a_model_that_is_not_there(rml_command):
    result = rml_command("bench", "-m", "/nowhere.gguf", "-o", "json")
    assert result.exit_code == 1
    assert result.stdout == ""
