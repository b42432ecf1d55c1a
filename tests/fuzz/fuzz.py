"""Fuzz what strangers hand us: files, tokenizers, templates, sessions, options.

    python tests/fuzz/fuzz.py TARGET [--seconds 600] [--inputs N] [--seed S] [--only I] [--out DIR]

Inputs are made of a seed and a number, so that each can be made again: ``--seed S --only I`` gives
rml that one input alone, in this process, with its traceback. Otherwise they run in child processes
with limits of memory and time; what breaks one is written to DIR, and the next child goes on behind
it. Without ``--inputs`` it goes on until the time is over. The exit code is 1 after a finding.
"""

import argparse
import contextlib
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from random import Random

from targets import TARGETS

from rml.errors import RmlError

__all__ = ["Finding", "fuzz", "input_of"]

HERE = Path(__file__).resolve().parent
SECONDS = 20  # of one input, on a machine that has other work to do
MEMORY = 4 << 30  # bytes of address space; a model of the fixtures needs less than one
BATCH = 500  # inputs of a child


@dataclass(frozen=True, slots=True)
class Finding:
    """An input that did what none should.

    Attributes
    ----------
    target : str
    seed, number : int
        What it is made of.
    what : str
        What happened: the end of a traceback, or how the process died.
    """

    target: str
    seed: int
    number: int
    what: str


def input_of(target: str, seeds: list[bytes], seed: int, number: int) -> bytes:
    """Make an input again."""
    rng = Random(f"{target} {seed} {number}")
    data = rng.choice(seeds)
    if number < len(seeds):
        return seeds[number]  # sound ones first
    return TARGETS[target].change(rng, data)


def _give(target: str, data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(RmlError):
        TARGETS[target].check(data, Path(folder))


def _child(target: str, seed: int, start: int, stop: int, progress: Path) -> None:
    """Run inputs; the file says at which it is, and behind that what was found."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    seeds = TARGETS[target].seeds()
    descriptor = os.open(progress, os.O_WRONLY)
    for number in range(start, stop):
        os.pwrite(descriptor, b"%-20d" % number, 0)
        signal.alarm(SECONDS)  # ends the process: nothing in it can hold that up
        try:
            _give(target, input_of(target, seeds, seed, number))
        except BaseException:  # noqa: BLE001 - that is what is looked for
            signal.alarm(0)
            os.pwrite(descriptor, traceback.format_exc()[-1500:].encode("utf-8", "replace"), 20)
            os._exit(3)
        signal.alarm(0)
    os._exit(0)


def _batch(target: str, seed: int, start: int, stop: int) -> tuple[int, Finding | None]:
    """Run inputs in a child; returns the number behind the last one, and what it found."""
    with tempfile.NamedTemporaryFile() as progress:
        progress.write(b"%-20d" % start)
        progress.flush()
        arguments = ["--child", progress.name, str(start), str(stop), "--seed", str(seed)]
        paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
        done = subprocess.run(
            [sys.executable, __file__, target, *arguments],
            capture_output=True,
            check=False,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        )
        if done.returncode == 0:
            return stop, None
        said = Path(progress.name).read_bytes()
        number, what = int(said[:20]), said[20:].decode("utf-8", "replace")
        if done.returncode == -signal.SIGALRM:
            what = f"no answer in {SECONDS} s"
        elif done.returncode != 3:
            what = f"exit code {done.returncode}: {done.stderr.decode('utf-8', 'replace')[-500:]}"
        return number + 1, Finding(target, seed, number, what)


def fuzz(
    target: str, *, seed: int = 0, inputs: int | None = None, seconds: float | None = None
) -> tuple[int, list[Finding]]:
    """Run inputs of a target.

    Parameters
    ----------
    target : str
        A key of `TARGETS`.
    seed : int
        Another one makes other inputs.
    inputs : int, optional
        How many.
    seconds : float, optional
        How long, where `inputs` does not say.

    Returns
    -------
    n : int
        Inputs that were run.
    findings : list of Finding
    """
    until = None if seconds is None else time.monotonic() + seconds
    at, findings = 0, []
    while (inputs is None or at < inputs) and (until is None or time.monotonic() < until):
        stop = at + BATCH if inputs is None else min(inputs, at + BATCH)
        at, found = _batch(target, seed, at, stop)
        if found is not None:
            findings.append(found)
    return at, findings


def _main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--inputs", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int)
    parser.add_argument("--out", type=Path, default=Path("findings"))
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    values = parser.parse_args()
    if values.child:
        progress, start, stop = values.child
        _child(values.target, values.seed, int(start), int(stop), Path(progress))
    seeds = TARGETS[values.target].seeds()
    if values.only is not None:
        data = input_of(values.target, seeds, values.seed, values.only)
        sys.stdout.write(f"{len(data)} bytes: {data[:300]!r}\n")
        _give(values.target, data)
        return 0
    seconds = None if values.inputs is not None else values.seconds
    n, findings = fuzz(values.target, seed=values.seed, inputs=values.inputs, seconds=seconds)
    for finding in findings:
        values.out.mkdir(parents=True, exist_ok=True)
        place = values.out / f"{finding.target}-{finding.seed}-{finding.number}"
        place.write_bytes(input_of(finding.target, seeds, finding.seed, finding.number))
        sys.stdout.write(f"{place}: {finding.what}\n")
    sys.stdout.write(f"{values.target}: {n} inputs, {len(findings)} findings\n")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(_main())
