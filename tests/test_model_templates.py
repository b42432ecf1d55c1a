"""Templates of a model by name, from a file or as source, and what they are given to read."""

import pickle
import shutil
import warnings
from pathlib import Path

import pytest

import rml
from rml.errors import ArgumentError, TemplateError

TOY = Path(__file__).resolve().parent / "fixtures" / "llama" / "model.gguf"
MESSAGES = [{"role": "user", "content": "Hi"}]
TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {}}}]
SOURCE = "{{ messages[0].content }}!"


@pytest.fixture(scope="module")
def model():
    with rml.load(TOY) as model:
        yield model


def load(source):
    return rml.load(TOY, chat_template=source)


# ---- which template ----


def test_a_built_in_template_by_name():
    with load("chatml") as model:
        text = model.render_chat(MESSAGES)
    assert text == rml.ChatTemplate.builtin("chatml").render(MESSAGES)


def test_a_template_given_as_source():
    with load(SOURCE) as model:
        assert model.render_chat(MESSAGES) == "Hi!"


def test_a_template_from_a_file(tmp_path, monkeypatch):
    file = tmp_path / "t.jinja"
    file.write_bytes(b"\xef\xbb\xbf" + SOURCE.encode())
    monkeypatch.chdir(tmp_path)
    for given in (file, str(file), "t.jinja"):
        with load(given) as model:
            assert model.render_chat(MESSAGES) == "Hi!"
            kept = pickle.dumps(model)
    file.unlink()
    with pickle.loads(kept) as again:
        assert again.render_chat(MESSAGES) == "Hi!"


def test_a_name_survives_pickling():
    with load("zephyr") as model, pickle.loads(pickle.dumps(model)) as again:
        assert again.render_chat(MESSAGES) == model.render_chat(MESSAGES)


@pytest.mark.parametrize("given", ["", "chatmll", "no/such.jinja", Path("chatml"), "Answer: "])
def test_what_is_no_template(given):
    with pytest.raises(ArgumentError, match=r"templates known by name are: .*chatml.*zephyr"):
        load(given)


@pytest.mark.parametrize("own", ["Hello there", "{ messages }"])
def test_a_models_own_template_that_is_none(tmp_path, own):
    folder = Path(shutil.copytree(TOY.parent / "hf", tmp_path / "model"))
    (folder / "chat_template.jinja").write_text(own)
    with rml.load(folder, n_threads=1) as model:
        with pytest.raises(TemplateError, match="is no Jinja source"):
            model.chat(MESSAGES, max_tokens=1)
        assert model.generate("a", max_tokens=1).token_ids
    with rml.load(folder, n_threads=1, chat_template="chatml") as model:
        assert "<|im_start|>" in model.render_chat(MESSAGES)


def test_an_unknown_built_in_name():
    with pytest.raises(TemplateError, match="chatml"):
        rml.ChatTemplate.builtin("nonsense")


# ---- content ----


def test_content_in_parts(model):
    parts = [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]
    messages = [{"role": "user", "content": parts}]

    assert model.render_chat(messages) == model.render_chat(MESSAGES)
    assert model.chat(messages, max_tokens=0).prompt_token_ids == model.apply_chat_template(
        MESSAGES
    )


def test_parts_may_be_merged_with_a_system_message():
    parts = [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]
    messages = [{"role": "system", "content": "Be kind"}, {"role": "user", "content": parts}]
    with load(SOURCE) as model:
        reply = model.chat(messages, merge_system=True, max_tokens=0)
        assert reply.prompt_token_ids == model.tokenizer.encode("Be kind\n\nHi!")


@pytest.mark.parametrize("kind", ["image", "image_url", "input_audio", "video", "file"])
def test_no_model_sees_pictures(kind):
    """Even if the template has a place for them."""
    source = (
        "{% for p in messages[0].content %}[" + kind + "]{{ p.type == '" + kind + "' }}{% endfor %}"
    )
    messages = [{"role": "user", "content": [{"type": kind}]}]
    with load(source) as model:
        for call in (model.render_chat, model.apply_chat_template, model.chat):
            with pytest.raises(ArgumentError, match=rf"messages\[0\].*{kind}.*rml reads text"):
                call(messages)
        assert model.render_chat([{"role": "user", "content": []}]) == ""
    assert rml.ChatTemplate(source).render(messages) == f"[{kind}]True"


def test_malformed_messages(model):
    for bad in ({"role": "usr", "content": "x"}, {"role": "user"}, {"content": "x"}):
        with pytest.raises(ArgumentError, match=r"messages\[1\]"):
            model.chat([*MESSAGES, bad])
    assert model.chat(MESSAGES, max_tokens=1)


# ---- tools ----


def test_tools_that_the_template_does_not_read(model):
    for call in (model.render_chat, model.apply_chat_template, model.chat):
        with pytest.raises(TemplateError, match="does not read `tools`"):
            call(MESSAGES, tools=TOOLS)


