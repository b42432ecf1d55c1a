"""What Jinja's compiler makes of a chat template, with checks in it.

The code looks like Jinja's own, with these differences: every body begins with a step of the
`Allowance` of the rendering, in proportion to what stands in it; operators, comparisons, slices,
lists and output pass through the allowance or the environment; literals are `MarkedText`, made
once.
"""

from collections.abc import Iterable
from typing import Any, Final

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame

from rml.tokenizers.marked_text import MarkedText

# ruff: noqa: ANN401, N802  # a template's values are whatever messages hold; the names are Jinja's

__all__ = ["SPREAD", "CheckingGenerator", "with_checks"]

SPREAD: Final = "mapping of arguments"
"""A filter that no source can name; what stands behind ``**`` passes through it."""

_OPERATORS: Final = {
    "eq": "==", "ne": "!=", "gt": ">", "gteq": ">=", "lt": "<", "lteq": "<=",
    "in": "in", "notin": "not in",
}  # fmt: skip


def with_checks(tree: nodes.Template) -> nodes.Template:
    """Put checks where Jinja's compiler leaves no room for them; changes the tree."""
    node: Any
    for node in tree.find_all((nodes.Call, nodes.Filter, nodes.Test)):
        if node.dyn_args is not None:
            node.dyn_args = _filtered(node.dyn_args, "list")
        if node.dyn_kwargs is not None:
            node.dyn_kwargs = _filtered(node.dyn_kwargs, SPREAD)
    for loop in tree.find_all(nodes.For):
        if loop.test is not None:
            loop.test = nodes.And(nodes.EnvironmentAttribute("tick"), loop.test)
    return tree


def _filtered(node: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class _Generator(CodeGenerator):
    """Compiles a tree that went through `with_checks`."""

    def write_commons(self) -> None:
        self.writeline("allowance = environment.allowance")
        self.writeline("literals = environment.literals")
        super().write_commons()

    def blockvisit(self, nodes: Iterable[nodes.Node], frame: Frame) -> None:
        body = list(nodes)
        self.writeline(f"allowance.step({1 + sum(map(_own_nodes, body))})")
        super().blockvisit(body, frame)

    def visit_Const(self, node: nodes.Const, frame: Frame) -> None:
        if type(node.value) is str:
            self._write_literal(node.value)
        else:
            super().visit_Const(node, frame)

    def visit_TemplateData(self, node: nodes.TemplateData, frame: Frame) -> None:  # noqa: ARG002
        self._write_literal(node.data)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.concat_values((")
        self._visit_all(node.nodes, frame)
        self.write("))")

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        if isinstance(node.arg, nodes.Slice):
            self.write("allowance.kept(")
            super().visit_Getitem(node, frame)
            self.write(")")
            return
        self.write("environment.getitem(")
        self.visit(node.node, frame)
        self.write(", ")
        self._visit_compared(node.arg, frame)
        self.write(")")

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:
        first = node.ops[0]
        if len(node.ops) == 1 and _is_cheap(node.expr, first):
            self.write("(")
            self._visit_compared(node.expr, frame)
            self.write(f" {_OPERATORS[first.op]} ")
            self._visit_compared(first.expr, frame)
            self.write(")")
        elif len(node.ops) == 1:
            self.write(f"environment.compare({first.op!r}, ")
            self._visit_all((node.expr, first.expr), frame)
            self.write(")")
        else:
            self.write(f"environment.compare_chain({tuple(op.op for op in node.ops)!r}, (")
            for operand in (node.expr, *(op.expr for op in node.ops)):
                self.write("lambda: ")
                self.visit(operand, frame)
                self.write(", ")
            self.write("))")

    def visit_List(self, node: nodes.List, frame: Frame) -> None:
        self.write(f"allowance.made({1 + len(node.items)}, [")
        self._visit_all(node.items, frame)
        self.write("])")

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        if node.ctx != "load":
            super().visit_Tuple(node, frame)
            return
        self.write(f"allowance.made({1 + len(node.items)}, (")
        self._visit_all(node.items, frame)
        self.write("))")

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        self.write(f"allowance.made({2 + 2 * len(node.items)}, {{")
        for pair in node.items:
            if not isinstance(pair.key, nodes.Const):
                self.write("allowance.check_hashed(")
                self.visit(pair.key, frame)
                self.write(")")
            else:
                super().visit_Const(pair.key, frame)
            self.write(": ")
            self.visit(pair.value, frame)
            self.write(", ")
        self.write("})")

    def _visit_all(self, parts: Iterable[nodes.Expr], frame: Frame) -> None:
        for part in parts:
            self.visit(part, frame)
            self.write(", ")

    def _visit_compared(self, node: nodes.Expr, frame: Frame) -> None:
        """Visit a value that is only compared or hashed, so that marks do not matter."""
        if isinstance(node, nodes.Const):
            super().visit_Const(node, frame)
        elif isinstance(node, nodes.List | nodes.Tuple) and _is_constant(node):
            self.write("(")
            for item in node.items:
                self._visit_compared(item, frame)
                self.write(", ")
            self.write(")")
        else:
            self.visit(node, frame)

    def _write_literal(self, text: str) -> None:
        literals = self.environment.literals  # type: ignore[attr-defined]
        self.write(f"literals[{len(literals)}]")
        literals.append(MarkedText.written(text))

    def _output_child_to_const(self, node: nodes.Expr, frame: Frame, finalize: Any) -> str:  # noqa: ARG002
        if isinstance(node, nodes.TemplateData):
            return node.data
        raise nodes.Impossible

    def _output_const_repr(self, group: Iterable[Any]) -> str:
        literals = self.environment.literals  # type: ignore[attr-defined]
        literals.append(MarkedText.written("".join(group)))
        return f"literals[{len(literals) - 1}]"

    def _output_child_pre(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        super()._output_child_pre(node, frame, finalize)
        self.write("allowance.check_text(")

    def _output_child_post(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        self.write(")")
        super()._output_child_post(node, frame, finalize)


CheckingGenerator: Final[type[CodeGenerator]] = _Generator
"""What compiles a tree that went through `with_checks`."""


def _own_nodes(node: nodes.Node) -> int:
    """Nodes of a statement without those of the statements in it, which take steps themselves."""
    return 1 + sum(
        _own_nodes(child) for child in node.iter_child_nodes() if not isinstance(child, nodes.Stmt)
    )


def _is_constant(node: nodes.Expr) -> bool:
    if isinstance(node, nodes.List | nodes.Tuple):
        return all(isinstance(item, nodes.Const) for item in node.items)
    return isinstance(node, nodes.Const)


def _is_cheap(left: nodes.Expr, operand: nodes.Operand) -> bool:
    """Whether a comparison takes no time, whatever the values are."""
    if operand.op in ("in", "notin"):
        return isinstance(operand.expr, nodes.List | nodes.Tuple) and _is_constant(operand.expr)
    return any(isinstance(side, nodes.Const) for side in (left, operand.expr))
