"""The Jinja environment that chat templates run in.

It is set up as Transformers sets it up (trimmed blocks, loop controls, its own ``tojson``), so that
every template renders to the same text, and differs in ways that the text does not show:

* Literals of the template are `MarkedText`, and the operations that templates build prompts with
  carry the marks along (`rml.tokenizers.marked_text`).
* What can be reached is a list: attributes and methods by the type of their object and their name,
  functions by identity, filters by name (`rml.tokenizers.template_costs`). All else raises, instead
  of printing as nothing.
* Whatever could take long or grow large is charged before it is done
  (`rml.tokenizers.template_guard`), and filters yield lists where Jinja has generators.

Source of the set-up: ``utils/chat_template_utils.py`` of Transformers.
"""

import json
import operator
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import update_wrapper
from string import Formatter
from types import BuiltinMethodType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any, Final

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateRuntimeError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import BlockReference, Context, LoopContext, Macro, TemplateReference, Undefined
from jinja2.sandbox import SandboxedEnvironment, SandboxedFormatter, safe_range
from jinja2.tests import TESTS, test_iterable, test_sequence, test_string
from jinja2.utils import Cycler, Joiner, Namespace
from markupsafe import Markup

from rml.tokenizers.marked_text import MarkedText, NullText, is_written, join_marked
from rml.tokenizers.template_code import SPREAD, CheckingGenerator, with_checks
from rml.tokenizers.template_costs import (
    ATTRIBUTES,
    FILTERS,
    charge_contains,
    charge_equal,
    charge_filter,
    charge_method,
    charge_operator,
)
from rml.tokenizers.template_guard import Allowance
from rml.tokenizers.template_syntax import CountingExtension, check_tree

# ruff: noqa: ANN401  # words in a row read better than a list; a template's values are whatever messages hold

__all__ = ["RefusalError", "Sandbox"]

_COMPARISONS: Final = {
    name: key
    for key, names in {
        "eq": "== eq equalto",
        "ne": "!= ne",
        "lt": "< lt lessthan",
        "lteq": "<= le",
        "gt": "> gt greaterthan",
        "gteq": ">= ge",
        "in": "in",
    }.items()
    for name in names.split()
}
_OPERATIONS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "lteq": operator.le,
    "gt": operator.gt,
    "gteq": operator.ge,
    "in": lambda value, within: value in within,
    "notin": lambda value, within: value not in within,
}
_WITHOUT_ATTRIBUTES: Final = (
    int, float, bytes, range, type, ModuleType, FunctionType, MethodType, BuiltinMethodType,
    GeneratorType, BlockReference, Namespace, TemplateReference,
)  # fmt: skip
_DICT_ATTRIBUTES: Final = ATTRIBUTES[dict]
_attributes_of: Final = object.__getattribute__
_LARGEST_RANGE: Final = 2**53  # further numbers can all have one hash


class RefusalError(TemplateRuntimeError):
    """The template called ``raise_exception``; the message is its own."""


