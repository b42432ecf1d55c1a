"""How inputs are made: sound ones are changed, in a way that a number alone decides."""

import json
import struct
from random import Random
from typing import Any

__all__ = ["changed_bytes", "changed_json", "changed_template", "nasty_value"]

NUMBERS = [0, 1, -1, 2, 7, 127, 128, 255, 256, 65535, 65536]
NUMBERS += [2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1, 2**64]
NUMBERS += [-(2**31), -(2**63), 10**30]
TEXTS = ["", "a", "\0", "\ud800", "é" * 300, "{{", "{% for", "..", "../x", "/", "\\", "%s%n"]
TEXTS += ["a" * 5000, "(a+)+$", "[", "(?:a|aa)+$", "a{1000}{1000}", "\u202e", "NaN", "1e400"]


def nasty_value(rng: Random, depth: int = 0) -> Any:
    """Any value that JSON has, and such as nobody expects."""
    kind = rng.randrange(8 if depth < 3 else 6)
    if kind == 0:
        return rng.choice(NUMBERS)
    if kind == 1:
        return rng.choice(TEXTS)
    if kind == 2:
        return rng.choice([None, True, False])
    if kind == 3:
        return rng.choice([0.5, -0.0, 1e-320, 1e308, -1e308, 3.7])
    if kind == 4:
        return rng.randrange(-1000, 1000)
    if kind == 5:
        return rng.choice([[], {}])
    n = rng.choice([1, 2, 3, 50])
    if kind == 6:
        return [nasty_value(rng, depth + 1) for _ in range(n)]
    return {rng.choice(TEXTS) or str(i): nasty_value(rng, depth + 1) for i in range(n)}


def changed_bytes(rng: Random, data: bytes, most: int | None = None) -> bytes:
    """Change some bytes, numbers or pieces; of long data mostly in the first `most` bytes."""
    found = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 3, 8])):
        end = len(found) if most is None or rng.random() < 0.1 else min(most, len(found))
        at = rng.randrange(max(end, 1))
        kind = rng.randrange(9)
        if kind == 0:
            found[at : at + 1] = bytes([rng.randrange(256)])
        elif kind == 1 and at < len(found):
            found[at] ^= 1 << rng.randrange(8)
        elif kind in (2, 3, 4):
            size, code = rng.choice([(1, "B"), (2, "H"), (4, "I"), (8, "Q")])
            number = rng.choice(NUMBERS) % (1 << 8 * size)
            found[at : at + size] = struct.pack(f"<{code}", number)
        elif kind == 5:
            del found[at : at + rng.choice([1, 4, 8, 100])]
        elif kind == 6:
            other = rng.randrange(max(end, 1))
            found[at:at] = found[other : other + rng.choice([1, 4, 8, 24, 200])]
        elif kind == 7:
            del found[rng.choice([at, rng.randrange(len(found) + 1)]) :]
        else:
            found[at : at + 4] = rng.choice(TEXTS).encode("utf-8", "surrogatepass")[:64]
    return bytes(found)


def changed_json(rng: Random, data: bytes) -> bytes:
    """Change members of a document, or its bytes."""
    if rng.random() < 0.15:
        return changed_bytes(rng, data)
    document = json.loads(data)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        document = _changed_member(rng, document)
    text = json.dumps(document)
    if rng.random() < 0.1:  # keys twice
        text = text.replace('{"', '{"type": 5, "', rng.randrange(3))
    return text.encode("utf-8", "surrogatepass")


def _changed_member(rng: Random, node: Any) -> Any:
    if isinstance(node, dict) and node and rng.random() < 0.9:
        key = rng.choice(list(node))
        kind = rng.randrange(10)
        if kind == 0:
            return {k: v for k, v in node.items() if k != key}
        if kind == 1:
            return node | {rng.choice(TEXTS): nasty_value(rng)}
        if kind == 2:
            return node | {key: node[rng.choice(list(node))]}
        return node | {key: _changed_member(rng, node[key])}
    if isinstance(node, list) and node and rng.random() < 0.9:
        at = rng.randrange(len(node))
        kind = rng.randrange(10)
        if kind == 0:
            return node[:at] + node[at + 1 :]
        if kind == 1:
            return [*node[:at], nasty_value(rng), *node[at:]]
        if kind == 2:
            return node[:at] + node[at : at + 3] * rng.choice([2, 20]) + node[at:]
        return [*node[:at], _changed_member(rng, node[at]), *node[at + 1 :]]
    return nasty_value(rng)


def _words(text: str) -> list[str]:
    return text.split()


PIECES = _words("""
    messages message messages[0] messages[0].content tools loop.index loop namespace(a=[])
cycler('a','b') joiner(',') range(9999) range(3) 'a'*999999 'ab' [1,2] {'a':[1]} none true 1e300
2**99
strftime_now('%Y') raise_exception('x') dict list.append lipsum 0x7fffffffffffffff ns.a x self
''.join messages|length '%s'|format(1) -1""")
METHODS = _words("""
    append pop update clear setdefault sort items keys values get split replace rfind count join
format encode upper strip startswith title center zfill index insert extend copy __class__ __init__
next reset format_map mro real""")
FILTERS = _words("""
    length join(',') upper sort unique groupby('role') map(attribute='content') list tojson
batch(3) slice(4) replace('a','bb') indent(4) wordwrap(9) center(99) attr('x') selectattr('role')
sort(attribute='items') string trim reverse first last sum default('x') pprint format(1,2) safe int
float items dictsort round truncate(5) escape random xmlattr rejectattr('a','equalto',1)""")


def _expression(rng: Random, depth: int = 0) -> str:
    if depth > 3:
        return rng.choice(PIECES)
    kind = rng.randrange(8)
    part = _expression(rng, depth + 1)
    if kind < 2:
        return rng.choice(PIECES)
    if kind == 2:
        return f"({part}).{rng.choice(METHODS)}({_expression(rng, depth + 1)})"
    if kind == 3:
        return f"({part})|{rng.choice(FILTERS)}"
    if kind == 4:
        other = _expression(rng, depth + 1)
        operator = rng.choice(_words("+ - * / // % ** ~ == < in and or"))
        return f"({part}) {operator} ({other})"
    if kind == 5:
        return f"({part})[{_expression(rng, depth + 1)}]"
    if kind == 6:
        return f"[{part}, {_expression(rng, depth + 1)}]"
    return f"({part}) if ({_expression(rng, depth + 1)}) else ({part})"


def changed_template(rng: Random, data: bytes) -> bytes:
    """Change a template, or make one of what templates are made of."""
    if rng.random() < 0.3:
        return changed_bytes(rng, data)
    text = data.decode() if rng.random() < 0.5 else ""
    for _ in range(rng.choice([1, 2, 4, 10])):
        kind, e = rng.randrange(6), _expression(rng)
        piece = (
            f"{{{{ {e} }}}}",
            f"{{% set ns = namespace(a={e}) %}}{{% set ns.a = [ns.a, ns.a] %}}",
            f"{{% for x in {e} %}}{{{{ {_expression(rng)} }}}}{{% endfor %}}",
            f"{{% if {e} %}}a{{% else %}}{{{{ {_expression(rng)} }}}}{{% endif %}}",
            f"{{% macro m(x) %}}{{{{ {e} }}}}{{{{ m(x) }}}}{{% endmacro %}}{{{{ m(1) }}}}",
            f"{{% set x = {e} %}}" * rng.choice([1, 40]),
        )[kind]
        at = rng.randrange(len(text) + 1)
        text = text[:at] + piece + text[at:]
    return text.encode("utf-8", "surrogatepass")
