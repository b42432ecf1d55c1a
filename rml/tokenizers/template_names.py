"""What a chat template mentions: the variables it reads, and the words it compares with.

Only the source is looked at, so a name counts as read even if it stands in a branch that a
conversation never takes.
"""

from typing import NamedTuple

from jinja2 import nodes
from jinja2.meta import find_undeclared_variables

__all__ = ["TemplateNames", "names_of"]


class TemplateNames(NamedTuple):
    """Names in a template.

    Attributes
    ----------
    variables : frozenset of str
        Variables that come from outside, or may: one that the template sets in some branch only is
        among them.
    inputs : frozenset of str
        Those that the template never sets itself.
    words : frozenset of str
        Texts in expressions, such as roles, types of content parts, and keys.
    attributes : frozenset of str
        Names behind a dot.
    tests : frozenset of str
        Names of tests (``is mapping``).
    """

    variables: frozenset[str]
    inputs: frozenset[str]
    words: frozenset[str]
    attributes: frozenset[str]
    tests: frozenset[str]


def names_of(tree: nodes.Template) -> TemplateNames:
    """Collect the names in a parsed template."""
    variables = frozenset(find_undeclared_variables(tree))
    stored = {node.name for node in tree.find_all(nodes.Name) if node.ctx != "load"}
    return TemplateNames(
        variables,
        variables - stored,
        frozenset(n.value for n in tree.find_all(nodes.Const) if isinstance(n.value, str)),
        frozenset(node.attr for node in tree.find_all(nodes.Getattr)),
        frozenset(node.name for node in tree.find_all(nodes.Test)),
    )
