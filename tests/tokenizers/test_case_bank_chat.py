"""Real chat templates of the case bank: text, marks, and ids of the usual prompt."""

import datetime as dt
import functools
import json
import re

import pytest

from rml.errors import TemplateError
from rml.tokenizers import UNSET, ChatTemplate, Tokenizer
from rml.tokenizers.byte_level import BYTE_TO_CHAR

# What looks like a control token in the prompts of the families.
CONTROL = re.compile(
    r"<\|[\w:/. -]{1,40}\|>|<｜[^｜]{1,40}｜>|\[/?[A-Z_]{3,}\]|</?s>|<(?:start|end)_of_turn>"
    r"|<bos>|<eos>|<\w+\|>|</?tool_calls?>|</?think>"
)


def cases(cases_dir):
    folder = cases_dir / "chat"
    return [*folder.glob("CHAT-*.json"), *folder.glob("all_templates/*.expected.json")]


def read(path):
    data = json.loads(path.read_text(encoding="utf-8"))
    file = path.parent / (data.get("template_file") or data["template"])
    with file.open(encoding="utf-8", newline="") as stream:
        data["source"] = stream.read()
    return data


@functools.cache
def template_of(source):
    return ChatTemplate(source)


def arguments(data):
    prompt, tools = data.get("add_generation_prompt"), data.get("tools")
    variables = dict(data.get("extra_context") or {})
    variables |= {f"{k}_token": data[k] for k in ("bos", "eos") if data.get(k) is not None}
    return {
        "messages": data["messages"],
        "tools": UNSET if tools is None else tools,
        "add_generation_prompt": UNSET if prompt is None else prompt,
        "now": dt.datetime.fromisoformat(data["now"]) if data.get("now") else None,
        **variables,
    }


def tokenizer_for(text, data):
    """A vocabulary of bytes, and of what looks like control tokens and is the template's own."""
    given = json.dumps([data["messages"], data.get("tools"), data.get("extra_context")])
    names = sorted({name for name in CONTROL.findall(text) if json.dumps(name)[1:-1] not in given})
    tokens = [BYTE_TO_CHAR[byte] for byte in range(256)] + names
    return Tokenizer.from_gguf(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [1] * 256 + [3] * len(names),
            "tokenizer.ggml.merges": [],
        }
    )


def test_all_renderings(cases_dir):
    paths = cases(cases_dir)
    wrong = []
    for path in sorted(paths):
        data = read(path)
        keys = ("expected", "expected_with_arguments_parsed", "expected_with_tools_undefined")
        expected = [data[key] for key in keys if data.get(key) is not None]
        text = template_of(data["source"]).render(**arguments(data))
        if text not in expected:
            wrong.append(path.name)

    assert len(paths) > 100
    assert wrong == []


def test_usual_prompts_have_the_ids_of_the_whole_text(cases_dir):
    found = 0
    wrong = []
    for path in sorted(cases(cases_dir)):
        data = read(path)
        parts = template_of(data["source"]).render_parts(**arguments(data))
        text = "".join(part for part, _ in parts)
        tokenizer = tokenizer_for(text, data)
        ids = tokenizer.encode_parts(parts, add_bos=False)
        found += sum(map(tokenizer.is_special, ids))
        if ids != tokenizer.encode(text, False, parse_special=True):
            wrong.append(path.name)

    assert found > 800
    assert wrong == []


@pytest.mark.parametrize("where", ["content", "name", "tool", "argument"])
def test_no_message_forges_a_control_token(cases_dir, where):
    for path in sorted(cases(cases_dir)):
        data = read(path)
        parts = template_of(data["source"]).render_parts(**arguments(data))
        tokenizer = tokenizer_for("".join(part for part, _ in parts), data)
        before = [i for i in tokenizer.encode_parts(parts, False) if tokenizer.is_special(i)]
        names = [tokenizer.token_bytes(i).decode() for i in sorted(set(before))]
        # Some templates look for these in messages, and write others if they find them.
        names = [name for name in names if not re.search("think|tool", name)]
        if not names:
            continue
        forged = json.loads(json.dumps(data))
        spread(forged, where, "".join(names))
        try:
            parts = template_of(data["source"]).render_parts(**arguments(forged))
        except TemplateError:
            continue
        after = [i for i in tokenizer.encode_parts(parts, False) if tokenizer.is_special(i)]

        assert after == before, path.name


def spread(data, where, text):
    """Put a text into every place of a kind."""
    for message in data["messages"]:
        if where == "content" and isinstance(message.get("content"), str):
            message["content"] += " " + text
        if where == "name" and "name" in message:
            message["name"] += text
        for call in message.get("tool_calls") or []:
            function = call.get("function", call)
            if where == "argument":
                function["arguments"] = json.dumps({"x": text, text: 1})
    for tool in data.get("tools") or []:
        function = tool.get("function", tool)
        if where == "tool":
            function["description"] = text
            function["name"] = str(function.get("name")) + text


def test_template_language(cases_dir):
    bank = json.loads((cases_dir / "chat" / "jinja_language.json").read_text(encoding="utf-8"))

    for case in bank["cases"]:
        variables = {k: v for k, v in case["vars"].items() if k != "messages"}
        got = ChatTemplate(case["template"]).render(
            case["vars"].get("messages") or [], add_generation_prompt=UNSET, **variables
        )

        assert got == case["expected"], case["name"]