def test_no_tools_are_no_tools(model):
    text = model.render_chat(MESSAGES)
    with load("{{ tools is none }}") as reading:
        for none in (None, [], ()):
            assert model.render_chat(MESSAGES, tools=none) == text
            assert reading.render_chat(MESSAGES, tools=none) == "True"
            assert model.chat(MESSAGES, tools=none, max_tokens=1)


@pytest.mark.parametrize(
    "source",
    [
        "{{ tools | length }}",
        "{% if false %}{{ tools }}{% endif %}1",
        "{% macro f() %}{{ tools | length }}{% endmacro %}{{ f() }}",
        "{% if tools is not defined %}{% set tools = [] %}{% endif %}{{ tools | length }}",
        "{% set tools = tools or [] %}{{ tools | length }}",
    ],
)
def test_tools_that_the_template_reads_somewhere(source):
    with load(source) as model:
        assert model.render_chat(MESSAGES, tools=TOOLS) == "1"


@pytest.mark.parametrize(
    "source", ["{% set tools = [] %}{{ tools }}", "{% for tools in [] %}{{ tools }}{% endfor %}"]
)
def test_tools_of_the_templates_own(source):
    with load(source) as model, pytest.raises(TemplateError, match="tools"):
        model.render_chat(MESSAGES, tools=TOOLS)


@pytest.mark.parametrize("tools", ["x", {"name": "f"}, [print], ["f"], 1])
def test_malformed_tools(tools):
    with load("{{ tools }}") as model, pytest.raises(ArgumentError, match="tools"):
        model.render_chat(MESSAGES, tools=tools)


def test_a_template_for_tools(monkeypatch):
    templates = {"default": "{{ 'plain' }}", "tool_use": "{{ tools | length }} tools"}
    with rml.load(TOY) as model:
        monkeypatch.setattr(model.tokenizer, "chat_templates", templates)
        monkeypatch.setattr(model.tokenizer, "chat_template", templates["default"])
        assert model.render_chat(MESSAGES) == "plain"
        assert model.render_chat(MESSAGES, tools=TOOLS) == "1 tools"
        assert model.render_chat(MESSAGES, tools=[]) == "plain"
    with load("chatml") as model:
        monkeypatch.setattr(model.tokenizer, "chat_templates", templates)
        with pytest.raises(TemplateError, match="tools"):
            model.render_chat(MESSAGES, tools=TOOLS)


# ---- variables ----

THINKING = "{% if enable_thinking is defined and not enable_thinking %}[no]{% endif %}Hi"


def test_a_misspelt_variable_is_named_with_the_nearest_one():
    with load(THINKING) as model:
        words = "does not read 'enable_thinkin'; did you mean 'enable_thinking'"
        with pytest.warns(UserWarning, match=words) as seen:
            assert model.render_chat(MESSAGES, enable_thinkin=False) == "Hi"
        assert [warning.filename for warning in seen] == [__file__]
        with pytest.warns(UserWarning, match=words):
            model.apply_chat_template(MESSAGES, enable_thinkin=False)
        with pytest.warns(UserWarning, match=words) as seen:
            model.chat(MESSAGES, chat_template_kwargs={"enable_thinkin": False}, max_tokens=0)
        assert [warning.filename for warning in seen] == [__file__]
        assert model.render_chat(MESSAGES, enable_thinking=False) == "[no]Hi"


def test_a_variable_that_is_nothing_like_those_of_the_template():
    with load(THINKING) as model, pytest.warns(UserWarning, match="'zzz'; it reads enable_think"):
        model.render_chat(MESSAGES, zzz=1)
    with load("{{ messages }}") as model, pytest.warns(UserWarning, match="'zzz'$"):
        model.render_chat(MESSAGES, zzz=1)


def test_what_is_no_reason_to_warn(model):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert model.render_chat(MESSAGES, enable_thinking=None, bos_token="<s>", now=None)
        assert model.chat(MESSAGES, chat_template_kwargs={}, max_tokens=0)
        assert model.chat(MESSAGES, chat_template_kwargs=None, max_tokens=0)


def test_one_warning_however_often_a_chat_is_rendered():
    with load("{% for m in messages %}{{ m.content }}{% endfor %}") as model:
        messages = MESSAGES * 100
        kwargs = {"zzz": 1}
        with pytest.warns(UserWarning, match="zzz") as seen:
            reply = model.chat(messages, chat_template_kwargs=kwargs, max_tokens=1, truncate="left")
        assert reply.usage.dropped_tokens > 0
        assert len(seen) == 1


@pytest.mark.parametrize(
    "bad",
    [
        {"tools": TOOLS},
        {"messages": []},
        {"self": 1},
        {"strftime_now": 1},
        {"continue_final_message": True},
        {1: 2},
        [1],
        "x",
    ],
)
def test_what_cannot_be_a_variable(model, bad):
    with pytest.raises(ArgumentError, match="chat template"):
        model.chat(MESSAGES, chat_template_kwargs=bad)
