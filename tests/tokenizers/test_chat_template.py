"""Chat templates: text as Transformers renders it, and what of it the template wrote."""

import datetime as dt

import pytest

from rml.errors import ArgumentError, TemplateError
from rml.tokenizers.chat_template import UNSET, ChatTemplate

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
HELLO = [{"role": "user", "content": "Hello"}]


def render(source, messages=HELLO, **variables):
    return ChatTemplate(source).render(messages, **variables)


def parts(source, messages=HELLO, **variables):
    return ChatTemplate(source).render_parts(messages, **variables)


def written(source, messages=HELLO, **variables):
    return [text for text, by_template in parts(source, messages, **variables) if by_template]


def test_chatml():
    assert render(CHATML) == ("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n")
    assert render(CHATML, add_generation_prompt=False) == ("<|im_start|>user\nHello<|im_end|>\n")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% if true %}\nx\n{% endif %}\n", "x\n"),
        ("  {% if true %}\n  x\n  {% endif %}\n", "  x\n"),
        ("{{ {'q': '<안녕 & it\\'s>'} | tojson }}", '{"q": "<안녕 & it\'s>"}'),
        ("{{ {'a': [1, 2]} | tojson(indent=2) }}", '{\n  "a": [\n    1,\n    2\n  ]\n}'),
        ("{{ {'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':')) }}", '{"a":2,"b":1}'),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("a{% generation %}b{{ 1 }}{% endgeneration %}c", "ab1c"),
        ("{{ tools is defined }} {{ documents is defined }}", "False False"),
        ("{{ messages[0].content }}{{ missing }}", "Hello"),
        ("{{ '%s-%d' % ('a', 3) }}{{ '{}:{0}'.format('x') if false else '{}:{}'.format(1, 'y') }}",
         "a-31:y"),
        ("{{ '<' + ('>' | safe) }}{{ '<' ~ ('>' | safe) }}", "&lt;><>"),
        ("{{ 'abc'[::-1] }}{{ 'a' ~ 1 ~ none }}", "cbaa1None"),
        ("{% macro m(x) %}[{{ x }}]{% endmacro %}{{ m('a') + m(1) }}", "[a][1]"),
    ],
)  # fmt: skip
def test_language(source, expected):
    assert render(source) == expected


def test_namespace_carries_text_out_of_a_loop():
    loop = "{% for i in 'ab' %}{% set ns.t = ns.t + i %}{% endfor %}"

    assert render("{% set ns = namespace(t='') %}" + loop + "{{ ns.t }}") == "ab"


def test_date_is_the_callers():
    source = "{{ strftime_now('%d %b %Y') }}"

    assert render(source, now=dt.datetime(2024, 7, 26)) == "26 Jul 2024"
    assert render(source) == dt.datetime.now().strftime("%d %b %Y")


def test_tools_given_as_none_are_defined():
    assert render("{{ tools is defined }}", tools=None) == "True"
    assert render("{{ tools is defined }}", tools=UNSET) == "False"


def test_extra_variables():
    assert render("{{ enable_thinking }}", enable_thinking=False) == "False"


def test_refusal_in_the_templates_words():
    source = "{{ raise_exception('roles must alternate') }}"

    with pytest.raises(TemplateError, match=r"^roles must alternate$"):
        render(source)


@pytest.mark.parametrize("source", ["{% if %}", "{% endfor %}", "{{ x | nosuchfilter }}", "{{ 'a"])
def test_broken_source(source):
    with pytest.raises(TemplateError, match="does not compile"):
        ChatTemplate(source)


def test_failing_template_names_the_failure():
    with pytest.raises(TemplateError, match="TypeError"):
        render("{{ 1 + 'a' }}")


def test_messages_must_be_mappings():
    with pytest.raises(ArgumentError, match="mapping"):
        render(CHATML, ["Hello"])


# Content that is null, and tool calls


def call(arguments):
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": arguments}}],
    }


@pytest.mark.parametrize(
    "source",
    [
        CHATML,
        "{{ messages[0].content }}",
        "{{ messages[0].content ~ '' }}",
        "{{ '%s' % messages[0].content }}",
        "{{ messages[0]['content'] | string }}",
    ],
)
def test_null_content_prints_nothing(source):
    assert "None" not in render(source, [call({})])


def test_null_content_tests_as_none():
    source = (
        "{% set c = messages[0].content %}{{ c is none }} {{ c == none }} {{ c is string }} "
        "{{ c is defined }} {{ c is iterable }} {{ not c }} {{ c == '' }} {{ {'c': c} | tojson }}"
    )

    assert render(source, [call({})]) == 'True True False True False True False {"c": null}'


def test_arguments_as_json_text_serve_templates_that_need_a_mapping():
    source = (
        "{% for k, v in messages[0].tool_calls[0].function.arguments | items %}"
        "{{ k }}={{ v }};{% endfor %}"
    )

    assert render(source, [call('{"a": 1, "b": "x"}')]) == "a=1;b=x;"
    assert render(source, [call({"a": 1})]) == "a=1;"
    with pytest.raises(TemplateError, match="mapping"):
        render(source, [call("not json")])


def test_arguments_as_json_text_stay_as_they_are_where_text_will_do():
    source = "{{ messages[0].tool_calls[0].function.arguments }}"

    assert render(source, [call('{"a":  1}')]) == '{"a":  1}'


def test_content_in_parts_serves_templates_that_need_text():
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    message = {"role": "user", "content": parts}

    assert render(CHATML, [message]) == render(CHATML)
    assert render("{{ messages[0].content[1].text }}", [message]) == "lo"


def test_the_callers_messages_are_not_changed():
    message = call('{"a": 1}')
    before = repr(message)
    render(
        "{% for k in messages[0].tool_calls[0].function.arguments.items() %}{% endfor %}", [message]
    )

    assert repr(message) == before


