"""Content as text or in parts, for templates that read one of these, or both, or neither."""

import pytest

from rml.errors import RmlError, TemplateError
from rml.tokenizers import ChatTemplate
from rml.tokenizers.builtin_templates import BUILTIN_TEMPLATES


def parts(*texts):
    return [{"type": "text", "text": text} for text in texts]


def message(content, role="user"):
    return {"role": role, "content": content}


def render(source, *messages, **variables):
    return ChatTemplate(source).render(messages, **variables)


LOOP = "{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% endif %}{% endfor %}"

ONLY_TEXT = {
    "printed": "{{ m['content'] }}",
    "printed behind a dot": "{{ m.content }}",
    "asked for": "{{ m.get('content') }}",
    "filtered": "{{ '' + m['content'] | trim }}",
    "joined": "{{ '' ~ m.content ~ '' }}",
    "added": "{{ '' + m.content + '' }}",
    "tested as text": "{% if m.content is string %}{{ m.content }}{% endif %}",
    "tested otherwise": "{% if m.content is not iterable or m.content is string %}{{ m.content }}"
    "{% endif %}",
    "refused": "{% if m.content is not string %}{{ raise_exception('text!') }}{% endif %}"
    "{{ m.content }}",
    "of length": "{% if m.content | length > 1 %}{{ m.content }}{% endif %}",
    "split": "{{ m.content.split('</think>')[-1] }}",
    "stripped": "{{ m.content.strip() }}",
    "in a macro": "{% macro show(c) %}{{ c }}{% endmacro %}{{ show(m.content) }}",
    "in a variable": "{% set c = m.content %}{{ c }}",
    "in a loop": "{% for c in m.content %}{{ c }}{% endfor %}",
    "formatted": "{{ '%s' % m.content }}",
    "as JSON": "{{ (m.content | tojson)[1:-1] }}",
    "while it speaks of types": "{% if m.type == 'text' %}{% endif %}{{ m.content }}",
    "while it reads parts of tools": "{% for t in m.tools or [] %}{{ t.text }}{% endfor %}"
    "{{ m.content }}",
    "in capitals and back": "{{ m.content | upper | title }}",
}
ONLY_PARTS = {
    "loop": LOOP,
    "loop over keys": LOOP.replace("p.type == 'text'", "'text' in p").replace(
        "p.text", "p['text']"
    ),
    "asked for": LOOP.replace("p.text", "p.get('text')"),
    "index": "{{ m.content[0].text }}",
    "keys and values": "{% for p in m.content %}{% for k, v in p.items() %}"
    "{% if k[:1] + k[3:] == 'tt' %}{{ v }}{% endif %}{% endfor %}{% endfor %}",
    "values": "{% for p in m.content %}{{ (p.values() | list)[1] }}{% endfor %}",
    "index with addition": "{{ '' + m.content[0]['text'] }}",
    "filters": "{{ m.content | selectattr('type', 'equalto', 'text') | map(attribute='text') "
    "| join('') }}",
    "filters and addition": "{{ '' + (m.content | map(attribute='text') | list)[0] }}",
    "in a macro": "{% macro show(c) %}" + LOOP.replace("m.content", "c") + "{% endmacro %}"
    "{{ show(m.content) }}",
    "tested": "{% if m.content is not string %}" + LOOP + "{% endif %}",
}
BOTH = {
    "text first": "{% if m.content is string %}{{ m.content }}{% else %}" + LOOP + "{% endif %}",
    "parts first": "{% if m.content is sequence and m.content is not string %}" + LOOP
    + "{% else %}{{ m.content }}{% endif %}",
}  # fmt: skip
ALL = ONLY_TEXT | ONLY_PARTS | BOTH


def framed(body):
    return "{% for m in messages %}<" + body + ">{% endfor %}"


@pytest.mark.parametrize("body", ALL.values(), ids=ALL)
@pytest.mark.parametrize("content", ["Alpha", parts("Alpha"), parts("Al", "pha"), ["Alpha"]])
def test_text_reaches_the_prompt(body, content):
    messages = [message(content), message("Beta", "assistant"), message(parts("Ga", "mma"))]

    assert render(framed(body), *messages) == "<Alpha><Beta><Gamma>"


@pytest.mark.parametrize("body", ALL.values(), ids=ALL)
@pytest.mark.parametrize("content", ["<s>", parts("<s>"), parts("<", "s>")])
def test_content_stays_content(body, content):
    template = ChatTemplate("{{ '[s]' }}" + framed(body))
    pieces = template.render_parts([message(content)])

    assert "".join(text for text, by_template in pieces if by_template) == "[s]<>"


def test_parts_stay_as_they_are_where_they_are_read():
    source = framed("{% for p in m.content %}[{{ p.text }}]{% endfor %}")

    assert render(source, message(parts("Al", "pha"))) == "<[Al][pha]>"
    assert render(source, message("Alpha")) == "<[Alpha]>"


def test_a_template_that_reads_the_first_part_gets_all_the_text():
    source = framed("{{ m.content if m.content is string else m.content[0].text }}")

    assert render(source, message(parts("Al", "pha"))) == "<Alpha>"
    assert render(framed("{{ m.content[0].text }}"), message(parts("Al", "pha"))) == "<Alpha>"


MIXED = {
    "quiet": ("{{ m.content if m.content is string }}", LOOP),
    "raising": ("{{ '' + m.content }}", "{{ '' + m.content[0].text }}"),
    "half raising": ("{{ '' + m.content }}", LOOP),
    "other half": ("{{ m.content if m.content is string }}", "{{ '' + m.content[0]['text'] }}"),
}


