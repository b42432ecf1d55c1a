"""Every public parameter with every nasty value: it works, or is refused in rml's own words."""

import logging
import math
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
from nasty_values import CALLBACKS, VALUES, Fault, calls

import rml
from rml import ArgumentError, RmlError
from rml.ranges import boolean, checked, iterated, listed, one_of, shown, texts

LLAMA = Path(__file__).resolve().parent.parent / "fixtures" / "llama" / "model.gguf"
LONGEST_MESSAGE = 3000


@pytest.fixture(scope="module")
def model():
    with rml.load(LLAMA, n_threads=1) as model:
        yield model


@pytest.fixture(scope="module")
def expected(model):
    return model.generate("Hello", max_tokens=4, seed=1).token_ids


@pytest.fixture(scope="module")
def known_calls(model, tmp_path_factory):
    return calls(model, LLAMA, tmp_path_factory.mktemp("sessions"))


def names():
    class Anything:
        """Stands for a model, of which the names of the calls do not depend."""

        def __getattr__(self, name):
            return self

        def __call__(self, *args, **options):
            return self

        def __enter__(self):
            return self

        def __exit__(self, *error):
            return None

    return list(calls(Anything(), LLAMA, Path()))


@pytest.mark.parametrize("name", names())
def test_every_value_works_or_is_refused(
    model, expected, known_calls, name, monkeypatch, tmp_path, caplog
):
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.CRITICAL)
    for value_name, make in VALUES.items():
        value = make()
        if name.split()[-1] in CALLBACKS and callable(value):
            continue
        said = ""
        try:
            with warnings.catch_warnings(action="ignore"):
                known_calls[name](value)
        except RmlError as error:
            said = str(error)
        except Exception as error:
            raise AssertionError(f"{name}: {value_name}") from error
        assert len(said) < LONGEST_MESSAGE, value_name
    assert model.generate("Hello", max_tokens=4, seed=1).token_ids == expected


def test_what_a_callback_raises_is_its_callers(model, expected):
    def failing(*_args):
        raise Fault("mine")

    for option in CALLBACKS:
        with pytest.raises(Fault, match="mine"):
            model.generate("Hello", max_tokens=4, seed=1, **{option: failing})
    assert model.generate("Hello", max_tokens=4, seed=1).token_ids == expected


@pytest.mark.parametrize("multiplier", [5e-324, 1e-320, 1e-300, 100])
@pytest.mark.parametrize("base", [1, 1 + 2**-52, 1.75, 100])
def test_dry_at_the_ends_of_its_ranges(model, multiplier, base):
    reply = model.generate(
        [5, 6, 7, 8] * 12,
        max_tokens=8,
        seed=1,
        dry_multiplier=multiplier,
        dry_base=base,
        dry_allowed_length=1,
    )
    assert reply.usage.completion_tokens == 8


def test_the_cause_of_an_unreadable_value_is_told():
    class Lazy:
        def __len__(self):
            return 2

        def __iter__(self):
            raise OSError("the disk is gone")

    for read in (listed, lambda value: checked("stop", value, texts)):
        with pytest.raises(
            ArgumentError, match="cannot be read: OSError: the disk is gone"
        ) as told:
            read(Lazy())
        assert isinstance(told.value.__cause__, OSError)


def test_values_are_shown_on_a_short_line():
    for make in VALUES.values():
        text = shown(make())
        assert len(text) < 1000
        assert "\n" not in text
    assert shown("abc") == "'abc'"
    assert shown(math.nan) == "nan"
    assert shown(10**30) == str(10**30)


def test_texts_of_other_classes_are_what_they_hold():
    for name in ("str subclass", "evil str"):
        value = VALUES[name]()
        (plain,) = texts([value])
        assert type(plain) is str
        assert plain == str.__str__(value)
    with pytest.raises(ArgumentError, match="kind is 'Hello', but must be one of left"):
        one_of("kind", VALUES["str subclass"](), ["left"])


def test_collections_that_lie_are_no_lists():
    assert listed(VALUES["endless"]()) is None
    assert listed(VALUES["claims"]()) is None
    assert listed(VALUES["huge range"]()) is None
    assert iterated(VALUES["endless"]()) is None
    assert iterated(i for i in [1, 2]) == [1, 2]
    assert sorted(iterated({1, 2})) == [1, 2]
    assert listed(np.arange(3)) == [0, 1, 2]


def test_a_refusal_names_argument_value_and_need():
    with pytest.raises(ArgumentError, match=re.escape("echo=1 must be True or False")):
        checked("echo", 1, boolean)
