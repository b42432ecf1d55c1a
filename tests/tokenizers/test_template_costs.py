"""What a call of a template would cost is known before it is made, and its caller's own stays."""

import collections
import pickle
import subprocess
import sys

import pytest

from rml.errors import ArgumentError, TemplateError
from rml.tokenizers import ChatTemplate

HELLO = [{"role": "user", "content": "hi"}]
BIG = "('a' * 8000000)"
EQUAL = "('a' * 99999) ~ 'b'"
NUMBERS = "(range(99999) | list)"


def again(step, start="'a'"):
    return (
        f"{{% set ns = namespace(x={start}, y={start}, k=[]) %}}{{% for i in range(99999) %}}"
        f"{step}{{% endfor %}}"
    )


def render(source, messages=HELLO, **variables):
    return ChatTemplate(source).render(messages, **variables)


SEARCHES = [
    *(f"{{{{ ('a' * 80000).{name}('ab' + 'a' * 40000) }}}}" for name in ("rfind", "rindex")),
    *(f"{{{{ ('a' * 80000).{name}('ab' + 'a' * 40000) }}}}" for name in ("rsplit", "rpartition")),
    *(f"{{{{ {BIG}.{name}('b' * 100000 + 'a') }}}}" for name in ("strip", "lstrip", "rstrip")),
    f"{{{{ {BIG} | trim('b' * 100000 + 'a') }}}}",
    f"{{{{ [{EQUAL}] * 99999 == [{EQUAL}] * 99999 }}}}",
    f"{{{{ {EQUAL} in [{EQUAL}] * 99999 }}}}",
    f"{{{{ ([{EQUAL}] * 99999).index({EQUAL}) }}}}",
    f"{{{{ ([{EQUAL}] * 99999).count({EQUAL}) }}}}",
    f"{{{{ ([{EQUAL}] * 99999) is eq([{EQUAL}] * 99999) }}}}",
    f"{{{{ [[{EQUAL}] * 99999] == [[{EQUAL}] * 99999] != 1 }}}}",
    f"{{{{ ([{EQUAL}, {EQUAL}] * 9999) | sort }}}}",
    f"{{{{ ([{EQUAL}, {EQUAL}] * 9999) | max }}}}",
    f"{{{{ ([{{'x': {EQUAL}}}, {{'x': {EQUAL}}}] * 9999) | sort(attribute='x') }}}}",
    f"{{{{ ([{{'x': {EQUAL}}}, {{'x': {EQUAL}}}] * 9999) | groupby('x') }}}}",
    "{{ range(0, (2**61 - 1) * 99999, 2**61 - 1) | unique | list }}",
    f"{{{{ {BIG} | wordwrap(1) }}}}",
    "{{ ('<!---->' * 1000000) | striptags }}",
    f"{{{{ {BIG} | urlize }}}}",
    "{{ [[1] * 1000] * 1000 < [[1] * 1000] * 1000 }}",
]
MEMORY = [
    "{{ ('a,' * 8000000).split(',') | length }}",
    "{{ ('a ' * 8000000).split() | length }}",
    "{{ ('a ' * 8000000).split(' ', maxsplit=7000000) | length }}",
    "{{ ('a\n' * 8000000).splitlines() | length }}",
    *(f"{{{{ {BIG} | {name} | list | length }}}}" for name in ("list", "unique", "batch(1)")),
    f"{{{{ {BIG} | map('upper') | list | length }}}}",
    "{{ ('a ' * 4000000) | title | length }}",
    "{{ ('a ' * 4000000) | wordcount }}",
    f"{{% macro f() %}}{{{{ varargs | length }}}}{{% endmacro %}}{{{{ f(*{BIG}) }}}}",
    "{{ (['x', messages[0].content] * 2000000) | join }}",
    "{{ ('x' ~ messages[0].content) * 4000000 }}",
    "{{ (['\\x00' * 20000000]) | tojson | length }}",
    "{{ (['\\x00' * 8000000]) | string | length }}",
    "{{ '%r' % ('\\x00' * 20000000) }}",
    "{{ '{0!r}'.format('\\x00' * 8000000) | length }}",
    f"{{{{ '%(a)s%(a)s%(a)s%(a)s%(a)s%(a)s%(a)s%(a)s%(a)s' % {{'a': {BIG}}} }}}}",
    "{{ ('{0}' * 9000).format('a' * 999999) | length }}",
    "{{ '\t'.expandtabs(tabsize=1000000000) }}",
    "{{ ('\"' * 20000000) | e | length }}",
    "{{ ('\"' * 20000000) + ('a' | safe) }}",
    "{{ ('a' | safe).join(['\"' * 4000000] * 4) | length }}",
    f"{{{{ {{'a': {BIG}}} | urlencode | length }}}}",
    again("{% set ns.k = ns.k + [{}, {}, {}, {}, {}, {}, {}, {}] %}"),
    again("{% set ns.k = [ns.k, {}, {}, [], [], [], 'a'.upper, 'b'.upper, 'c'.upper] %}"),
    again("{% set ns.x = ns.x ~ 'a' * 100000 %}{% set ns.k = [ns.k, ns.x] %}"),
    again("{% set ns.x = (ns.x ~ 'a' * 100000)[1:] %}{% set ns.k = [ns.k, ns.x] %}"),
    again("{% set ns.x = '\U0001f600' * 100000 %}{% set ns.k = [ns.k, ns.x] %}"),
    again("{% set ns.k = [ns.k, range(99999) | list] %}"),
    again("{% set ns.k = [ns.k, range(9999) | map('string') | list] %}"),
]
TIME = [
    "{% for a in 'a' * 60000000 if a == 'b' %}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) if false %}{% endfor %}{% endfor %}",
    *(
        again("{{ ns.x" + step + " }}", NUMBERS)
        for step in (
            " | sort | length", " | unique | list | length", " | join | length", " | sum", " | max",
            " == ns.y", " in [ns.y]", ".index(99998)", ".count(1)", "[::-1] | length",
        )
    ),
    *(
        again("{{ ns.x" + step + " }}", "'a' * 9000000")
        for step in (".find('b')", ".isalpha()", ".startswith(ns.y)", ".count('a')", " is lower")
    ),
    again("{{ ns.x[1:] | length }}", "('x' ~ messages[0].content) * 20000"),
    again("{{ ns.x.strip('q') | length }}", "('x' ~ messages[0].content) * 20000"),
    again("{{ loop.changed(ns.x) }}", NUMBERS),
]  # fmt: skip
DATES = [
    "{{ strftime_now('%1000000000Y') }}",
    "{{ strftime_now('%01000000000Y') }}",
    "{{ strftime_now('%_9999999999d') }}",
    "{{ strftime_now('%Y' * 1000000) }}",
]
REACHES = [
    *(f"{{{{ messages.{name} }}}}" for name in ("sort()", "reverse()", "extend([1])", "pop()")),
    *(f"{{{{ messages[0].{name} }}}}" for name in ("clear()", "popitem()", "setdefault('a', 1)")),
    "{{ messages[0]['pop']('role') }}",
    "{{ '{0.pop}'.format(messages) }}",
    "{{ dict.update(messages[0], {'role': 'x'}) }}",
    "{{ dict.clear(messages[0]) }}",
    "{{ dict.fromkeys([1]) }}",
    "{{ {}.fromkeys(range(99999), 1) }}",
    "{{ dict['x'] }}",
    "{{ ''.maketrans('a', 'b') }}",
    "{{ 'a'.encode('zip') }}",
    "{{ 'a'.translate({97: 'b'}) }}",
    "{{ (1).bit_length() }}",
    "{{ (1.5).hex() }}",
    "{{ range(5).index(3) }}",
    "{{ messages.count.__self__ }}",
    "{{ ''.join.__call__ }}",
    "{{ nope.__class__ }}",
    "{{ '{a.__class__}'.format(a=nope) }}",
    "{{ 'x' | attr('upper') }}",
    "{{ messages | map('attr', 'pop') | list }}",
    "{{ messages | selectattr('pop') | list }}",
    "{{ messages | sort(attribute='update') }}",
    "{{ ('a' | safe).striptags() }}",
    "{{ ('&amp;' | safe).unescape() }}",
    "{{ messages[0].get.__call__('role') }}",
    "{{ [].copy.__name__ }}",
]
DEEP = [
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    (
        "{% macro m(n) %}{{ caller(n) }}{% endmacro %}"
        "{% macro q(n) %}{% call(x) m(n) %}{{ q(x) }}{% endcall %}{% endmacro %}{{ q(1) }}"
    ),
    "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "{% block a %}{{ self.a() }}{% endblock %}",
]


