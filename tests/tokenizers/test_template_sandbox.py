"""Chat templates come from strangers: no way out of the sandbox, no end to wait for."""

import threading
import time

import pytest

from rml.errors import TemplateError
from rml.tokenizers import ChatTemplate

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
HELLO = [{"role": "user", "content": "Hello"}]


def render(source, messages=HELLO):
    return ChatTemplate(source).render(messages)


ESCAPES = [
    "{{ ''.__class__ }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ ''['__class__'] }}",
    "{{ '' | attr('__class__') }}",
    "{{ ''|attr('__cla' + 'ss__') }}",
    "{{ messages.__init__ }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update({'a': 1}) }}",
    "{{ messages.pop() }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ joiner.__init__.__globals__ }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ self.__init__.__globals__ }}",
    "{{ self._TemplateReference__context }}",
    "{{ raise_exception.__globals__ }}",
    "{{ strftime_now.__globals__ }}",
    "{{ strftime_now.__closure__ }}",
    "{{ range.__class__ }}",
    "{{ dict.mro() }}",
    "{{ dict.__subclasses__() }}",
    "{{ '{0.__class__}'.format('') }}",
    "{{ '{x.__class__}'.format_map({'x': ''}) }}",
    "{{ '{0[__class__]}'.format('') }}",
    "{{ ''.upper.__self__ }}",
    "{{ ''.format.__globals__ }}",
    "{{ (['{0.__class__}'] | map('format', '') | list) + [''.__class__] }}",
    "{{ ['{0.__class__}'.format] | map('__call__') | list }}{{ ''.__doc__ }}",
    "{% macro m() %}{% endmacro %}{{ m.__class__ }}",
    "{% macro m() %}{% endmacro %}{{ m._func }}",
    "{{ messages | map(attribute='__class__') | list }}",
    "{% for x in messages %}{{ loop.__class__ }}{% endfor %}",
    "{{ (messages | map('upper')).__reduce__ }}",
    "{% include '/etc/passwd' %}",
    "{% import '/etc/passwd' as x %}",
    "{% from '/etc/passwd' import x %}",
    "{% extends '/etc/passwd' %}",
    "{{ get_flashed_messages.__globals__ }}",
    "{{ config.items() }}",
    "{{ lipsum.__globals__ }}",
    "{{ url_for.__globals__ }}",
    "{{ written('x') }}",
    "{{ environment.limits }}{{ environment.x.y }}",
    "{{ guard.step() }}",
]


@pytest.mark.parametrize("source", ESCAPES)
def test_escapes_raise(source):
    with pytest.raises(TemplateError):
        render(source)


def growing(step, start="'a'", then=""):
    """A template that applies an expression to a value again and again."""
    return (
        "{% set ns = namespace(x=" + start + ", y=" + start + ") %}{% for i in range(99999) %}"
        "{% set ns.x = " + step + " %}{% endfor %}" + then
    )


def nested(then, start="[1]", pair="[ns.x, ns.x]", times=60):
    """A template that doubles a nested value by sharing, and then walks through it."""
    return (
        "{% set ns = namespace(x=" + start + ", y=" + start + ") %}"
        "{% for i in range(" + str(times) + ") %}{% set ns.x = " + pair + " %}"
        "{% set ns.y = " + pair.replace("ns.x", "ns.y") + " %}{% endfor %}" + then
    )


