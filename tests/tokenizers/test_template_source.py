"""What a user means by a chat template: a name, a file, or Jinja source."""

import pytest

from rml.errors import ArgumentError, CheckpointError, TemplateError, TokenizerError
from rml.files.limits import MAX_TEMPLATE_CHARS
from rml.tokenizers import ChatTemplate
from rml.tokenizers.builtin_templates import BUILTIN_TEMPLATES
from rml.tokenizers.template_source import (
    named_sources,
    read_template,
    template_source,
)

OWN = {"default": "{{ 1 }}", "tool_use": "{{ 2 }}", "chatml": "{{ 3 }}", "plain": "x"}
SOURCE = "{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("given", "source"),
    [
        ("tool_use", "{{ 2 }}"),
        ("chatml", "{{ 3 }}"),
        ("plain", "x"),
        ("zephyr", BUILTIN_TEMPLATES["zephyr"]),
        (SOURCE, SOURCE),
        ("{#- a remark #}x", "{#- a remark #}x"),
        ("{{ x }}" * 1000, "{{ x }}" * 1000),
    ],
)
def test_names_and_sources(given, source):
    assert template_source(given, OWN) == source


@pytest.mark.parametrize("data", [SOURCE.encode(), b"\xef\xbb\xbf" + SOURCE.encode()])
def test_files(tmp_path, monkeypatch, data):
    file = tmp_path / "a template"
    file.write_bytes(data)
    monkeypatch.chdir(tmp_path)

    for given in (file, str(file), "a template", f"../{tmp_path.name}/a template"):
        assert template_source(given, OWN) == SOURCE
    assert ChatTemplate.from_file(file).source == SOURCE
    assert ChatTemplate.from_file(str(file)).source == SOURCE


@pytest.mark.parametrize(
    "given", ["", " ", "chatmll", "/no/such.jinja", "x" * 100_000, "a\0b", "Answer:", "{ }", "."]
)
def test_what_is_none_of_these(given):
    with pytest.raises(ArgumentError, match=r"templates known by name are: .*tool_use.*zephyr"):
        template_source(given, OWN)


def test_a_path_is_never_a_name_or_source(tmp_path):
    for given in (tmp_path, tmp_path / "chatml", tmp_path / SOURCE):
        with pytest.raises(ArgumentError, match="no such file"):
            template_source(given, OWN)


@pytest.mark.parametrize("given", [1, b"chatml", ["chatml"], ChatTemplate("x")])
def test_other_types(given):
    with pytest.raises(ArgumentError, match="a name, a file or Jinja source"):
        template_source(given, OWN)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\xff\xfe{\0{\0", "UTF-8"),
        (b"{{ 1 }}" + b" " * MAX_TEMPLATE_CHARS, "more than"),
        (b"Just a text.\n", "no Jinja"),
        (b"", "no Jinja"),
    ],
)
def test_files_that_are_no_templates(tmp_path, data, words):
    file = tmp_path / "t.jinja"
    file.write_bytes(data)

    with pytest.raises(TemplateError, match=rf"t\.jinja.*{words}"):
        template_source(file, OWN)


def test_a_file_of_a_model_is_a_fault_of_the_model(tmp_path):
    with pytest.raises(CheckpointError, match="missing"):
        read_template(tmp_path / "missing", CheckpointError)


@pytest.mark.parametrize("given", ["chatml", "my/template.jinja", "t.j2"])
def test_a_source_that_is_a_name(given):
    with pytest.raises(TemplateError, match=r"ChatTemplate\.builtin.*ChatTemplate\.from_file"):
        ChatTemplate(given)


def test_a_source_is_text(tmp_path):
    with pytest.raises(ArgumentError, match=r"ChatTemplate\.from_file"):
        ChatTemplate(tmp_path)


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (None, {}),
        ("", {}),
        ("x", {"default": "x"}),
        ([], {}),
        ([{"name": "a", "template": "x"}, {"name": "b", "template": ""}], {"a": "x"}),
        ({"default": "x", "rag": "y"}, {"default": "x", "rag": "y"}),
    ],
)
def test_templates_in_json(value, named):
    assert named_sources(value, "model") == named


@pytest.mark.parametrize("value", [1, ["x"], [{"name": "a"}], [{"name": 1, "template": "x"}]])
def test_broken_templates_in_json(value):
    with pytest.raises(TokenizerError, match=r"model: .*chat template"):
        named_sources(value, "model")
