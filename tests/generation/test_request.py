"""Arguments of a call: names, aliases, ranges."""

import math

import pytest

from rml.errors import ArgumentError
from rml.generation.request import ALIASES, GenerateOptions, Request
from rml.sampling.settings import SamplingSettings, settings_of_gguf


def request(**options):
    return Request.of(options, SamplingSettings())


def test_nothing_given_is_until_stop_or_context_with_a_drawn_seed():
    plain = request()

    assert plain.max_tokens is None
    assert plain.stop == ()
    assert 0 <= plain.seed < 2**32
    assert plain.seed != request().seed
    assert plain.sampling == SamplingSettings()


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("max_new_tokens", "max_tokens"),
        ("max_completion_tokens", "max_tokens"),
        ("n_predict", "max_tokens"),
        ("num_predict", "max_tokens"),
    ],
)
def test_other_names_for_the_length(alias, name):
    assert getattr(request(**{alias: 7}), name) == 7
    assert getattr(request(**{alias: -1}), name) is None


def test_other_names_for_sampling():
    sampling = request(temp=0.5, repetition_penalty=1.2, typical=0.9).sampling

    assert (sampling.temperature, sampling.repeat_penalty, sampling.typical_p) == (0.5, 1.2, 0.9)
    assert sampling.origin == dict.fromkeys(
        ("temperature", "repeat_penalty", "typical_p"), "argument"
    )
    assert request(stop_strings=["a"]).stop == ("a",)


def test_do_sample_is_greedy_or_nothing():
    assert request(do_sample=False, temperature=0.7).sampling.is_greedy
    assert request(do_sample=True).sampling == SamplingSettings()
    with pytest.raises(ArgumentError, match="do_sample=0 must be True or False"):
        request(do_sample=0)


def test_a_length_that_is_not_given_is_the_callers_default():
    """None stands for "not given", as of every argument; -1 is a length: no limit."""

    def length(**options):
        return Request.of(options, SamplingSettings(), 256).max_tokens

    assert length() == length(max_tokens=None) == length(n_predict=None) == 256
    assert length(max_tokens=-1) is length(num_predict=-1.0) is None
    assert length(max_tokens=0) == 0


def test_unknown_names_are_refused_with_the_nearest_one():
    with pytest.raises(ArgumentError, match="unknown argument 'temprature'; did you mean 'temp"):
        request(temprature=1)
    with pytest.raises(ArgumentError, match="unknown argument 'xyzzy'; known are"):
        request(xyzzy=1)


def test_one_thing_under_two_names_is_refused():
    with pytest.raises(ArgumentError, match="temperature was given twice, once as temp"):
        request(temperature=1, temp=0.5)


def test_none_is_not_given():
    assert request(temperature=None, stop=None, top_k=None, max_tokens=None).sampling == (
        SamplingSettings()
    )


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("max_tokens", [-2, 1.5, "8", True]),
        ("stop", ["", ["a", ""], 5, [5]]),
        ("stop_token_ids", [-1, "a", [1.5], [True]]),
        ("ignore_eos", [1, "yes"]),
        ("seed", [-2, 2**64, 1.5, "1", True]),
        ("logits_processor", [5, [5]]),
        ("logprobs", [-1, 21, 1.5, "x"]),
        ("top_logprobs", [-1, 21, True]),
        ("progress", [5]),
        ("session", [5]),
        ("parse_special", ["yes"]),
        ("temperature", [-1, math.nan]),
    ],
)
def test_values_out_of_range(name, values):
    for value in values:
        with pytest.raises(ArgumentError, match=f"^{name}=.* must"):
            request(**{name: value})


def test_plain_types_come_out():
    made = request(
        stop="x", stop_token_ids=5, logits_processor=len, logprobs=3, seed=9, progress=print
    )

    assert made.stop == ("x",)
    assert made.stop_token_ids == {5}
    assert made.logits_processor == (len,)
    assert (made.logprobs, made.top_logprobs, made.seed) == (True, 3, 9)
    assert made.progress is print
    assert request(logprobs=True, top_logprobs=4).top_logprobs == 4
    assert request(seed=-1).seed >= 0


def test_arguments_win_over_the_model():
    defaults = settings_of_gguf({"general.sampling.temp": 0.5, "general.sampling.top_k": 7})

    sampling = Request.of({"temperature": 0.1}, defaults).sampling

    assert (sampling.temperature, sampling.top_k) == (0.1, 7)


def test_every_option_is_declared_for_type_checkers():
    declared = set(GenerateOptions.__annotations__)
    fields = set(Request.__dataclass_fields__) - {"sampling"}

    assert declared == fields | set(SamplingSettings.names()) | set(ALIASES) | {"do_sample"}