HUGE = "['a' * 999999] * 9999"
SLOW = [
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
    "{% for a in range(99999) recursive %}{{ loop(range(99999)) }}{% endfor %}",
    "{% for a in range(99999) if range(99999) | list | sum < 0 %}{% endfor %}",
    "{% for a in range(99999) %}{{ range(99999) | list | sort | last }}{% endfor %}",
    "{% for a in range(99999) %}{{ range(99999) | map('string') | list | length }}{% endfor %}",
    "{% block a %}{% for i in range(99999) %}{{ self.a() }}{% endfor %}{% endblock %}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    nested("{{ {ns.x: 1} }}", "(1,)", "(ns.x,)", 99999),
]
LARGE = [
    "{{ 'a' * 10000000000 }}",
    "{{ 10000000000 * 'a' }}",
    "{{ [0] * 10000000000 }}",
    "{{ messages * 10000000000 }}",
    "{% for a in range(99999) %}{{ 'abcdefghij' * 9999 }}{% endfor %}",
    growing("ns.x + ns.x"),
    growing("ns.x ~ ns.x"),
    growing("ns.x + ns.x", start="[1]"),
    growing("ns.x | replace('a', ns.x)", start="'aa'"),
    growing("ns.x.replace('a', ns.x)", start="'aa'"),
    growing("[ns.x, ns.x] | join(ns.x)"),
    growing("'{0}{0}'.format(ns.x)"),
    growing("'%s%s' % (ns.x, ns.x)"),
    growing("'%(a)s%(a)s' % {'a': ns.x}"),
    growing("'%s%s' | format(ns.x, ns.x)"),
    growing("m(ns.x)").replace("{% set", "{% macro m(x) %}{{ x }}{{ x }}{% endmacro %}{% set", 1),
    growing("ns.x + ['a' * 99999]", start="[]"),
    growing("[ns.x, range(99999) | list]", start="[]"),
    "{{ (" + HUGE + ") | string }}",
    "{{ (" + HUGE + ") | tojson }}",
    "{{ (" + HUGE + ") | join }}",
    "{{ (" + HUGE + ") | upper }}",
    "{{ ''.join(" + HUGE + ") }}",
    "{{ " + HUGE + " }}",
    "{{ (" + HUGE + ") ~ '' }}",
    "{{ '%s' % [" + HUGE + "] }}",
    "{{ '{}'.format(" + HUGE + ") }}",
]
WIDE = [
    "{{ 'a' | center(10000000000) }}",
    "{{ 'a'.center(10000000000) }}",
    "{{ 'a'.ljust(10000000000) }}",
    "{{ 'a'.zfill(10000000000) }}",
    "{{ '\t'.expandtabs(10000000000) }}",
    "{{ 'a'.encode().center(10000000000) }}",
    "{{ '%10000000000d' % 1 }}",
    "{{ '%.10000000000f' % 1.0 }}",
    "{{ '%*d' % (10000000000, 1) }}",
    "{{ '%10000000000d' | format(1) }}",
    "{{ '{:10000000000}'.format(1) }}",
    "{{ '{:{}}'.format(1, 10000000000) }}",
    "{{ 'a\nb' | indent(10000000000) }}",
    "{{ ('a\n' * 99999) | indent('a' * 99999) }}",
    "{{ ('a\n' * 99999) | indent(9999) }}",
    "{{ [1] | batch(10000000000, 0) | list }}",
    "{{ [1] | slice(10000000000) | list }}",
    "{{ {'a': 1} | tojson(indent=10000000000) }}",
    "{{ ('a' * 9999) | wordwrap(1, true, 'a' * 9999) }}",
    "{{ ('http://a.bc ' * 9999) | urlize(rel='a' * 99999) }}",
    "{{ 'a'.translate({97: 'a' * 9999999}) * 99 }}",
    "{{ (1).to_bytes(10000000000, 'big') }}",
    "{{ 10 ** 10000000000 }}",
    "{{ 9 ** (9 ** 9) }}",
    growing("ns.x * ns.x", start="3"),
    "{{ range(10000000000) | list }}",
    "{{ ('9' * 9999999) | int }}",
]
NESTED = [
    nested("{{ ns.x }}"),
    nested("{{ ns.x | tojson }}"),
    nested("{{ ns.x == ns.y }}"),
    nested("{{ ns.x is eq(ns.y) }}"),
    nested("{{ [ns.x].index(ns.y) }}"),
    nested("{{ [ns.x, ns.y] | sort }}"),
    nested("{{ ns.x in [ns.y] }}"),
    nested("{{ {ns.x: 1} }}", "(1,)", "(ns.x, ns.x)"),
    nested("{{ messages[0][ns.x] }}", "(1,)", "(ns.x, ns.x)"),
    nested("{{ messages[0].get(ns.x) }}", "(1,)", "(ns.x, ns.x)"),
    nested("{{ [ns.x] | unique | list }}", "(1,)", "(ns.x, ns.x)"),
    nested("{{ dict([(ns.x, 1)]) }}", "(1,)", "(ns.x, ns.x)"),
    nested("{{ ns.x }}", "1", "namespace(a=ns.x, b=ns.x)"),
    nested("{{ ns.x }}", "1", "{'a': ns.x, 'b': ns.x}"),
    nested("{{ raise_exception(ns.x) }}"),
    nested("{% set ns.unsafe_callable = true %}{{ ns() }}"),
    nested("{{ ns.x }}", "{}", "{'a': ns.x, 'b': ns.x}.values()"),
]


@pytest.mark.parametrize("source", [*SLOW, *LARGE, *WIDE, *NESTED])
def test_bombs_are_stopped(source):
    template = ChatTemplate(source)
    began = time.thread_time()

    with pytest.raises(TemplateError):
        template.render(HELLO)

    assert time.thread_time() - began < 20


def test_limits_hold_in_any_thread():
    caught = []

    def work():
        try:
            render(SLOW[0])
        except TemplateError as error:
            caught.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

    assert len(caught) == 1
    assert "time" in caught[0]


def test_a_long_chat_is_far_from_the_limits():
    messages = [
        {"role": "user" if n % 2 == 0 else "assistant", "content": "word " * 200}
        for n in range(1000)
    ]

    assert len(render(CHATML, messages)) > 1_000_000


@pytest.mark.parametrize(
    "source", ["(" * 99999, "{{ " + "(" * 99999, "{% if x %}" * 999, "{{ [" * 9999]
)
def test_deep_source(source):
    with pytest.raises(TemplateError):
        ChatTemplate(source + "{{")


def test_huge_source():
    with pytest.raises(TemplateError, match="at most"):
        ChatTemplate("a" * 2_000_000)