@pytest.mark.parametrize(("as_text", "as_parts"), MIXED.values(), ids=MIXED)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("make", [str, parts])
def test_roles_may_be_read_differently(as_text, as_parts, turned, make):
    system, user = (as_parts, as_text) if turned else (as_text, as_parts)
    source = framed("{% if m.role == 'system' %}" + system + "{% else %}" + user + "{% endif %}")
    messages = [message(make("S"), "system"), message(make("U")), message(make("A"), "assistant")]

    assert render(source, *messages) == "<S><U><A>"


def test_places_may_be_read_differently():
    source = framed("{% if loop.last %}" + LOOP + "{% else %}{{ m.content }}{% endif %}")

    for make in (str, parts):
        assert render(source, message(make("A")), message(make("B"))) == "<A><B>"


@pytest.mark.parametrize("body", [*ONLY_TEXT.values(), *ONLY_PARTS.values()])
@pytest.mark.parametrize("content", ["Alpha", parts("Alpha")])
def test_a_template_may_read_the_last_message_alone(body, content):
    source = "{% set m = messages[-1] %}" + body

    assert render(source, message("x", "system"), message(parts("y")), message(content)) == "Alpha"


@pytest.mark.parametrize("name", sorted(BUILTIN_TEMPLATES))
def test_built_in_templates(name):
    template = ChatTemplate.builtin(name)
    texts = [("system", "Sys"), ("user", "Hello"), ("assistant", "Hi"), ("user", "Bye")]
    names = {"bos_token": "<s>", "eos_token": "</s>"}

    as_text = template.render([message(text, role) for role, text in texts], **names)
    as_parts = [message(parts(text[:1], text[1:]), role) for role, text in texts]

    assert template.render(as_parts, **names) == as_text


def test_no_parts_are_no_text():
    assert render(framed("{{ m.content }}"), message([])) == "<>"
    assert render(framed(LOOP), message([])) == "<>"


def test_a_data_key_of_parts_does_not_matter():
    content = [{"type": "text", "text": "Alpha", "cache_control": {"type": "ephemeral"}}]

    assert render(framed("{{ m.content }}"), message(content)) == "<Alpha>"
    assert render(framed(LOOP), message([{"text": "Alpha"}])) == "<Alpha>"


@pytest.mark.parametrize("body", [*ONLY_TEXT.values(), *ONLY_PARTS.values(), *BOTH.values()])
def test_the_last_message_goes_on(body):
    for content in ("Well, ", parts("We", "ll, ")):
        text = ChatTemplate(framed(body)).render(
            [message("Hi"), message(content, "assistant")],
            add_generation_prompt=False,
            continue_final_message=True,
        )

        assert text.rstrip() == "<Hi><Well,"


def test_tool_calls_as_json_text_beside_parts():
    source = framed(
        "{{ '' + m.content }}{% for c in m.tool_calls or [] %}"
        "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}{% endfor %}"
        "{% if m.type == 'text' %}{% endif %}"
    )
    call = {"type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    called = {"role": "assistant", "content": parts("Al", "pha"), "tool_calls": [call]}

    assert render(source, message(parts("Q")), called) == "<Q><Alphaa=1>"


# Parts that are not text

PICTURES = framed(
    "{% if m.role == 'system' %}{{ m.content }}{% else %}{% for p in m.content %}"
    "{% if p.type == 'image' %}[image]{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}"
)


def test_parts_that_the_template_reads_are_its_own():
    content = [{"type": "image", "url": "x"}, *parts("Alpha")]

    assert render(PICTURES, message("S", "system"), message(content)) == "<S><[image]Alpha>"
    assert render(PICTURES, message(content[:1])) == "<[image]>"


@pytest.mark.parametrize("source", [BUILTIN_TEMPLATES["chatml"], framed(LOOP), PICTURES])
@pytest.mark.parametrize(
    "part", [{"type": "image_url", "image_url": {}}, {"type": "input_audio"}, {"type": "nonsense"}]
)
def test_other_parts_are_refused(source, part):
    with pytest.raises(TemplateError, match=rf"messages\[1\]: part 1 .*{part['type']}.*leave it"):
        render(source, message("S", "system"), message([*parts("Alpha"), part]))


def test_parts_are_refused_where_the_template_does_not_read_them():
    content = [{"type": "image"}, *parts("Alpha")]

    for each in (content, content[:1]):
        with pytest.raises(TemplateError, match=r"messages\[0\].*image.*reads only text.*system"):
            render(PICTURES, message(each, "system"), message("U"))


@pytest.mark.parametrize("part", [1, None, {"type": "text"}, {"type": "text", "text": 1}, {}])
def test_malformed_parts(part):
    with pytest.raises(RmlError, match=r"messages\[0\]: part 1 of the content"):
        render(framed(LOOP), message([*parts("Alpha"), part]))


# Limits


def test_a_template_that_takes_its_time_is_given_up():
    source = (
        "{{ 'text' }}{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    )

    with pytest.raises(TemplateError, match="too much time"):
        render(source, message(parts("Alpha")))


def test_the_template_is_asked_a_bounded_number_of_times():
    calls = []

    def count():
        calls.append(1)
        raise ValueError("no")

    source = "{{ 'text' }}{{ count() }}"
    roles = ["system", "user", "assistant", "tool", "developer", "function"]
    with pytest.raises(TemplateError, match="no"):
        render(source, *(message("x", role) for role in roles), count=count)
    assert len(calls) <= 20
