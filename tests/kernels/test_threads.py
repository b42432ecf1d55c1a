"""The number of threads, and why."""

import logging

import pytest

from rml._kernels import threads
from rml.errors import ArgumentError


@pytest.fixture
def machine(monkeypatch):
    """A machine of eight processors without a quota."""
    for variable in ("RML_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(threads, "_affinity", lambda: 8)
    monkeypatch.setattr(threads, "_quota", lambda: None)
    return monkeypatch


def test_all_processors(machine):
    assert threads.default_threads() == (8, "8 processors that this process may use")


@pytest.mark.parametrize(("quota", "expected"), [(0.5, 1), (1.9, 1), (2.0, 2), (7.5, 7), (9.0, 8)])
def test_quota_of_the_control_group(machine, quota, expected):
    machine.setattr(threads, "_quota", lambda: quota)
    n, why = threads.default_threads()
    assert n == expected
    assert ("quota" in why) == (quota < 8)


def test_variables(machine):
    machine.setenv("OMP_NUM_THREADS", "3,2")
    assert threads.default_threads()[0] == 3
    machine.setenv("RML_THREADS", "2")
    why = "RML_THREADS=2, at most 8 processors that this process may use"
    assert threads.default_threads() == (2, why)
    machine.setenv("RML_THREADS", "99")
    assert threads.default_threads()[0] == 8
    for nonsense in ("many", "0", "-1", "1.5", "²", "٣", "4,2", "1e3", "9" * 5000):
        machine.setenv("RML_THREADS", nonsense)
        with pytest.raises(ArgumentError, match=f"RML_THREADS='{nonsense}'"):
            threads.default_threads()


def test_a_wish(machine, caplog):
    assert threads.resolve_threads(None) == 8
    assert threads.resolve_threads(3) == 3
    with caplog.at_level(logging.WARNING, logger="rml"):
        assert threads.resolve_threads(9) == 8
    assert "n_threads=9 is more than 8 processors" in caplog.text
    for wrong in (0, -1, 1.5, "2", True):
        with pytest.raises(ArgumentError):
            threads.resolve_threads(wrong)


def test_quota_files(tmp_path):
    assert threads._quota(tmp_path) is None
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert threads._quota(tmp_path) is None
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert threads._quota(tmp_path) == 1.5
    (tmp_path / "cpu.max").unlink()
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert threads._quota(tmp_path) is None
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("250000\n")
    assert threads._quota(tmp_path) == 2.5


@pytest.mark.parametrize("version", [1, 2])
def test_the_least_quota_of_all_groups_above(tmp_path, version):
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text({1: "3:cpu,cpuacct:/a/b\n", 2: "0::/a/b\n"}[version])
    for folder, quota in (("", 600_000), ("a", 150_000), ("a/b", 400_000)):
        place = (groups / "cpu" if version == 1 else groups) / folder
        place.mkdir(parents=True, exist_ok=True)
        if version == 2:
            (place / "cpu.max").write_text(f"{quota} 100000\n")
        else:
            (place / "cpu.cfs_quota_us").write_text(f"{quota}\n")
            (place / "cpu.cfs_period_us").write_text("100000\n")
    assert threads._quota(groups, proc) == 1.5

    broken = "a/cpu.max" if version == 2 else "cpu/a/cpu.cfs_period_us"
    for text in ("", "max", "1", "0 0", "5 0", "x y", "9" * 5000):
        (groups / broken).write_text(text if version == 2 else "0")
        assert threads._quota(groups, proc) == 4.0