@pytest.mark.parametrize("source", [*SEARCHES, *MEMORY, *TIME, *DATES, *REACHES, *DEEP])
def test_it_ends_with_an_error(source):
    with pytest.raises(TemplateError):
        render(source)


def test_recursion_ends_where_the_host_allows_more():
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1_000_000)
    try:
        for source in DEEP:
            with pytest.raises(TemplateError, match="levels deep"):
                render(source)
    finally:
        sys.setrecursionlimit(before)


CHAINS = {
    "iterators": "ns.x | map('string')",
    "methods": "[ns.x].index",
    "mappings": "{'a': ns.x}.get",
    "cyclers": "cycler(ns.x).next",
    "namespaces": "namespace(a=ns.x)",
    "lists": "[ns.x]",
    "views": "{1: ns.x}.items()",
    "reversed": "[ns.x] | reverse",
    "undefined": "(ns.x,).foo",
}


def test_long_chains_of_objects_die_in_peace():
    """Objects that hold each other can exhaust the stack when they die, which ends the process."""
    code = (
        "import sys; from rml.tokenizers import ChatTemplate\n"
        "for step in sys.argv[1:]:\n"
        "    print(ChatTemplate('{% set ns = namespace(x=[1]) %}{% for i in range(30000) %}'\n"
        "        '{% set ns.x = ' + step + ' %}{% endfor %}ok').render([]))"
    )

    done = subprocess.run(
        [sys.executable, "-c", code, *CHAINS.values()], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout.split()) == (0, ["ok"] * len(CHAINS)), done.stderr


