"""Messages that say nothing, or come from nobody, are refused in words."""

from enum import StrEnum

import pytest

from rml.errors import ArgumentError, RmlError
from rml.tokenizers import ChatTemplate

CHATML = ChatTemplate.builtin("chatml")
CALL = {"type": "function", "function": {"name": "f", "arguments": {}}}


def test_the_usual_roles():
    for role in ("system", "developer", "user", "assistant", "tool", "function"):
        assert f"<|im_start|>{role}\nx" in CHATML.render([{"role": role, "content": "x"}])


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"role": "usr", "content": "x"}, "'usr'.*did you mean 'user'"),
        ({"role": "User", "content": "x"}, "'User'.*did you mean 'user'"),
        ({"role": "robot", "content": "x"}, "'robot'.*system, developer, user"),
        ({"role": "", "content": "x"}, "the role ''"),
        ({"role": None, "content": "x"}, "the role None"),
        ({"role": 1, "content": "x"}, "the role 1"),
        ({"content": "x"}, "no role"),
        ({"role": "user"}, "no content"),
        ({"role": "user", "content": None}, "no content"),
        ({"role": "user", "content": None, "tool_calls": [CALL]}, "no content"),
        ({"role": "system", "name": "x"}, "no content"),
        ({"role": "tool", "content": None, "tool_call_id": "1", "name": "f"}, "no content"),
        ({"role": "user", "value": "x"}, "no content"),
        ({"role": "assistant", "content": None}, "no content"),
        ({"role": "assistant", "tool_calls": []}, "no content"),
        ({"role": "user", "content": 1}, "content is a int"),
        ({"role": "user", "content": b"x"}, "content is a bytes"),
        ({"role": "user", "content": {"type": "text", "text": "x"}}, "content is a dict"),
        ("x", "a message is a mapping"),
    ],
)
def test_refused(message, words):
    with pytest.raises(ArgumentError, match=r"messages\[1\].*" + words):
        CHATML.render([{"role": "user", "content": "Hi"}, message])


def test_a_role_of_the_templates_own():
    source = (
        "{% for m in messages %}{% if m.role == 'critic' %}[{{ m.content }}]{% endif %}{% endfor %}"
    )
    message = {"role": "critic", "content": "x"}

    assert ChatTemplate(source).render([message]) == "[x]"
    with pytest.raises(RmlError, match="critic"):
        CHATML.render([message])


def test_a_role_of_an_enumeration():
    class Role(StrEnum):
        USER = "user"

    assert "<|im_start|>user\n" in CHATML.render([{"role": Role.USER, "content": "x"}])


@pytest.mark.parametrize("content", [{}, {"content": None}])
def test_what_an_assistant_says_without_content(content):
    calls = {"role": "assistant", "tool_calls": [CALL], **content}
    thoughts = {"role": "assistant", "reasoning_content": "Hm", **content}

    assert CHATML.render([calls], add_generation_prompt=False)
    assert ChatTemplate("{{ messages[0].reasoning_content }}").render([thoughts]) == "Hm"
    with pytest.raises(ArgumentError, match="no content"):
        CHATML.render([thoughts])


def test_empty_content_is_content():
    assert CHATML.render([{"role": "user", "content": ""}]).startswith(
        "<|im_start|>user\n<|im_end|>"
    )


def test_results_of_tools_may_be_data():
    source = (
        "{% for m in messages %}{% if m.content is mapping %}{{ m.content | tojson }}"
        "{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )

    assert ChatTemplate(source).render([{"role": "tool", "content": {"a": 1}}]) == '{"a": 1}'
    with pytest.raises(ArgumentError, match="dict"):
        ChatTemplate(source).render([{"role": "user", "content": {"a": 1}}])
