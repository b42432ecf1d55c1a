"""What the source of a chat template may ask of Jinja's compiler.

Jinja itself has no limits, and its compiler is quadratic in places: at every branch it copies what
it knows of every variable that is set. So the words of the source are counted while they are read,
before the parser makes anything of them, and the tree is measured before it is compiled. The most
that the limits let through takes about two seconds to compile (`tests/tokenizers`).
"""

from collections.abc import Iterable, Iterator
from typing import Final

from jinja2 import nodes
from jinja2.exceptions import TemplateSyntaxError
from jinja2.ext import Extension
from jinja2.lexer import Token, TokenStream

from rml.files.limits import (
    MAX_TEMPLATE_BRANCHES,
    MAX_TEMPLATE_DEPTH,
    MAX_TEMPLATE_NODES,
    MAX_TEMPLATE_TOKENS,
)

__all__ = ["CountingExtension", "check_tree"]

_OPENING: Final = frozenset({"lbrace", "lbracket", "lparen"})
_CLOSING: Final = frozenset({"rbrace", "rbracket", "rparen"})
_BRANCHES: Final = (
    nodes.Block,
    nodes.CallBlock,
    nodes.CondExpr,
    nodes.FilterBlock,
    nodes.For,
    nodes.If,
    nodes.Macro,
    nodes.Scope,
    nodes.With,
)


class CountingExtension(Extension):
    """Counts words and brackets on their way from the lexer to the parser."""

    def filter_stream(self, stream: TokenStream) -> Iterable[Token]:
        """Pass tokens on, up to the limits."""
        return _counted(stream)


def _counted(stream: TokenStream) -> Iterator[Token]:
    depth = 0
    for count, token in enumerate(stream):
        depth += (token.type in _OPENING) - (token.type in _CLOSING)
        if count >= MAX_TEMPLATE_TOKENS:
            raise TemplateSyntaxError(
                f"more than {MAX_TEMPLATE_TOKENS} words and signs", token.lineno
            )
        if depth > MAX_TEMPLATE_DEPTH:
            raise TemplateSyntaxError(
                f"brackets in more than {MAX_TEMPLATE_DEPTH} levels", token.lineno
            )
        yield token


def check_tree(tree: nodes.Template) -> None:
    """Refuse a tree that the compiler would take long for.

    Raises
    ------
    TemplateSyntaxError
        It is too large, too deep, or has too many variables and branches.
    """
    count = branches = depth = 0
    names = set()
    level: list[nodes.Node] = [tree]
    while level:
        depth += 1
        count += len(level)
        branches += sum(isinstance(node, _BRANCHES) for node in level)
        names |= {
            node.name for node in level if isinstance(node, nodes.Name | nodes.Macro | nodes.Block)
        }
        for what, found, most in (
            ("nodes", count, MAX_TEMPLATE_NODES),
            ("levels", depth, MAX_TEMPLATE_DEPTH),
            ("branches times variables", branches * len(names), MAX_TEMPLATE_BRANCHES),
        ):
            if found > most:
                line = level[0].lineno or 1
                raise TemplateSyntaxError(f"its tree has more than {most} {what}", line)
        level = [child for node in level for child in node.iter_child_nodes()]
