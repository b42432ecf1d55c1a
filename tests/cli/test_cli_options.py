"""Options: flags, environment, what is ignored, what is refused."""

import click
import pytest

from rml.cli import option_table as table
from rml.cli.options import load_arguments, option, options, sampling_arguments
from rml.cli.parsing import Command


def parse(args, names=(*table.MODEL_OPTIONS, *table.SAMPLING_OPTIONS), env=None):
    """Return (values, output) of a command with the shared options."""
    found = {}

    @click.command(cls=Command)
    @click.argument("text", required=False)
    @options(*names)
    def command(**values):
        found.update(values)

    result = click.testing.CliRunner().invoke(command, args, env=env)
    if result.exit_code:
        raise click.UsageError(result.output)
    return found, result.stderr


def test_defaults_leave_everything_to_the_model():
    values, _ = parse([])
    assert values["model"] == "smollm2"
    assert load_arguments(values) == {}
    assert sampling_arguments(values) == {}


@pytest.mark.parametrize(
    ("line", "env", "expected"),
    [
        ("", {}, {}),
        ("--no-mmap", {}, {"mmap": False}),
        ("--mmap", {}, {"mmap": True}),
        ("", {"RML_ARG_MMAP": "0"}, {"mmap": False}),
        ("--mmap", {"RML_ARG_MMAP": "0"}, {"mmap": True}),
    ],
)
def test_whether_the_weights_are_mapped(line, env, expected):
    assert load_arguments(parse(line.split(), env=env)[0]) == expected


def test_every_spelling_of_llama_cpp():
    line = (
        "-m x.gguf -n 8 -c 512 -b 64 -t 3 -s 7 --temp 0 --top-k 5 --top-p 0.5 --min-p 0.1 "
        "-ctk f32 -ctv f32 -r END --typical 0.9 --repeat-penalty 1.1 -l 5-inf -l 6+1.5"
    )
    values, _ = parse(line.split())
    assert values["model"] == "x.gguf"
    assert load_arguments(values) == {
        "n_threads": 3,
        "n_ctx": 512,
        "n_batch": 64,
        "kv_type": "f32",
    }
    assert sampling_arguments(values) == {
        "max_tokens": 8,
        "seed": 7,
        "temperature": 0.0,
        "top_k": 5,
        "top_p": 0.5,
        "min_p": 0.1,
        "typical_p": 0.9,
        "repeat_penalty": 1.1,
        "stop": ["END"],
        "logit_bias": {5: float("-inf"), 6: 1.5},
    }


def test_breakers_of_dry():
    assert sampling_arguments(parse(["--dry-sequence-breaker", "."])[0]) == {"dry_breakers": ["."]}
    two = ["--dry-sequence-breaker", "a", "--dry-sequence-breaker", "b"]
    assert sampling_arguments(parse(two)[0]) == {"dry_breakers": ["a", "b"]}
    none = parse(["--dry-sequence-breaker", "none"])[0]
    assert sampling_arguments(none) == {"dry_breakers": []}


def test_suppressed_tokens():
    given = parse(["--suppress-tokens", "5, 7"])[0]
    assert sampling_arguments(given) == {"suppress_tokens": (5, 7)}
    assert sampling_arguments(parse(["--suppress-tokens", ""])[0]) == {"suppress_tokens": ()}
    with pytest.raises(click.UsageError, match="'5,x': expected token ids, as 5,17"):
        parse(["--suppress-tokens", "5,x"])


def test_every_setting_of_sampling_has_a_flag():
    from rml import SamplingSettings

    assert set(SamplingSettings.names()) <= set(table.SAMPLING_OPTIONS)


@pytest.mark.parametrize("flag", ["-n", "--predict", "--n-predict"])
def test_one_option_has_several_flags(flag):
    assert parse([flag, "3"])[0]["n_predict"] == 3


def test_a_short_flag_may_touch_its_value():
    assert parse(["-n8", "-t2", "-m", "x"])[0]["n_predict"] == 8


def test_minus_one_and_zero_mean_no_limit():
    values, _ = parse(["-n", "-1", "-s", "-1", "-c", "0"])
    assert sampling_arguments(values) == {"max_tokens": -1}
    assert sampling_arguments(parse(["-n", "-2"])[0]) == {"max_tokens": -1}
    assert sampling_arguments(parse([])[0]) == {}
    assert load_arguments(values) == {}
    assert sampling_arguments(parse(["-n", "0"])[0]) == {"max_tokens": 0}


