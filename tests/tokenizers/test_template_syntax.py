"""What Jinja's parser and compiler would take long for is refused before they begin."""

import sys
import time

import pytest

from rml.errors import TemplateError
from rml.tokenizers import ChatTemplate


def variables(count):
    return "".join(f"{{% set a{i} = 1 %}}" for i in range(count))


BRANCH = "{% if x %}{% endif %}"

HUGE = {
    "variables": variables(12_000),
    "variables and branches": variables(4000) + BRANCH * 7000,
    "branches times variables": variables(900) + BRANCH * 400,
    "branches": "{% if x %}{{ 1 }}{% endif %}" * 9000,
    "elif": "{% if x %}" + "{% elif x %}" * 9000 + "{% endif %}",
    "macros": "".join(f"{{% macro m{i}(a, b) %}}{{{{ a }}}}{{% endmacro %}}" for i in range(4000)),
    "blocks": "".join(f"{{% block b{i} %}}{{% endblock %}}" for i in range(6000)),
    "loops": "{% for a in x %}{{ a }}{% endfor %}" * 5000,
    "outputs": "{{ x }}" * 20_000,
    "a list": "{{ [" + "1," * 20_000 + "] }}",
    "a mapping": "{{ {" + "'a':1," * 20_000 + "} }}",
    "a sum": "{{ 1" + "+1" * 20_000 + " }}",
    "a chain of concatenations": "{{ 'a'" + "~'a'" * 20_000 + " }}",
    "a chain of comparisons": "{{ 1" + "<1" * 20_000 + " }}",
    "a chain of attributes": "{{ a" + ".a" * 20_000 + " }}",
    "a chain of calls": "{{ a" + "()" * 20_000 + " }}",
    "a chain of filters": "{{ a" + "|e" * 20_000 + " }}",
    "a chain of tests": "{{ a" + " is true" * 20_000 + " }}",
    "or": "{{ a" + " or a" * 20_000 + " }}",
    "not": "{{ " + "not " * 20_000 + "a }}",
    "minus": "{{ " + "-" * 20_000 + "1 }}",
    "powers": "{{ 2" + "**2" * 20_000 + " }}",
    "if else": "{{ 1" + " if 1 else 1" * 12_000 + " }}",
    "nested blocks": "{% if x %}" * 9000,
    "nested loops": "{% for a in x %}" * 150 + "{% endfor %}" * 150,
    "nested macros": "{% macro a() %}" * 95 + "{% endmacro %}" * 95,
    "nested parentheses": "{{ " + "(" * 95 + "1" + ")" * 95 + " }}",
    "nested lists": "{{ " + "[" * 95 + "]" * 95 + " }}",
    "nested mappings": "{{ " + "{1:" * 95 + "1" + "}" * 95 + " }}",
    "nested calls": "{{ " + "a(" * 95 + ")" * 95 + " }}",
    "nested subscripts": "{{ " + "a[" * 95 + "1" + "]" * 95 + " }}",
    "parameters": "{% macro m(" + "a," * 20_000 + "b) %}{% endmacro %}",
    "arguments": "{{ f(" + "1," * 20_000 + "1) }}",
    "nested targets": "{% set " + "(" * 95 + "a" + ")" * 95 + " = 1 %}",
    "filter blocks": "{% filter e %}" * 95 + "{% endfilter %}" * 95,
    "adjacent strings": "{{ 'a' " + "'a' " * 50_000 + " }}",
}


@pytest.mark.parametrize("source", HUGE.values(), ids=HUGE)
def test_huge_and_deep_sources(source):
    began = time.thread_time()

    with pytest.raises(TemplateError):
        ChatTemplate(source)

    assert time.thread_time() - began < 10


def test_a_host_with_a_high_recursion_limit():
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1_000_000)
    try:
        for name in ("not", "minus", "powers", "nested blocks", "if else", "a chain of calls"):
            with pytest.raises(TemplateError):
                ChatTemplate(HUGE[name])
    finally:
        sys.setrecursionlimit(before)


LARGEST = {
    "variables": variables(2600),
    "variables and branches": variables(300) + BRANCH * 300,
    "branches": BRANCH * 3900,
    "macros": "".join(f"{{% macro m{i % 99}() %}}{{% endmacro %}}" for i in range(900)),
    "outputs": "{{ x }}" * 3900,
    "strings": "{{ 'a' " + "'a' " * 39_000 + " }}",
}


@pytest.mark.parametrize("source", LARGEST.values(), ids=LARGEST)
def test_the_largest_sources_compile_in_time(source):
    began = time.thread_time()

    ChatTemplate(source)

    assert time.thread_time() - began < 20