# ---- what is right stays right ----

RIGHT = {
    "{{ 'a.b.c'.rsplit('.', 1) | join('-') }}": "a.b-c",
    "{{ [3, 1, 2] | sort | join }}{{ 'b' in 'abc' }}{{ 1 < 2 < 3 > 0 }}": "123TrueTrue",
    "{{ 2 in [1, 2] }}{{ [1] in [[1]] }}{{ 'x' not in {'x': 1} }}": "TrueTrueFalse",
    "{{ '%-5s|%03d' % ('a', 7) }}{{ '{:>4}{!r}'.format('a', 'b') }}": "a    |007   a'b'",
    "{{ '%s' | format('a') }}{{ '%(x)s' % {'x': [1]} }}": "a[1]",
    "{% for a in 'abc' if a != 'b' %}{{ a }}{{ loop.index }}{% endfor %}": "a1c2",
    "{% macro f() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(*[1], **{'a': 2}) }}": (
        "(1,){'a': 2}"
    ),
    "{{ messages | map(attribute='role') | list }}": "['user']",
    "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}": "1",
    "{% set c = cycler(1, 2) %}{{ c.next() }}{{ c.next() }}{{ c.current }}": "121",
    "{% set j = joiner('-') %}{{ j() }}{{ j() }}": "-",
    "{% for k, v in dict(a=1).items() %}{{ k }}{{ v }}{% endfor %}": "a1",
    "{% for x in [1, 1] %}{{ loop.changed(x) }}{{ loop.cycle(3, 4) }}{% endfor %}": "True3False4",
    "{{ strftime_now('%-d %%5') | length > 2 }}": "True",
    "{{ {'a': {'b': 1}}['a'].b }}{{ {}.nope is defined }}{{ ''['upper']() }}": "1False",
    "{{ range(0, 2**52, 2**40) | unique | list | length }}": "4096",
    "{% if [1] | select('odd') %}{{ [1, 2] | select('odd') | first }}{% endif %}": "1",
}


@pytest.mark.parametrize("source", RIGHT)
def test_right_output(source):
    assert render(source) == RIGHT[source]


def test_looking_up_does_not_change_the_callers_own():
    tool = collections.defaultdict(list, type="function")
    messages = [collections.defaultdict(dict, role="user", content="hi")]

    source = "{{ tools[0]['nope'] }}{{ messages[0]['gone'] }}{{ extra['x'] }}{{ tools[0].type }}"
    assert render(source, messages, tools=[tool], extra=tool) == "function"
    assert (dict(tool), dict(messages[0])) == (
        {"type": "function"},
        {"role": "user", "content": "hi"},
    )


def test_values_nested_in_themselves():
    value = [1]
    value.append(value)

    with pytest.raises(ArgumentError, match="levels, or holds itself"):
        render("{{ 1 }}", documents=value)


def test_functions_of_the_caller_may_be_called():
    assert render("{{ twice(2) }}", twice=lambda x: 2 * x) == "4"


def test_effort_raises_the_limits():
    source = again("{% set ns.k = [ns.k, 'a' * 9000000] %}").replace("99999", "9") + "ok"
    with pytest.raises(TemplateError, match=r"64 MB.*effort=2\)"):
        render(source)
    template = pickle.loads(pickle.dumps(ChatTemplate(source, effort=4)))
    assert template.effort == 4
    assert template.render(HELLO) == "ok"
    for wrong in (0, -1, float("nan"), float("inf"), "2", True, None):
        with pytest.raises(ArgumentError, match="effort"):
            ChatTemplate("{{ 1 }}", effort=wrong)


@pytest.mark.parametrize("name", ["google-gemma-4-31B-it", "Reka-Edge", "Kimi-K3"])
def test_templates_with_a_long_way_to_go_render_long_histories(cases_dir, name):
    file = cases_dir / "chat" / "all_templates" / f"{name}.jinja"
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": f"word {i}"} for i in range(1999)]

    # The machine may be busy; on an idle one the usual limits are enough.
    assert "word 1998" in ChatTemplate.from_file(file, effort=10).render(messages, bos_token="")
