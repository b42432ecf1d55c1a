"""Templates by name: a model's own, and those that rml brings."""

from pathlib import Path

import pytest

import rml
from rml.errors import TemplateError

TOY = Path(__file__).resolve().parent / "fixtures" / "llama" / "model.gguf"
MESSAGES = [{"role": "user", "content": "Hi"}]


def test_a_built_in_template_by_name():
    with rml.load(TOY, chat_template="chatml") as model:
        text = model.render_chat(MESSAGES)
    assert text == rml.ChatTemplate.builtin("chatml").render(MESSAGES)


def test_a_template_given_as_source():
    with rml.load(TOY, chat_template="{{ messages[0].content }}!") as model:
        assert model.render_chat(MESSAGES) == "Hi!"


def test_an_unknown_built_in_name():
    with pytest.raises(TemplateError, match="chatml"):
        rml.ChatTemplate.builtin("nonsense")
