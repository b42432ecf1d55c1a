"""Values that nobody should give, and every public parameter that they can be given to."""

import array
import datetime as dt
import math
from collections import UserDict, UserList
from decimal import Decimal
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np

import rml
from rml.generation.request import ChatOptions, GenerateOptions

HELLO = [{"role": "user", "content": "Hello"}]


class Fault(Exception):
    """Raised by methods of a caller's objects: no error of rml's."""


def _raises(self, *_args):
    raise Fault(type(self).__name__)


def _evil(base, *names):
    """An object of a class derived from `base` whose methods `names` raise."""
    return type(f"Evil{base.__name__.title()}", (base,), dict.fromkeys(names, _raises))


class Endless:
    """Says that it has three entries, and goes on for ever."""

    def __len__(self):
        return 3

    def __iter__(self):
        while True:
            yield 5


class Claims:
    """Says that it has more entries than any memory holds, and has none."""

    def __len__(self):
        return 2**62

    def __iter__(self):
        return iter(())


class BadReturns:
    """Methods return what they may not."""

    def _wrong(self):
        return "5"

    __index__ = __float__ = __int__ = __len__ = __iter__ = __fspath__ = __str__ = _wrong


class Liar(str):
    """A text that says something else of itself."""

    def __str__(self):
        return "other"

    def __eq__(self, other):
        return True

    def __hash__(self):
        return hash("left")


def _recursive_list():
    value = []
    value.append(value)
    return value


def _recursive_dict():
    value = {}
    value["role"] = value["content"] = value[5] = value
    return value


def _deep_list():
    value = []
    for _ in range(20_000):
        value = [value]
    return value


def _recursive_messages():
    message = {"role": "user", "content": "Hello"}
    message["self"] = message
    message["list"] = [message]
    return [message]


EVERY = (
    "__index__", "__int__", "__float__", "__len__", "__iter__", "__eq__", "__bool__", "__repr__",
    "__str__", "__hash__", "__lt__", "__gt__", "__le__", "__ge__", "__getitem__", "__contains__",
    "__call__", "__fspath__", "__array__", "tolist", "keys", "items", "__getattr__",
)  # fmt: skip

_LENGTHS = {
    "max_tokens", "max_new_tokens", "max_completion_tokens", "n_predict", "num_predict",
}  # fmt: skip
# What is called by rml; whatever it raises is the caller's.
CALLBACKS = {"mask", "logits_processor", "logits_processors", "progress"}

# What makes a value anew for each call, by a name for messages.
VALUES = {
    # Numbers
    "2**31": lambda: 2**31,
    "2**63": lambda: 2**63,
    "2**64": lambda: 2**64,
    "-2**63-1": lambda: -(2**63) - 1,
    "10**400": lambda: 10**400,
    "10**5000": lambda: 10**5000,
    "-1": lambda: -1,
    "-2": lambda: -2,
    "0": lambda: 0,
    "True": lambda: True,
    "False": lambda: False,
    "1e-320": lambda: 1e-320,
    "5e-324": lambda: 5e-324,
    "-0.0": lambda: -0.0,
    "0.5": lambda: 0.5,
    "1e308": lambda: 1e308,
    "1e19": lambda: 1e19,
    "nan": lambda: math.nan,
    "inf": lambda: math.inf,
    "-inf": lambda: -math.inf,
    "1j": lambda: 1j,
    "Decimal(nan)": lambda: Decimal("sNaN"),
    "Decimal": lambda: Decimal("1e1000000"),
    "Fraction": lambda: Fraction(10**400, 3),
    # numpy
    "np.float32(nan)": lambda: np.float32("nan"),
    "np.uint64": lambda: np.uint64(2**64 - 1),
    "np.int8(-1)": lambda: np.int8(-1),
    "np.longdouble": lambda: np.longdouble("1e4000"),
    "np.bool_": lambda: np.bool_(True),
    "np.datetime64": lambda: np.datetime64("NaT"),
    "np.void": lambda: np.void(b"abc"),
    "0-d int": lambda: np.array(5),
    "0-d float": lambda: np.array(math.nan),
    "0-d object": lambda: np.array(None),
    "empty array": lambda: np.array([]),
    "array of bool": lambda: np.array([True, False]),
    "array of objects": lambda: np.array([None, "a", 5], object),
    "array 3-d": lambda: np.zeros((2, 2, 2)),
    "array of records": lambda: np.zeros(2, [("a", "i4"), ("b", "O")]),
    "masked": lambda: np.ma.masked_array([1, 2], [True, False]),
    # Texts
    "''": lambda: "",
    "'1'": lambda: "1",
    "'nan'": lambda: "nan",
    "NUL": lambda: "a\0b",
    "surrogate": lambda: "\ud800\udfff",
    "long text": lambda: "x" * 100_000,
    "str subclass": lambda: Liar("Hello"),
    "evil str": lambda: _evil(str, "__str__", "__eq__", "__hash__", "__len__", "__iter__")("a"),
    "bytes": lambda: b"\xff\xfe",
    "bytearray": lambda: bytearray(b"5"),
    "memoryview": lambda: memoryview(b"5"),
    # Collections
    "[]": list,
    "[[1, 2]]": lambda: [[1, 2]],
    "[[[]]]": lambda: [[[]]],
    "[None]": lambda: [None],
    "[2**64, -1]": lambda: [2**64, -1],
    "[nan]": lambda: [math.nan],
    "['a', 5]": lambda: ["a", 5],
    "['']": lambda: [""],
    "huge list": lambda: [5] * 200_000,
    "huge range": lambda: range(10**18),
    "recursive list": _recursive_list,
    "deep list": _deep_list,
    "evil list": lambda: _evil(list, "__iter__", "__len__", "__getitem__")([1]),
    "tuple": lambda: (1, "a"),
    "set": lambda: {1, "a"},
    "frozenset": lambda: frozenset({-1}),
    "dict": dict,
    "dict of wrong keys": lambda: {1.5: 1, None: 2, (1,): 3, "a": 4},
    "dict of wrong values": lambda: {5: "a", "6": None, 7: math.nan},
    "recursive dict": _recursive_dict,
    "UserDict": lambda: UserDict({5: 1}),
    "UserList": lambda: UserList([5]),
    "evil dict": lambda: _evil(dict, "__iter__", "items", "keys", "__getitem__", "get")({1: 2}),
    "array.array": lambda: array.array("d", [math.nan]),
    "generator": lambda: (i for i in [1, 2]),
    "failing generator": lambda: (1 / 0 for _ in [1]),
    "iterator": lambda: iter([1]),
    "endless": Endless,
    "claims": Claims,
    "recursive messages": _recursive_messages,
    "messages of evil": lambda: [{"role": "user", "content": _evil(object, *EVERY)()}],
    "messages of numbers": lambda: [{5: 5, "role": "user", "content": "Hello", "n": 10**5000}],
    # Others
    "object": object,
    "type": lambda: int,
    "module": lambda: math,
    "builtin": lambda: len,
    "lambda": lambda: lambda *_: None,
    "failing lambda": lambda: lambda *_: 1 / 0,
    "Ellipsis": lambda: ...,
    "date": lambda: dt.datetime(1, 1, 1),
    "Path": lambda: Path("nowhere/at/all"),
    "evil object": _evil(object, *EVERY),
    "evil int": lambda: _evil(int, *EVERY[:-3])(5),
    "evil float": lambda: _evil(float, *EVERY[:-3])(0.5),
    "bad returns": BadReturns,
    "exception": lambda: Fault("x"),
    "UNSET": lambda: rml.UNSET,
}


