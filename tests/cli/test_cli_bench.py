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

    def truncate(self, n):
        self.position = n


def forward(sessions, ids, out):
    assert len(sessions) == len(ids) == len(out)
    for session, part in zip(sessions, ids, strict=True):
        session.calls.append((session.position, len(part)))
        session.position += len(part)


@pytest.mark.parametrize("n", [1, 3])
def test_a_prompt_starts_at_the_depth_and_goes_in_batches(n):
    sessions = [Session() for _ in range(n)]
    measured = bench.Bench(sessions, 100, 5, 4, forward)
    measured.prompt(10)
    for session in sessions:
        assert session.calls == [(0, 4), (4, 1), (5, 4), (9, 4), (13, 2)]
        session.calls.clear()
    measured.steps(3)  # the depth is still in the cache
    for session in sessions:
        assert session.calls == [(5, 1), (6, 1), (7, 1)]


def test_without_depth_both_start_in_an_empty_cache():
    session = Session()
    measured = bench.Bench([session], 100, 0, 512, forward)
    measured.prompt(10)
    measured.steps(2)
    assert session.calls == [(0, 10), (0, 1), (1, 1)]


def test_the_tokens_of_all_sequences_are_counted(monkeypatch):
    clock = iter(range(0, 100, 2))
    monkeypatch.setattr(bench.time, "perf_counter", lambda: next(clock))
    measured = bench.Bench([Session() for _ in range(4)], 100, 0, 512, forward)
    assert measured.prompt(10) == 4 * 10 / 2
    assert measured.steps(3) == 4 * 3 / 2


def test_parallel(rml_command, toy_path):
    result = rml_command("bench", "-m", toy_path, *FAST, "--parallel", "3", "-o", "json")
    facts = json.loads(result.stdout)
    assert facts["n_parallel"] == 3
    assert facts["pp"] > 0
    lines = rml_command("bench", "-m", toy_path, *FAST, "-d", "5", "-np", "2").stdout.splitlines()
    assert [line.split("|")[7].strip() for line in lines[2:]] == ["pp8 @ d5 × 2", "tg3 @ d5 × 2"]


BATCHED = ("-npp", "8,4", "-ntg", "3", "-npl", "1,2,5")


@pytest.mark.parametrize("shared", [False, True])
def test_batched_bench(rml_command, toy_path, shared):
    flags = [*BATCHED, *(["-pps"] if shared else [])]
    result = rml_command("bench", "-m", toy_path, *flags, "-o", "json")
    rows = json.loads(result.stdout)
    assert [(row["n_prompt"], row["n_gen"], row["n_parallel"]) for row in rows] == [
        (n_prompt, 3, n) for n_prompt in (8, 4) for n in (1, 2, 5)
    ]
    for row in rows:
        n_prompts = 1 if shared else row["n_parallel"]
        assert row["n_kv"] == n_prompts * row["n_prompt"] + row["n_parallel"] * 3
        assert min(row["pp"], row["tg"], row["total"]) > 0


def test_batched_bench_as_a_table_and_as_csv(rml_command, toy_path):
    lines = rml_command("bench", "-m", toy_path, *BATCHED).stdout.splitlines()
    assert lines[0] == (
        "| PP | TG | B | N_KV | T_PP s | S_PP t/s | T_TG s | S_TG t/s | T s | S t/s |"
    )
    assert len(lines) == 8
    assert len({line.count("|") for line in lines}) == 1
    assert lines[4].startswith("| 8 | 3 | 5 | 55 |")
    result = rml_command("bench", "-m", toy_path, *BATCHED, "-o", "csv")
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert [row["n_parallel"] for row in rows] == ["1", "2", "5"] * 2


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["-npp", "8"], "-ntg is missing"),
        (["-npp", "8", "-ntg", "3"], "-npl is missing"),
        (["-pps"], "-pps belongs to"),
        (["-npp", "8,x", "-ntg", "3", "-npl", "1"], "'8,x' is no list"),
        (["-npp", "8", "-ntg", "3", "-npl", "0"], "'0' is no list"),
        (["-npp", "", "-ntg", "3", "-npl", "1"], "'' is no list"),
        ([*BATCHED, "-p", "8"], "-p has no meaning"),
        ([*BATCHED, "-np", "8"], "--parallel has no meaning"),
    ],
)
def test_batched_options_that_do_not_fit(rml_command, toy_path, flags, words):
    result = rml_command("bench", "-m", toy_path, *flags)
    assert result.exit_code == 2
    assert words in result.stderr


def test_a_model_that_is_not_there(rml_command):
    result = rml_command("bench", "-m", "/nowhere.gguf", "-o", "json")
    assert result.exit_code == 1
    assert result.stdout == ""