class _GenerationExtension(Extension):
    """``{% generation %}``, which marks what a model is trained on: its body is passed through."""

    tags = {"generation"}  # noqa: RUF012  # how Jinja declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class Sandbox(SandboxedEnvironment):
    """Environment of one template."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))
    code_generator_class = CheckingGenerator

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # nothing of a template runs while it is compiled
            extensions=[CountingExtension, LoopControlExtension, _GenerationExtension],
        )
        self._running = threading.local()
        self.literals: list[MarkedText] = []
        self.concat = self.join  # type: ignore[method-assign]  # Jinja's own hook
        del self.globals["lipsum"]
        self.globals["raise_exception"] = self._raise_exception
        self.globals["range"] = _range
        self._functions = {id(function) for function in self.globals.values()}
        self.filters = {
            name: self._guarded_filter(name, function) if name in FILTERS else _refused(name)
            for name, function in (self.filters | {"tojson": _tojson}).items()
        }
        self.filters[SPREAD] = self._spread
        self.tests["none"] = lambda value: value is None or isinstance(value, NullText)
        for name, test in (
            ("string", test_string),
            ("iterable", test_iterable),
            ("sequence", test_sequence),
        ):
            self.tests[name] = _not_null(test)
        for name, key in _COMPARISONS.items():
            self.tests[name] = self._comparing_test(key)
        for name in ("lower", "upper"):
            self.tests[name] = self._printing_test(TESTS[name])

    # ---- allowances ----

    @property
    def allowance(self) -> Allowance:
        """What the rendering that runs in this thread may still use."""
        return self._running.allowance  # type: ignore[no-any-return]

    @property
    def tick(self) -> bool:
        """Count a step of a loop's filter; True."""
        self.allowance.step(4)
        return True

    @contextmanager
    def running(self, allowance: Allowance) -> Iterator[None]:
        """Use an allowance in this thread."""
        before = getattr(self._running, "allowance", None)
        self._running.allowance = allowance
        allowance.resume()
        try:
            yield
        finally:
            allowance.pause()
            self._running.allowance = before

    # ---- compiling ----

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        check_tree(tree)
        return with_checks(tree)

    # ---- what can be reached ----

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Value behind a dot."""
        if type(obj) is Namespace:  # templates ask these most often
            found = _attributes_of(obj, "_Namespace__attrs")
            if attribute in found:
                return found[attribute]
        elif type(obj) is dict:
            if attribute in _DICT_ATTRIBUTES:
                return getattr(obj, attribute)
            if attribute in obj:
                return obj[attribute]
        elif isinstance(obj, Undefined) or self._has_attribute(obj, attribute):
            return self._attribute(obj, attribute)
        else:
            try:
                return obj[attribute] if not isinstance(obj, type) else self._unsafe(obj, attribute)
            except (TypeError, LookupError):
                pass
        return self._undefined(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Value in brackets."""
        if isinstance(obj, type):
            self._unsafe(obj, str(argument)[:100])
        if not isinstance(argument, str):
            self.allowance.check_hashed(argument)
        try:
            return obj[argument]
        except (TypeError, LookupError):
            if not isinstance(argument, str):
                return self.undefined(obj=obj, name=argument)
        name = str(argument)
        if isinstance(obj, Namespace):
            return self.getattr(obj, name)
        if self._has_attribute(obj, name):
            return self._attribute(obj, name)
        return self._undefined(obj, name)

    def _has_attribute(self, obj: Any, name: str) -> bool:
        """Whether an object has an attribute that may be read."""
        for kind, names in ATTRIBUTES.items():
            if isinstance(obj, kind):
                return name in names
        if name.startswith("_") or isinstance(obj, _WITHOUT_ATTRIBUTES):
            return False
        return hasattr(obj, name)  # of what the caller gave

    def _attribute(self, obj: Any, name: str) -> Any:
        if name.startswith("_"):
            self._unsafe(obj, name)
        if isinstance(obj, str) and name in ("format", "format_map"):
            return _Format(self, obj, name)
        return getattr(obj, name)

    def _undefined(self, obj: Any, name: str) -> Any:
        if name.startswith("_") or hasattr(type(obj), name):
            self._unsafe(obj, name)
        return self.undefined(obj=obj, name=name)

    def _unsafe(self, obj: Any, name: str) -> Any:
        raise SecurityError(f"access to {name!r} of a {type(obj).__name__} is not allowed")

    def _is_callable(self, obj: Any) -> bool:
        if isinstance(obj, BuiltinMethodType | MethodType):
            owner, name = obj.__self__, obj.__name__
            if isinstance(owner, str | dict | list | tuple | LoopContext | Cycler):
                return any(
                    isinstance(owner, kind) and name in names for kind, names in ATTRIBUTES.items()
                )
        return (
            isinstance(obj, Macro | BlockReference | Joiner | LoopContext | _Format)
            or id(obj) in self._functions
            or self.allowance.has_function(obj)
        )

    # ---- operations ----

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a function, macro or method."""
        allowance = self.allowance
        allowance.step(4)
        if isinstance(obj, Undefined):
            obj()  # raises
        if not self._is_callable(obj):
            raise SecurityError(f"a {type(obj).__name__} may not be called here")
        owner = getattr(obj, "__self__", None) if not isinstance(obj, _Format) else obj.text
        given = (*args, *(v for k, v in kwargs.items() if k not in ("_loop_vars", "_block_vars")))
        if isinstance(obj, BuiltinMethodType | MethodType):
            charge_method(allowance, owner, obj.__name__, given)
        elif obj is dict or obj is Namespace or obj is Cycler:
            self._charge_new(obj, args, given)
        allowance.enter()
        try:
            result = allowance.kept(context.call(obj, *args, **kwargs))
        finally:
            allowance.leave()
        return _marked_like(owner, given, result)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Apply an operator."""
        allowance = self.allowance
        allowance.step(2)
        charge_operator(allowance, operator, left, right)
        result = allowance.kept(super().call_binop(context, operator, left, right))
        return _marked_like(left, (right,), result, numbers=operator != "%")

    def compare(self, key: str, left: Any, right: Any) -> Any:
        """Compare two values, or look for one in the other."""
        allowance = self.allowance
        if key in ("in", "notin"):
            charge_contains(allowance, left, right)
        else:
            charge_equal(allowance, left, right, is_order=key not in ("eq", "ne"))
        return _OPERATIONS[key](left, right)

    def compare_chain(self, keys: tuple[str, ...], values: tuple[Callable[[], Any], ...]) -> Any:
        """Compare as ``a < b < c`` does: each value is made once, and only if it matters."""
        left = values[0]()
        result: Any = True
        for key, value in zip(keys, values[1:], strict=True):
            right = value()
            result = self.compare(key, left, right)
            if not result:
                break
            left = right
        return result

    def concat_values(self, values: tuple[Any, ...]) -> str:
        """Join values as the ``~`` operator does."""
        allowance = self.allowance
        allowance.step(len(values))
        return self.join([str(allowance.check_text(value)) for value in values])

    def join(self, parts: Iterable[str]) -> MarkedText:
        """Join pieces of output, within the limits."""
        allowance = self.allowance
        pieces = []
        size = 0
        for part in parts:
            size += len(part) + 8
            pieces.append(part)
            if len(pieces) & 63 == 0:
                allowance.room(size)
                allowance.step(16)
        allowance.room(size)
        return allowance.large(join_marked(pieces))

    def _charge_new(self, kind: Any, args: tuple[Any, ...], given: tuple[Any, ...]) -> None:
        """Charge for a mapping, namespace or cycler that is made of values."""
        allowance = self.allowance
        allowance.hold_elements(4 + len(given))
        if kind is Cycler:
            return
        for value in args:
            if isinstance(value, Mapping):
                allowance.room(200 * len(value))
            elif isinstance(value, list | tuple):
                allowance.room(200 * len(value))
                for pair in value:
                    allowance.step()
                    allowance.check_hashed(pair[0] if isinstance(pair, list) and pair else pair)
            elif not isinstance(value, Undefined):
                raise SecurityError(f"a {type(value).__name__} is no mapping, and no list of pairs")

    def _spread(self, value: Any) -> Any:
        """Charge for arguments behind ``**``."""
        if isinstance(value, Mapping):
            self.allowance.hold_elements(2 * len(value))
        return value

    def _guarded_filter(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a filter with charges; text that it makes of written text alone is written."""
        own = 1 if hasattr(function, "jinja_pass_arg") else 0  # context or environment goes first
        takes_all = FILTERS[name] is not None

        def guarded(*args: Any, **kwargs: Any) -> Any:
            allowance = self.allowance
            value, *rest = args[own:]
            if takes_all and hasattr(value, "__next__"):
                value = list(value)
            charge_filter(allowance, name, value, (*rest, *kwargs.values()))
            if name == "join":  # a separator with marks keeps those of what it joins
                rest[:1] = [_markable(text) for text in rest[:1] or ([] if "d" in kwargs else [""])]
                kwargs = {k: _markable(v) if k == "d" else v for k, v in kwargs.items()}
            result = function(*args[:own], value, *rest, **kwargs)
            if isinstance(result, GeneratorType):
                # Generators in generators exhaust the stack when they die.
                made = allowance.kept(list(result))
                if name == "map":
                    allowance.hold_elements(len(made))
                return iter(made)
            result = allowance.kept(result)
            return _marked_like(value, (*rest, *kwargs.values()), result, numbers=name != "format")

        return update_wrapper(guarded, function)

    def _comparing_test(self, key: str) -> Callable[..., Any]:
        return lambda left, right: self.compare(key, left, right)

    def _printing_test(self, test: Any) -> Callable[..., Any]:
        def guarded(value: Any) -> Any:
            text = str(self.allowance.check_text(value))
            self.allowance.work(len(text))
            return test(text)

        return guarded

    def _raise_exception(self, message: Any) -> None:
        raise RefusalError(str(self.allowance.check_text(message)))


class _Format:
    """``str.format`` or ``str.format_map`` of a text, to be called."""

    def __init__(self, environment: Sandbox, text: str, name: str) -> None:
        if isinstance(text, Markup):
            raise SecurityError("format() of escaped text is not supported")
        self.text = text
        self._environment = environment
        self._takes_mapping = name == "format_map"

    def __call__(self, *given: Any, **kwargs: Any) -> str:
        formatter = _MarkingFormatter(self._environment)
        kwargs.pop("_loop_vars", None)
        kwargs.pop("_block_vars", None)
        if self._takes_mapping:
            if len(given) != 1 or kwargs or not isinstance(given[0], Mapping):
                raise SecurityError("format_map() takes one mapping")
            return formatter.vformat(self.text, (), dict(given[0]))
        return formatter.vformat(self.text, given, kwargs)


class _MarkingFormatter(SandboxedFormatter):
    """`str.format` that keeps the marks of the pattern and of plain text fields."""

    _env: Sandbox

    def vformat(self, text: str, args: Any, kwargs: Any) -> str:
        """Fill the fields of `text`."""
        allowance = self._env.allowance
        own = MarkedText.written if is_written(text) else MarkedText
        pieces: list[str] = []
        count = size = 0
        for literal, name, pattern, conversion in Formatter().parse(text):
            pieces.append(own(literal))
            if name is None:
                continue
            allowance.step(8)
            if pattern and "{" in pattern:
                raise SecurityError("nested format fields are not supported")
            width = allowance.check_format(pattern or "")
            if name == "" or name[0] in ".[":
                value, _ = self.get_field(f"{count}{name}", args, kwargs)
                count += 1
            else:
                value, _ = self.get_field(name, args, kwargs)
            allowance.check_text(value)
            if isinstance(value, str):
                allowance.room((10 if conversion else 1) * len(value) + 4 * width)
            if conversion or pattern or not isinstance(value, MarkedText):
                value = self.format_field(self.convert_field(value, conversion), pattern or "")
            size += len(value) + 8
            allowance.room(4 * size)
            pieces.append(value)
        return allowance.large(join_marked(pieces))


def _range(*args: int) -> range:
    """``range`` of Jinja's sandbox, with numbers that can be counted."""
    for value in args:
        if isinstance(value, int) and abs(value) > _LARGEST_RANGE:
            raise SecurityError("a range goes too far")
    return safe_range(*args)


def _refused(name: str) -> Callable[..., Any]:
    def refuse(*_args: Any, **_kwargs: Any) -> Any:
        raise SecurityError(f"the filter {name!r} is not supported")

    return refuse


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
