"""The Jinja environment that chat templates run in.

It is set up as Transformers sets it up (trimmed blocks, loop controls, its own ``tojson``), so that
every template renders to the same text, and differs in ways that the text does not show:

* Literals of the template are `MarkedText`, and the operations that templates build prompts with
  carry the marks along (`rml.tokenizers.marked_text`).
* Whatever could take long or grow large passes through `Guard` (`rml.tokenizers.template_guard`):
  bodies of loops and macros, operators, filters, tests, calls.
* Attributes that lead out of the sandbox raise, instead of printing as nothing.

Source of the set-up: ``utils/chat_template_utils.py`` of Transformers.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from functools import update_wrapper
from string import Formatter
from types import BuiltinMethodType, MethodType
from typing import Any, Final

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError, TemplateRuntimeError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.tests import TESTS, test_iterable, test_sequence, test_string
from markupsafe import Markup

from rml.tokenizers.marked_text import MarkedText, NullText, is_written, join_marked
from rml.tokenizers.template_guard import Guard
from rml.tokenizers.template_syntax import CountingExtension

# ruff: noqa: ANN401, SIM905  # words in a row read better than a list; a template's values are whatever messages hold

__all__ = ["RefusalError", "Sandbox"]

_COMPARISONS: Final = frozenset(
    "== != < <= > >= eq equalto ge greaterthan gt in le lessthan lt ne".split()
)


class RefusalError(TemplateRuntimeError):
    """The template called ``raise_exception``; the message is its own."""


class _Generator(CodeGenerator):
    """Compiles literals as marked text, and a step into every body."""

    def blockvisit(self, nodes: Iterable[nodes.Node], frame: Frame) -> None:
        self.writeline("environment.guard.step()")
        super().blockvisit(nodes, frame)

    def visit_Const(self, node: nodes.Const, frame: Frame) -> None:  # noqa: N802  # Jinja's names
        if type(node.value) is str:
            self.write(f"environment.written({node.value!r})")
        else:
            super().visit_Const(node, frame)

    def visit_TemplateData(self, node: nodes.TemplateData, frame: Frame) -> None:  # noqa: ARG002, N802
        self.write(f"environment.written({node.data!r})")

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        self.write("environment.concat_values((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:  # noqa: N802
        if isinstance(node.arg, nodes.Slice):
            self.write("environment.guard.spend_value(")
            super().visit_Getitem(node, frame)
            self.write(")")
            return
        self.write("environment.getitem(")
        self.visit(node.node, frame)
        self.write(", ")
        self._visit_compared(node.arg, frame)
        self.write(")")

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:  # noqa: N802
        self.write("(")
        self._visit_compared(node.expr, frame)
        for operand in node.ops:
            self.visit(operand, frame)
        self.write(")")

    def visit_Operand(self, node: nodes.Operand, frame: Frame) -> None:  # noqa: N802
        self.write(f" {_OPERATORS[node.op]} ")
        self._visit_compared(node.expr, frame)

    def visit_Pair(self, node: nodes.Pair, frame: Frame) -> None:  # noqa: N802
        self._visit_compared(node.key, frame)
        self.write(": ")
        self.visit(node.value, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:  # noqa: N802
        self.write("{")
        for pair in node.items:
            self.visit(pair, frame)
            self.write(", ")
        self.write("}")

    def _visit_compared(self, node: nodes.Expr, frame: Frame) -> None:
        """Visit a value that is only compared or hashed, so that marks do not matter."""
        if isinstance(node, nodes.Const):
            super().visit_Const(node, frame)
            return
        self.write("environment.guard.check_nesting(")
        self.visit(node, frame)
        self.write(")")

    def _output_child_to_const(self, node: nodes.Expr, frame: Frame, finalize: Any) -> str:  # noqa: ARG002
        if isinstance(node, nodes.TemplateData):
            return node.data
        raise nodes.Impossible

    def _output_const_repr(self, group: Iterable[Any]) -> str:
        return f"environment.written({''.join(group)!r})"

    def _output_child_pre(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        super()._output_child_pre(node, frame, finalize)
        self.write("environment.guard.check_text(")

    def _output_child_post(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        self.write(")")
        super()._output_child_post(node, frame, finalize)


_OPERATORS: Final = {
    "eq": "==",
    "ne": "!=",
    "gt": ">",
    "gteq": ">=",
    "lt": "<",
    "lteq": "<=",
    "in": "in",
    "notin": "not in",
}


class _GenerationExtension(Extension):
    """``{% generation %}``, which marks what a model is trained on: its body is passed through."""

    tags = {"generation"}  # noqa: RUF012  # how Jinja declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class Sandbox(ImmutableSandboxedEnvironment):
    """Environment of one template."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))
    code_generator_class = _Generator

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # nothing of a template runs while it is compiled
            extensions=[CountingExtension, LoopControlExtension, _GenerationExtension],
        )
        self.guard = Guard()
        self.written = MarkedText.written
        self.concat = self.join  # type: ignore[method-assign]  # Jinja's own hook
        del self.globals["lipsum"]
        self.globals["raise_exception"] = self._raise_exception
        self.filters["tojson"] = _tojson
        for name, function in self.filters.items():
            self.filters[name] = self._guarded_filter(name, function)
        self.tests["none"] = lambda value: value is None or isinstance(value, NullText)
        for name, test in (
            ("string", test_string),
            ("iterable", test_iterable),
            ("sequence", test_sequence),
        ):
            self.tests[name] = _not_null(test)
        for name in _COMPARISONS:
            self.tests[name] = self._guarded_test(TESTS[name])

    def unsafe_undefined(self, obj: Any, attribute: str) -> Any:
        """Raise; Jinja's own answer prints as nothing."""
        raise SecurityError(f"access to {attribute!r} of a {type(obj).__name__} is not allowed")

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a function, macro or method."""
        guard = self.guard
        guard.step()
        guard.check_nesting(obj)  # an error message may print it
        owner = getattr(obj, "__self__", None)
        guard.check_call(obj, owner, args)
        result = guard.spend_value(super().call(context, obj, *args, **kwargs))
        return _marked_like(owner, (*args, *kwargs.values()), result)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Apply an operator."""
        guard = self.guard
        guard.step()
        guard.check_operator(operator, left, right)
        result = guard.spend_value(super().call_binop(context, operator, left, right))
        return _marked_like(left, (right,), result, numbers=operator != "%")

    def concat_values(self, values: tuple[Any, ...]) -> str:
        """Join values as the ``~`` operator does."""
        return self.join([str(self.guard.check_text(value)) for value in values])

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """``str.format`` and ``str.format_map``, with marks."""
        if not isinstance(value, BuiltinMethodType | MethodType):
            return None
        text = value.__self__
        if value.__name__ not in ("format", "format_map") or not isinstance(text, str):
            return None
        if isinstance(text, Markup):
            raise SecurityError("format() of escaped text is not supported")
        formatter = _MarkingFormatter(self)
        if value.__name__ == "format":
            return lambda *args, **kwargs: formatter.vformat(text, args, kwargs)
        return lambda mapping: formatter.vformat(text, (), mapping)

    def join(self, parts: Iterable[str]) -> MarkedText:
        """Join pieces of output, within the limits."""
        pieces = []
        for part in parts:
            self.guard.spend(len(part))
            pieces.append(part)
        return join_marked(pieces)

    def _guarded_filter(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a filter with checks; text that it makes of written text alone is written."""
        own = 1 if hasattr(function, "jinja_pass_arg") else 0  # context or environment goes first

        def guarded(*args: Any, **kwargs: Any) -> Any:
            value, *rest = args[own:]
            value = self.guard.check_filter(name, value, (*rest, *kwargs.values()))
            if name == "join":  # a separator with marks keeps those of what it joins
                rest[:1] = [_markable(text) for text in rest[:1] or ([] if "d" in kwargs else [""])]
                kwargs = {k: _markable(v) if k == "d" else v for k, v in kwargs.items()}
            result = self.guard.spend_value(function(*args[:own], value, *rest, **kwargs))
            return _marked_like(value, (*rest, *kwargs.values()), result, numbers=name != "format")

        return update_wrapper(guarded, function)

    def _raise_exception(self, message: Any) -> None:
        raise RefusalError(str(self.guard.check_text(message)))

    def _guarded_test(self, function: Any) -> Callable[..., Any]:
        def guarded(*args: Any) -> Any:
            for value in args:
                self.guard.check_nesting(value)
            return function(*args)

        return guarded


class _MarkingFormatter(SandboxedFormatter):
    """`str.format` that keeps the marks of the pattern and of plain text fields."""

    _env: Sandbox

    def vformat(self, text: str, args: Any, kwargs: Any) -> str:
        """Fill the fields of `text`."""
        guard = self._env.guard
        own = MarkedText.written if is_written(text) else MarkedText
        pieces: list[str] = []
        count = 0
        for literal, name, pattern, conversion in Formatter().parse(text):
            pieces.append(own(literal))
            if name is None:
                continue
            guard.step()
            if pattern and "{" in pattern:
                raise SecurityError("nested format fields are not supported")
            guard.check_format(pattern or "")
            if name == "" or name[0] in ".[":
                value, _ = self.get_field(f"{count}{name}", args, kwargs)
                count += 1
            else:
                value, _ = self.get_field(name, args, kwargs)
            guard.check_text(value)
            if conversion or pattern or not isinstance(value, MarkedText):
                value = self.format_field(self.convert_field(value, conversion), pattern or "")
            guard.spend(len(value))
            pieces.append(value)
        return join_marked(pieces)


def _markable(text: Any) -> Any:
    return MarkedText(text) if type(text) is str else text


def _marked_like(text: Any, others: Iterable[Any], result: Any, *, numbers: bool = True) -> Any:
    """Count a plain result as written if it is made of written text and written arguments.

    Numbers among the arguments (widths, counts) do no harm, unless they can become characters.
    """
    if type(result) is not str or not is_written(text):
        return result
    harmless = bool | int | float | None if numbers else bool | None
    if all(is_written(other) or isinstance(other, harmless) for other in others):
        return MarkedText.written(result)
    return result


def _not_null(test: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: not isinstance(value, NullText) and test(value)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON as Transformers' filter does: no HTML escapes, non-ASCII as it is."""
    return json.dumps(
        _with_null(value),
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _with_null(value: Any) -> Any:
    """Return the value with `NullText` as None again."""
    if isinstance(value, NullText):
        return None
    if isinstance(value, Mapping):
        return {key: _with_null(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_with_null(part) for part in value]
    return value