def test_names_are_those_of_the_library():
    """Every argument that an option makes is one that rml.load or a generation has."""
    from rml.generation.request import GenerateOptions

    values, _ = parse([])
    texts = {"stop": ("x",), "logit_bias": ("1+1",), "dry_breakers": ("x",)}
    numbers = {name: 1 for name in values if name not in {*texts, "model"}}
    filled = {**values, **numbers, **texts, "cache_type_k": "f16"}
    filled["cache_type_v"] = "f16"
    assert set(sampling_arguments(filled)) <= set(GenerateOptions.__annotations__)
    names = {"n_threads", "compute", "n_ctx", "n_batch", "kv_type", "mmap"}
    assert set(load_arguments(filled)) <= names


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("RML_ARG_MODEL", "other.gguf", "model", "other.gguf"),
        ("RML_ARG_CTX_SIZE", "99", "ctx_size", 99),
        ("RML_ARG_N_PREDICT", "5", "n_predict", 5),
        ("RML_ARG_TEMP", "0.3", "temperature", 0.3),
        ("RML_ARG_TEMPERATURE", "0.3", "temperature", 0.3),
        ("RML_ARG_CACHE_TYPE_K", "f32", "cache_type_k", "f32"),
        ("RML_ARG_OFFLINE", "on", "offline", True),
        ("RML_ARG_ESCAPE", "0", "escape", False),
        ("RML_ARG_STOP", "The end.", "stop", ("The end.",)),
        ("RML_ARG_DRY_SEQUENCE_BREAKER", "a b", "dry_breakers", ("a b",)),
    ],
)
def test_the_environment(variable, text, name, value):
    assert parse([], env={variable: text})[0][name] == value


@pytest.mark.parametrize(
    ("variable", "text"),
    [("RML_ARG_CTX_SIZE", "many"), ("RML_ARG_OFFLINE", "maybe"), ("RML_ARG_COMPUTE", "int4")],
)
def test_a_wrong_value_in_the_environment_is_named(variable, text):
    with pytest.raises(click.UsageError, match=f"from the environment: {variable}"):
        parse([], env={variable: text})


def test_a_variable_that_sets_nothing_is_named():
    env = {"RML_ARG_TEMPRATURE": "0", "RML_ARG_N_GPU_LAYERS": "99", "RML_ARG_TEMP": "0"}
    values, output = parse([], env=env)
    assert output == "rml: no flag is set by RML_ARG_TEMPRATURE\n"
    assert values["temperature"] == 0


def test_the_command_line_wins_over_the_environment():
    assert parse(["-c", "7"], env={"RML_ARG_CTX_SIZE": "99"})[0]["ctx_size"] == 7


def test_llama_cpp_s_variables_are_read_on_request(monkeypatch):
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "99")
    assert parse([])[0]["ctx_size"] is None
    monkeypatch.setenv("RML_LLAMA_ENV", "1")
    assert parse([])[0]["ctx_size"] == 99


def test_gpu_flags_are_accepted_with_one_notice():
    line = "-ngl -1 -fa on -sm layer --no-kv-offload -n 4 hello"
    values, output = parse(line.split())
    assert values["text"] == "hello"
    assert values["n_predict"] == 4
    assert output.count("ignored") == 1
    assert {"-ngl", "-fa", "-sm", "-nkvo"} <= set(output.split())


def test_flags_that_say_what_rml_does_anyway_get_no_notice():
    values, output = parse(["-no-cnv", "--no-display-prompt", "--jinja", "hello"])
    assert values["text"] == "hello"
    assert output == ""


@pytest.mark.parametrize(
    "args",
    [
        ["-fa", "hello"],
        ["-fa", "on", "hello"],
        ["hello", "-fa"],
        ["hello", "-fa", "auto"],
        ["--color", "hello"],
    ],
)
def test_flash_attention_may_leave_its_value_out(args):
    assert parse(args)[0]["text"] == "hello"


@pytest.mark.parametrize(
    "args",
    [
        ["--no-such-flag"],
        ["-n", "many"],
        ["-c", "-5"],
        ["--compute", "int4"],
        ["a", "b"],
        ["-ngl"],
    ],
)
def test_a_wrong_command_line_is_refused(args):
    with pytest.raises(click.UsageError):
        parse(args)


def test_keys_and_values_of_different_types_are_refused():
    values, _ = parse(["-ctk", "f16", "-ctv", "f32"])
    with pytest.raises(click.UsageError, match="-ctk f16 -ctv f32"):
        load_arguments(values)
    assert load_arguments(parse(["-ctv", "f32"])[0]) == {"kv_type": "f32"}


def test_escapes_in_stop_strings_and_breakers():
    args = ["-r", r"\n\n", "--dry-sequence-breaker", r"a\tb"]
    assert sampling_arguments(parse(args)[0]) == {"stop": ["\n\n"], "dry_breakers": ["a\tb"]}
    plain = sampling_arguments(parse([*args, "--no-escape"])[0])
    assert plain == {"stop": [r"\n\n"], "dry_breakers": [r"a\tb"]}


@pytest.mark.parametrize("text", ["x+1", "5", "+1", "5+", "5*3", ""])
def test_a_logit_bias_that_cannot_be_read(text):
    values, _ = parse(["-l", text])
    with pytest.raises(click.UsageError, match="expected a token id"):
        sampling_arguments(values)


def test_a_template_is_for_the_library_to_find():
    assert load_arguments({"chat_template": "tool_use"}) == {"chat_template": "tool_use"}


def test_an_option_can_be_changed_by_a_command():
    @click.command()
    @option("batch_size", default=3)
    def command(batch_size):
        click.echo(batch_size)

    assert click.testing.CliRunner().invoke(command).output == "3\n"