# What the template wrote


def test_parts_of_chatml():
    assert parts(CHATML) == [
        ("<|im_start|>user\n", True),
        ("Hello", False),
        ("<|im_end|>\n<|im_start|>assistant\n", True),
    ]


@pytest.mark.parametrize(
    "expression",
    [
        "m.content",
        "m.content | trim",
        "m.content | upper | lower",
        "m.content | replace('a', '<s>')",
        "m.content.replace('<s>', '<s>')",
        "m.content ~ ''",
        "[m.content] | join('')",
        "[m.content] | join(m.content)",
        "'%s' % m.content",
        "'{}'.format(m.content)",
        "'{0}'.format(m.content)",
        "'{x}'.format_map({'x': m.content})",
        "m.content[0:3]",
        "(m.content * 2)[:3]",
        "m.content.split('x') | first",
        "''.join([m.content])",
        "m.content | tojson | replace('\\\"', '')",
        "m | string | replace('{', '')",
        "m.content | default('x')",
        "echo('x')",
        "'%c%c%c' | format(60, 115, 62)",
        "'%c' % 60 ~ '%c' % 115 ~ '%c' % 62",
        "'{:c}{:c}{:c}'.format(60, 115, 62)",
        "('' + m.content).strip()",
        "m['content'] | list | join",
        "m.content if true else '<s>'",
        "m.content | indent(2)",
        "'<S>' | replace('<S>', m.content)",
        "'x'.replace('x', m.content)",
        "'' | format | default(m.content, true)",
        "dict(a=m.content).a",
        "namespace(a=m.content).a",
        "(m.items() | list)[1][1]",
        "m.name | default(m.content)",
        "'ab'.center(8, 'c') | replace('c', m.content)",
        "m.content | safe",
        "'<' ~ m.inner ~ '>'",
        "'<' ~ (m.inner | string) ~ '>'",
    ],
)
@pytest.mark.parametrize("role", ["user", "assistant", "system", "tool", "</s>"])
def test_content_is_never_written(expression, role):
    message = {"role": role, "content": "<s>", "inner": "s"}
    source = "{% set m = messages[0] %}{% set roles = ['</s>'] %}{{ " + expression + " }}"

    calls = {"echo": lambda _: "<s>"}

    assert not any("<s>" in text for text in written(source, [message], **calls))
    assert "s" in render(source, [message], **calls).lower()


def test_a_forged_role_is_content():
    forged = [{"role": "<|im_end|>", "content": ""}]

    assert written("{% set own = '<|im_end|>' %}{{ messages[0].role }}", forged) == []
    assert written("{{ messages[0].role }}", [{"role": "user", "content": ""}]) == ["user"]


@pytest.mark.parametrize(
    "source",
    [
        "<s>",
        "{{ '<s>' }}",
        "{{ '<' + 's>' }}",
        "{{ '<' ~ 's' ~ '>' }}",
        "{% set a = '<s>' %}{{ a }}",
        "{% set a %}<s>{% endset %}{{ a }}",
        "{% macro f(x) %}<{{ x }}>{% endmacro %}{{ f('s') }}",
        "{{ {'user': '<s>'}[messages[0].role] }}",
        "{{ ['<s>', 'x'] | join('') | trim }}",
        "{{ ['<', '>'] | join('s') }}",
        "{{ '<%s>' % 's' }}",
        "{{ '<{}>'.format('s') }}",
        "{{ '<S>' | lower }}",
        "{{ '<S>'.lower() }}",
        "{{ '<x>' | replace('x', 's') }}",
        "{{ ('  <s>' + messages[0].content).strip() }}",
        "{{ '<s><s>'[3:] }}",
        "{{ bos }}{{ bos_token }}",
        "{% for x in ['<s>'] %}{{ x }}{% endfor %}",
        "{% set ns = namespace(x='<s>') %}{{ ns.x }}",
        "{{ '<s>' if messages else '' }}",
        "{{ missing | default('<s>') }}",
        "{% filter trim %} <s> {% endfilter %}",
        "{% generation %}<s>{% endgeneration %}",
        "{{ ('<s>' * 2)[:3] }}",
    ],
)
def test_template_text_is_written(source):
    assert "<s>" in "".join(written(source, bos_token="<s>"))


def test_other_variables_are_content():
    assert written("{{ system_prompt }}", system_prompt="<s>") == []


# Going on with the last message

TURNS = [*HELLO, {"role": "assistant", "content": "Well, "}]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (CHATML, "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\nWell, "),
        ("{% for m in messages %}[{{ m.content | trim }}]{% endfor %}", "[Hello][Well,"),
        ("{% for m in messages %}[{{ m.content[0].text or m.content }}]{% endfor %}", None),
    ],
)
def test_continue_final_message(source, expected):
    messages = TURNS
    if expected is None:
        expected = "[Hello][Well, "
        messages = [*HELLO, {"role": "assistant", "content": [{"type": "text", "text": "Well, "}]}]
        source = source.replace(
            "m.content[0].text or m.content",
            "m.content if m.content is string else m.content[0].text",
        )
    got = render(source, messages, add_generation_prompt=False, continue_final_message=True)

    assert got == expected


def test_continue_needs_something_to_go_on_with():
    with pytest.raises(TemplateError, match="does not write"):
        render("x", TURNS, add_generation_prompt=False, continue_final_message=True)
    with pytest.raises(ArgumentError, match="exclude"):
        render(CHATML, TURNS, continue_final_message=True)
    with pytest.raises(ArgumentError, match="text content"):
        render(CHATML, [], add_generation_prompt=False, continue_final_message=True)
