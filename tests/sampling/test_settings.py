"""Ranges, defaults and origins of the sampling settings."""

import math

import numpy as np
import pytest

from rml.errors import ArgumentError, CheckpointError
from rml.sampling.settings import (
    LLAMA_CPP_SAMPLERS,
    SAMPLERS,
    SamplingSettings,
    settings_of_gguf,
    settings_of_hugging_face,
)


def test_defaults_are_the_habit_of_most_users():
    settings = SamplingSettings()

    assert (settings.temperature, settings.top_k) == (0.8, 40)
    assert (settings.top_p, settings.min_p) == (0.95, 0.05)
    assert (settings.repeat_penalty, settings.repeat_last_n) == (1.0, 64)
    assert settings.samplers == SAMPLERS


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("temperature", [-1, -1e-9, NAN, INF, "0.5", True, None, 10**400, 1j]),
        ("top_k", [-2, 1.5, "40", True, None]),
        ("top_p", [-0.1, 1.1, NAN]),
        ("min_p", [-0.1, 1.1, NAN]),
        ("typical_p", [-0.1, 1.1]),
        ("top_n_sigma", [-2, INF]),
        ("repeat_penalty", [0, -1, INF, NAN]),
        ("repeat_last_n", [-2, 1.5]),
        ("presence_penalty", [101, -101, NAN]),
        ("frequency_penalty", [101, -101]),
        ("dry_multiplier", [-1, INF]),
        ("dry_base", [0.5]),
        ("dry_allowed_length", [0]),
        ("dry_breakers", [[""], 5, [1]]),
        ("xtc_probability", [1.5]),
        ("mirostat", [1, 3, -1]),
        ("samplers", [["top_q"], "kq", 5, [3]]),
        ("logit_bias", [[1], {-1: 1.0}, {"x": 1.0}, {1: INF}, {1: NAN}, {1: "2"}, {1: True}]),
    ],
)
def test_values_out_of_range_are_refused_by_name(name, values):
    for value in values:
        with pytest.raises(ArgumentError, match=f"^{name}=.* must"):
            SamplingSettings(**{name: value})


def test_numpy_numbers_are_numbers():
    settings = SamplingSettings(
        temperature=np.float32(0.5), top_k=np.int64(3), logit_bias={np.int32(4): np.float64(1)}
    )

    assert (settings.temperature, settings.top_k) == (0.5, 3)
    assert settings.logit_bias == {4: 1.0}


def test_logit_bias_takes_json_keys_and_bans():
    settings = SamplingSettings(logit_bias={"7": -100, 8: False, 9: -INF})

    assert settings.logit_bias == {7: -100.0, 8: -INF, 9: -INF}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("llama.cpp", LLAMA_CPP_SAMPLERS),
        ("edskypmxt", LLAMA_CPP_SAMPLERS),
        ("top_k;temp", ("top_k", "temperature")),
        ("top_k", ("top_k",)),
        (["typ_p", "t"], ("typical_p", "temperature")),
        ("", ()),
        ((), ()),
    ],
)
def test_ways_to_name_the_stages(given, expected):
    assert SamplingSettings(samplers=given).samplers == expected


def test_gguf_keys_win_over_defaults_and_say_so():
    stored = float(np.float32(0.6))
    settings = settings_of_gguf(
        {"general.sampling.temp": stored, "general.sampling.sequence": "kt", "general.name": "x"}
    )

    assert settings.temperature == 0.6
    assert settings.samplers == ("top_k", "temperature")
    assert settings.origin == {
        "temperature": "general.sampling.temp",
        "samplers": "general.sampling.sequence",
    }
    assert settings.top_k == 40

    with pytest.raises(CheckpointError, match=r"m\.gguf: general\.sampling\.top_p: top_p=7"):
        settings_of_gguf({"general.sampling.top_p": 7.0}, "m.gguf")


def test_generation_config_means_what_transformers_means():
    plain = settings_of_hugging_face({"eos_token_id": [1, 2], "top_k": 20, "min_p": None})
    sampled = settings_of_hugging_face({"do_sample": True, "top_p": 0.9, "repetition_penalty": 1.1})
    greedy = settings_of_hugging_face({"do_sample": False, "temperature": 0.7})

    assert (plain.top_k, plain.temperature, plain.min_p) == (20, 0.8, 0.05)
    assert plain.origin == {"top_k": "generation_config.json"}
    assert (sampled.temperature, sampled.top_k, sampled.top_p, sampled.min_p) == (1, 50, 0.9, 0)
    assert sampled.repeat_penalty == 1.1
    assert sampled.origin["top_p"] == "generation_config.json"
    assert sampled.origin["top_k"] == "Transformers' default, for generation_config.json"
    assert greedy.temperature == 0

    with pytest.raises(CheckpointError, match=r"generation_config\.json: top_k='x'"):
        settings_of_hugging_face({"top_k": "x"})


def test_tokens_that_a_file_suppresses():
    gguf = settings_of_gguf({"tokenizer.ggml.suppress_tokens": np.array([5, -1, 9], np.int32)})
    config = {"suppress_tokens": [3], "bad_words_ids": [[4], [5, 6], [3]]}
    hugging_face = settings_of_hugging_face(config)

    assert gguf.suppress_tokens == (5, 9)
    assert gguf.origin == {"suppress_tokens": "tokenizer.ggml.suppress_tokens"}
    assert hugging_face.suppress_tokens == (3, 4)
    assert "suppress_tokens      (3, 4)" in str(hugging_face)


def test_unknown_keys_of_a_gguf_file_are_named(caplog):
    settings_of_gguf({"general.sampling.temp": 0.5, "general.sampling.penalty_freq": 1.0}, "m.gguf")

    assert "m.gguf has keys that rml does not know: general.sampling.penalty_freq" in caplog.text
    assert "sampling.temp" not in caplog.text


def test_arguments_win_over_files():
    file = settings_of_gguf({"general.sampling.temp": 0.5, "general.sampling.top_k": 7})

    settings = file.replace({"temperature": 0.25}, "argument")

    assert (settings.temperature, settings.top_k) == (0.25, 7)
    assert settings.origin == {"temperature": "argument", "top_k": "general.sampling.top_k"}


def test_the_text_of_settings_lists_values_and_origins():
    lines = str(settings_of_gguf({"general.sampling.top_k": 7})).splitlines()

    table = {line.split()[0]: line.split()[1:] for line in lines}
    assert table["top_k"] == ["7", "general.sampling.top_k"]
    assert table["temperature"] == ["0.8", "default"]
    assert set(table) == set(SamplingSettings.names()) - {"logit_bias", "suppress_tokens"}
