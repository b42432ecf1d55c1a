"""``rml selftest``: every kernel on this machine, measured; exit code 1 if one is wrong."""

from collections.abc import Sequence
from dataclasses import asdict

import click

from rml._kernels import ISA, LEVELS
from rml.cli.console import line_progress, print_json, say, table
from rml.cli.options import options
from rml.cli.parsing import Command
from rml.selftest import Measurement, implementations, run

__all__ = ["command"]


@click.command("selftest", cls=Command)
@click.option("-a", "--all", "every", is_flag=True, help="Show every case, not the worst of each.")
@options("output")
def command(every: bool, output: str) -> None:
    """Compute small problems with every kernel, and compare the results with float64.

    All implementations that this processor runs are measured. The table shows errors as a share of
    what the roundings of float32 allow; "exact" is what must agree to the last bit, and does.
    """
    found = implementations()
    measured = []
    show = line_progress("implementations")
    for i, name in enumerate(found):
        show(i, len(found))
        measured += list(run({name: found[name]}))
    show(len(found), len(found))
    wrong = [m for m in measured if not m.passed]
    if output == "json":
        print_json([{**asdict(m), "passed": m.passed} for m in measured])
    else:
        _print_table(list(found), measured, every=every)
    missing = [level for level in LEVELS if level not in found]
    if missing:
        say(f"not built, or not for this processor: {', '.join(missing)}")
    for m in wrong:
        say(f"WRONG: {_name(m)} ({m.implementation}): error {m.error:.3g}, allowed {m.bound:.3g}")
    if wrong:
        raise click.exceptions.Exit(1)
    say(f"{len(measured)} measurements, all within their bounds; in use: {ISA}")


def _print_table(names: Sequence[str], measured: Sequence[Measurement], *, every: bool) -> None:
    """One row for each kernel or case, and one column for each implementation."""
    rows: dict[str, dict[str, list[Measurement]]] = {}
    for m in measured:
        row = rows.setdefault(_name(m) if every else m.kernel, {name: [] for name in names})
        row[m.implementation].append(m)
    table(
        ("KERNEL", *names),
        [(name, *map(_cell, row.values())) for name, row in rows.items()],
        right="l" + "r" * len(names),
    )


def _name(m: Measurement) -> str:
    return f"{m.kernel} {m.case}"


def _cell(found: Sequence[Measurement]) -> str:
    if not all(m.passed for m in found):
        return "WRONG"
    worst = max(m.share for m in found)
    return f"{worst:.1%}" if any(m.bound for m in found) else "exact"