def _with_option(call, prompt, name, rest, value):
    return call(prompt, **{name: value}, **rest)


def calls(model, path, folder):
    """What is called with each value, by the name of the parameter.

    Parameters
    ----------
    model : Model
        Used by all.
    path : Path
        Its file.
    folder : Path
        Where files may be written.
    """
    found = {}
    own = ChatOptions.__annotations__.keys() - GenerateOptions.__annotations__.keys()
    for name in sorted(GenerateOptions.__annotations__):
        rest = {} if name in _LENGTHS else {"max_tokens": 3}
        found[f"generate {name}"] = partial(_with_option, model.generate, "Hello", name, rest)
    for name in sorted(own):
        found[f"chat {name}"] = partial(_with_option, model.chat, HELLO, name, {"max_tokens": 1})
    found |= {
        "generate prompt": lambda v: model.generate(v, max_tokens=2),
        "generate prompts": lambda v: model.generate(["Hello", v], max_tokens=2),
        "generate n": lambda v: model.generate("Hello", n=v, max_tokens=1),
        "generate unknown": lambda v: model.generate("Hello", no_such_option=v),
        "stream prompt": lambda v: list(model.stream(v, max_tokens=2)),
        "stream seed": lambda v: list(model.stream("Hello", max_tokens=2, seed=v)),
        "chat messages": lambda v: model.chat(v, max_tokens=1),
        "chat message": lambda v: model.chat([v], max_tokens=1),
        "chat role": lambda v: model.chat([{"role": v, "content": "Hello"}], max_tokens=1),
        "chat content": lambda v: model.chat([{"role": "user", "content": v}], max_tokens=1),
        "chat part": lambda v: model.chat([{"role": "user", "content": [v]}], max_tokens=1),
        "chat text": lambda v: model.chat(
            [{"role": "user", "content": [{"type": "text", "text": v}]}], max_tokens=1
        ),
        "chat tool calls": lambda v: model.chat(
            [*HELLO, {"role": "assistant", "content": None, "tool_calls": v}], max_tokens=1
        ),
        "chat tool call": lambda v: model.chat(
            [*HELLO, {"role": "assistant", "content": None, "tool_calls": [v]}], max_tokens=1
        ),
        "chat arguments": lambda v: model.chat(
            [*HELLO, {"role": "assistant", "tool_calls": [{"function": {"arguments": v}}]}],
            max_tokens=1,
        ),
        "chat merged": lambda v: model.chat(v, max_tokens=1, merge_system=True),
        "chat cut": lambda v: model.chat(v, max_tokens=1, truncate="left"),
        "chat variable": lambda v: model.chat(
            HELLO, max_tokens=1, chat_template_kwargs={"variable": v}
        ),
        "chat now": lambda v: model.chat(HELLO, max_tokens=1, chat_template_kwargs={"now": v}),
        "render messages": model.render_chat,
        "render tools": lambda v: model.render_chat(HELLO, v),
        "render prompt": lambda v: model.render_chat(HELLO, None, v),
        "apply messages": model.apply_chat_template,
        "template messages": model.chat_template.render,
        "template tools": lambda v: model.chat_template.render(HELLO, tools=v),
        "template prompt": lambda v: model.chat_template.render(HELLO, add_generation_prompt=v),
        "ChatTemplate": rml.ChatTemplate,
        "template variable": lambda v: rml.ChatTemplate("{{ bos_token }}").render(
            HELLO, bos_token=v
        ),
        "score text": model.score,
        "score top_logprobs": lambda v: model.score("Hello", top_logprobs=v),
        "score parse_special": lambda v: model.score("Hello", parse_special=v),
        "embed text": model.embed,
        "embed pooling": lambda v: model.embed("Hello", pooling=v),
        "embed normalize": lambda v: model.embed("Hello", normalize=v),
        "session n_ctx": lambda v: model.session(n_ctx=v).close(),
        "session kv_type": lambda v: model.session(kv_type=v).close(),
        "session n_sequences": lambda v: model.session(n_sequences=v).close(),
        "load_session path": model.load_session,
        "load_session n_ctx": lambda v: model.load_session(folder / "saved", n_ctx=v).close(),
        "load_session kv_type": lambda v: model.load_session(folder / "saved", kv_type=v).close(),
        "plan n_tokens": model.plan,
        "open_checkpoint path": lambda v: rml.open_checkpoint(v).close(),
        "open_checkpoint mmap": lambda v: rml.open_checkpoint(path, mmap=v).close(),
        "load_tokenizer path": rml.load_tokenizer,
        "load_tokenizer pre": lambda v: rml.load_tokenizer(path, pre=v),
        "load path": lambda v: rml.load(v).close(),
        "encode text": model.tokenizer.encode,
        "encode add_special": lambda v: model.tokenizer.encode("Hello", v),
        "encode parse_special": lambda v: model.tokenizer.encode("Hello", parse_special=v),
        "decode ids": model.tokenizer.decode,
        "decode id": lambda v: model.tokenizer.decode([v]),
        "decode skip_special": lambda v: model.tokenizer.decode([5], v),
        "decode_bytes ids": model.tokenizer.decode_bytes,
        "token_bytes": model.tokenizer.token_bytes,
        "is_special": model.tokenizer.is_special,
        "token_id": model.tokenizer.token_id,
        "stream_decoder previous": lambda v: model.tokenizer.stream_decoder(previous=v),
        "stream_decoder ids": lambda v: model.tokenizer.stream_decoder().decode(v),
        "dequantize data": lambda v: rml.dequantize(v, "Q8_0"),
        "dequantize type": lambda v: rml.dequantize(b"", v),
        "SamplingSettings": lambda v: rml.SamplingSettings(logit_bias=v, suppress_tokens=v),
        "Sampler settings": rml.Sampler,
        "Sampler seed": lambda v: rml.Sampler(None, v),
        "Sampler n_tokens": lambda v: rml.Sampler(n_tokens=v),
        "Sampler banned": lambda v: rml.Sampler(banned=v),
        "Sampler processors": lambda v: rml.Sampler(processors=v),
        "Sampler mask": lambda v: rml.Sampler(mask=v),
        "StopFilter": rml.StopFilter,
    }
    for name in (
        "n_threads", "compute", "n_ctx", "n_batch", "kv_type", "kv_memory", "prefix_cache", "mmap",
        "chat_template", "pre", "threads", "num_ctx",
    ):  # fmt: skip
        found[f"load {name}"] = lambda v, name=name: rml.load(path, **{name: v}).close()
    with model.session() as session:
        session.forward([5, 6])
        session.save(folder / "saved")
    for name, call in {
        "forward ids": lambda s, v: s.forward(v),
        "forward id": lambda s, v: s.forward([v]),
        "forward all_logits": lambda s, v: s.forward([5], v),
        "forward out": lambda s, v: s.forward([5], out=v),
        "step": lambda s, v: s.step(v),
        "hidden_states": lambda s, v: s.hidden_states(v),
        "truncate": lambda s, v: s.truncate(v),
        "keep_prefix": lambda s, v: s.keep_prefix(v),
        "keep_prefix whole": lambda s, v: s.keep_prefix([5], whole=v),
        "save": lambda s, v: s.save(v),
        "session plan": lambda s, v: s.plan(v),
    }.items():
        found[f"session {name}"] = lambda v, call=call: _in_a_session(model, call, v)
    return found


def _in_a_session(model, call, value):
    with model.session() as session:
        session.forward([5, 6])
        try:
            call(session, value)
        except rml.RmlError:
            assert session.tokens == [5, 6]
            raise
