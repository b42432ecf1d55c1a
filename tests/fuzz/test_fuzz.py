"""A bounded run of every target, always with the same inputs; `fuzz.py` runs for longer."""

import pytest
from fuzz import fuzz, input_of
from targets import TARGETS, Target

from rml.errors import ArgumentError

INPUTS = {"gguf": 400, "safetensors": 500, "folder": 250, "tokenizer": 500, "template": 500}
INPUTS |= {"session": 400, "options": 500}


@pytest.mark.parametrize("target", TARGETS)
def test_nothing_but_errors_of_rml(target):
    n, findings = fuzz(target, inputs=INPUTS[target])
    assert n == INPUTS[target]
    assert findings == []


@pytest.mark.parametrize("target", TARGETS)
def test_inputs_can_be_made_again_and_differ(target):
    seeds = TARGETS[target].seeds()
    made = [input_of(target, seeds, 1, i) for i in range(60)]
    assert made == [input_of(target, seeds, 1, i) for i in range(60)]
    assert made[: len(seeds)] == seeds
    assert len(set(made)) > 30


@pytest.mark.parametrize(
    ("does", "what"),
    [
        ("raise KeyError('x')", "KeyError"),
        ("raise ArgumentError('fine')", None),
        ("import os; os.abort()", "exit code -6"),
        ("bytearray(5 << 30)", "MemoryError"),
        ("import time; time.sleep(60)", "no answer in 1 s"),
        ("while True: pass", "no answer in 1 s"),
    ],
)
def test_what_is_found(tmp_path, monkeypatch, does, what):
    """The driver itself, with a target that misbehaves at the third input."""
    import fuzz as driver

    script = tmp_path / "fuzz_here.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(driver.__file__.rsplit('/', 1)[0])!r})\n"
        "import fuzz, targets\n"
        "from rml.errors import ArgumentError\n"
        "def check(data, folder):\n"
        "    if data == b'3':\n"
        f"        {does}\n"
        "change = lambda rng, data: b'x'\n"
        "seeds = lambda: [b'0', b'1', b'2', b'3', b'4']\n"
        "targets.TARGETS['gguf'] = targets.Target(seeds, change, check)\n"
        "fuzz.SECONDS = 1\n"
        "sys.exit(fuzz._main())\n"
    )
    monkeypatch.setattr(driver, "__file__", str(script))
    monkeypatch.setattr(driver, "SECONDS", 1)
    n, findings = driver.fuzz("gguf", inputs=5)
    assert n == 5
    assert issubclass(ArgumentError, Exception)
    assert Target is not None
    if what is None:
        assert findings == []
    else:
        (finding,) = findings
        assert finding.number == 3
        assert what in finding.what
