"""The table of limits: each is enforced as it says, and nowhere else is there another.

For every entry there is an input that keeps it, where such a one is cheap, and one that exceeds it
by one. Limits of other rooms (templates, tokenizers, sessions) have tests of their own.
"""

import ast
import dataclasses
import json
import os
import re
import shutil
import struct
import sys
import time
import tracemalloc
from pathlib import Path

import pytest

import rml
from rml.errors import CheckpointError, UnsupportedModel
from rml.files import limits, open_checkpoint
from rml.files.strict_json import parse_json
from rml.llm.config import ModelConfig
from rml.llm.config_keys import Keys

ROOMS = {"JSON", "GGUF", "safetensors", "tensors", "configuration"}
PACKAGE = Path(rml.__file__).parent
FIXTURES = Path(__file__).parents[1] / "fixtures"

TOY = ModelConfig(
    architecture="llama", n_layers=4, n_vocab=100, d_model=64, n_heads=8, n_kv_heads=2, head_dim=8,
    d_ffn=96, n_ctx_train=2048, norm_eps=1e-5, attention_scale=8**-0.5, rope_theta=1e4,
    rope_pairing="half",
)  # fmt: skip

PROBES = {}


def probe(room, what):
    """Register a function that takes a number and what writes files, and reads what it makes."""

    def enter(function):
        assert (room, what) not in PROBES
        PROBES[room, what] = function
        return function

    return enter


def expensive(function):
    """Only what exceeds the limit is tried: what keeps it takes seconds or 100 MB."""
    function.expensive = True
    return function


def sparse(path, size):
    with path.open("r+b") as file:
        file.truncate(size)
    return path


# ---- JSON ----


@probe("JSON", "bytes of a document")
@expensive
def _(n, make, write):
    write(make.safetensors({}), "model.safetensors")
    sparse(write(b"{}", "config.json"), n)
    open_checkpoint(write(make.safetensors({}), "model.safetensors"))


@probe("JSON", "lists and objects in each other")
def _(n, make, write):
    for opening, closing in (("[", "]"), ('{"a":', "}")):
        parse_json(f'{{"a":{opening * (n - 1)}1{closing * (n - 1)}}}'.encode(), "it")


@probe("JSON", "lists and objects")
def _(n, make, write):
    parse_json(b'{"a":[' + b"[]," * (n - 3) + b"{}]}", "it")


@probe("JSON", "keys, or colons")
def _(n, make, write):
    pairs, rest = divmod(n - 1, 2)
    parse_json(
        b'{"a":[' + b'{"b":0,"c":0},' * pairs + b'{"b":0}' * rest + b"{}" * (not rest) + b"]}", "it"
    )


@probe("JSON", "values, or commas")
def _(n, make, write):
    parse_json(b'{"a":[' + b"1," * n + b"1]}", "it")


@probe("JSON", "digits of a whole number")
def _(n, make, write):
    assert parse_json(b'{"a":-' + b"9" * n + b"}", "it")["a"] < 0


# ---- GGUF ----


@probe("GGUF", "bytes of keys and tensor table")
@expensive
def _(n, make, write):
    head = make.gguf([make.key("k", make.STRING, struct.pack("<Q", n))], n_keys=1)
    open_checkpoint(sparse(write(head), len(head) + n))


@probe("GGUF", "dimensions of a tensor")
def _(n, make, write):
    open_checkpoint(write(make.gguf([], [make.tensor("t", [1] * n, 0, 0)], bytes(4))))


@probe("GGUF", "bytes of a tensor's name")
def _(n, make, write):
    open_checkpoint(write(make.gguf([], [make.tensor("t" * n, [1], 0, 0)], bytes(4))))


@probe("GGUF", "bytes of a key")
def _(n, make, write):
    open_checkpoint(write(make.gguf([make.u32("k" * n, 1)])))


@probe("GGUF", "metadata keys")
def _(n, make, write):
    open_checkpoint(write(make.gguf([make.u32(f"{i}", 1) for i in range(n)])))


@probe("GGUF", "arrays inside arrays")
def _(n, make, write):
    open_checkpoint(
        write(make.gguf([make.array("k", make.ARRAY, n, struct.pack("<IQ", 0, 0) * n)]))
    )


@probe("GGUF", "arrays in each other")
def _(n, make, write):
    inner = struct.pack("<IQ", make.ARRAY, 1) * (n - 2) + struct.pack("<IQ", make.U8, 0)
    open_checkpoint(write(make.gguf([make.array("k", make.ARRAY, 1, inner)])))


@probe("GGUF", "bytes of the alignment")
def _(n, make, write):
    alignment = n if n.bit_count() == 1 else 2 * (n - 1)  # the next power of two
    open_checkpoint(write(make.gguf([make.u32("general.alignment", alignment)])))


# ---- safetensors ----


def one_tensor(make, name="t", shape=(1,), n_bytes=4):
    return make.safetensors({name: make.entry("F32", list(shape), 0, n_bytes)}, bytes(n_bytes))


@probe("safetensors", "dimensions of a tensor")
def _(n, make, write):
    open_checkpoint(write(one_tensor(make, shape=[1] * n), "m.safetensors"))


@probe("safetensors", "characters of a tensor's name")
def _(n, make, write):
    open_checkpoint(write(one_tensor(make, "t" * n), "m.safetensors"))


@probe("safetensors", "characters of the name of a file")
def _(n, make, write):
    name = "m" * (n - len(".safetensors")) + ".safetensors"
    if n <= 255:
        write(one_tensor(make), name)
    index = json.dumps({"weight_map": {"t": name}}).encode()
    open_checkpoint(write(index, "model.safetensors.index.json"))


# ---- tensors ----


@probe("tensors", "tensors of a model")
@expensive
def _(n, make, write):
    entry = make.tensor("", [0], 0, 0)
    open_checkpoint(write(make.gguf([], [entry] * n)))


@probe("tensors", "files of a model")
@expensive
def _(n, make, write):
    keys = [
        make.key("split.count", make.U16, struct.pack("<H", n)),
        make.key("split.tensors.count", make.I32, bytes(4)),
    ]
    open_checkpoint(write(make.gguf(keys), f"m-00001-of-{n:05d}.gguf"))


@probe("tensors", "values of a tensor, dimensions of zero left out")
def _(n, make, write):
    # As it is not a size of a file, one of these dimensions is zero.
    open_checkpoint(write(make.gguf([], [make.tensor("t", [n, 0], 0, 0)])))


# ---- configuration ----


def validate(**changes):
    dataclasses.replace(TOY, **changes).validate()


@probe("configuration", "layers")
def _(n, make, write):
    validate(n_layers=n)


@probe("configuration", "experts of a layer")
def _(n, make, write):
    validate(n_experts=n, n_experts_used=1, d_expert_ffn=8)


@probe("configuration", "experts of all layers together")
def _(n, make, write):
    layers = n // 64 + (n % 64 > 0)
    validate(n_layers=layers, n_experts=64, n_experts_used=1, d_expert_ffn=8)


@probe("configuration", "values of a row: embedding, all heads together, feed-forward network")
def _(n, make, write):
    for change in (
        {"d_model": n},
        {"n_heads": n // 8 + (n % 8 > 0), "n_kv_heads": 1},
        {"n_heads": n // 8 + (n % 8 > 0), "n_kv_heads": n // 8 + (n % 8 > 0)},
        {"d_ffn": n},
        {"d_expert_ffn": n, "n_experts": 2, "n_experts_used": 1},
    ):
        validate(**change)


@probe("configuration", "tokens of the vocabulary")
def _(n, make, write):
    validate(n_vocab=n)


@probe("configuration", "positions of a context or a window")
def _(n, make, write):
    validate(windows=(n, None, 1, 1))
    validate(n_ctx_train=n)


@probe("configuration", "size of any integer")
def _(n, make, write):
    assert Keys({"k": n}, "m").integer("k") == n
    assert Keys({"k": -n}, "m").integer("k") == -n


@probe("configuration", "keys of an object")
def _(n, make, write):
    Keys(dict.fromkeys(map(str, range(n))), "config.json")


@probe("configuration", "values of an array")
def _(n, make, write):
    path = write(make.gguf([make.array("a.k", make.U8, n, bytes(n))]))
    with open_checkpoint(path) as checkpoint:
        assert Keys(checkpoint.metadata, "m", prefix="a.").get("k") == (0,) * n


OURS = [limit for limit in limits.LIMITS if limit.room in ROOMS]


def number_in(message, value):
    told = re.sub(r"/\S+", "", message).replace(",", "")  # without the path
    return re.search(rf"(?<!\d){value}(?!\d)", told) is not None


@pytest.mark.parametrize("limit", OURS, ids=lambda limit: f"{limit.room}: {limit.what}")
def test_each_limit_is_enforced(limit, make, write):
    read = PROBES[limit.room, limit.what]
    if not hasattr(read, "expensive"):
        read(limit.value, make, write)

    with pytest.raises((CheckpointError, UnsupportedModel)) as caught:
        read(limit.value + 1, make, write)
    message = str(caught.value)
    # The limit is told, or where it is one of many at once, what exceeds it.
    assert number_in(message, limit.value) or number_in(message, limit.value + 1), message
    assert len(message) < 2000


def test_every_probe_belongs_to_a_limit():
    assert PROBES.keys() == {(limit.room, limit.what) for limit in OURS}


def test_the_table_says_what_it_is_made_of():
    names = {name for name in vars(limits) if name.startswith("MAX_")}
    values = sorted(getattr(limits, name) for name in names)

    assert values == sorted(limit.value for limit in limits.LIMITS)
    assert all(limit.reason and limit.what and limit.room for limit in limits.LIMITS)


READERS = [
    *(PACKAGE / "files" / f"{name}.py" for name in (
        "checkpoint", "folder", "gguf", "gguf_values", "local", "mapped", "safetensors",
        "strict_json",
    )),
    *sorted((PACKAGE / "llm").glob("config*.py")),
]  # fmt: skip


@pytest.mark.parametrize("path", READERS, ids=lambda path: path.stem)
def test_readers_have_no_limits_of_their_own(path):
    """No constant of a module is named like a limit."""
    for node in ast.parse(path.read_text("utf-8")).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            name = getattr(target, "id", "")
            assert not re.search(r"(?i)(^|_)(max|most|limit|largest|longest|deepest)(_|$)", name), (
                f"{path.name} has {name}, which belongs to rml/files/limits.py"
            )


def test_digits_are_bounded_where_python_does_not(make):
    """Also where the program has removed Python's own limit."""
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        assert parse_json(b'{"a":' + b"9" * 4300 + b"}", "it")["a"] > 0
        with pytest.raises(CheckpointError, match="more than 4300 digits"):
            parse_json(b'{"a":' + b"9" * 4301 + b"}", "it")
    finally:
        sys.set_int_max_str_digits(before)


def test_depth_is_counted_outside_of_strings():
    brackets = "[{" * 500
    for text in (brackets, '\\"' + brackets, "\\\\", '\\\\\\"' + brackets, brackets + "\\\\"):
        document = f'{{"{text}": ["{text}", [["{text}"]], {{"a": {{}}}}]}}'.encode()
        assert parse_json(document, "it") == json.loads(document)
    # A bracket too many behind strings with closing ones is still one too many.
    deep = b'{"a":["]]]]]]",' + b"[" * 63 + b'"\\"]"' + b"]" * 63 + b"]}"
    with pytest.raises(CheckpointError, match="65 lists and objects in each other"):
        parse_json(deep, "it")


def test_depth_across_chunks():
    """Strings and brackets that span the pieces in which a document is looked through."""
    for pad in (262_000, 262_120, 262_144, 262_150):
        text = b'{"' + b"x" * pad + b'[[":' + b"[" * 63 + b'"]"' + b"]" * 63 + b"}"
        parse_json(text, "it")
        with pytest.raises(CheckpointError, match="65 lists"):
            parse_json(b'{"' + b"x" * pad + b'[[":' + b"[" * 64 + b'"]"' + b"]" * 64 + b"}", "it")


def test_a_raised_recursion_limit_is_no_hole():
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1_000_000)
    try:
        with pytest.raises(CheckpointError, match="nested too deeply"):
            parse_json(b'{"a":' * 400_000 + b"[" * 400_000, "it")
    finally:
        sys.setrecursionlimit(before)


# ---- what is refused costs nothing ----


@pytest.fixture
def peak():
    """`peak(function)`: most bytes of Python's that were in use while it was refused."""

    def measure(function):
        tracemalloc.start()
        try:
            with pytest.raises(CheckpointError):
                function()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    return measure


def test_a_refused_gguf_header_takes_no_memory(make, write, peak):
    empty = struct.pack("<IQ", make.U32, 0)
    files = {
        "arrays": make.gguf([make.array("k", make.ARRAY, 200_000, empty * 200_000)]),
        "keys": make.gguf([make.key("k", make.U8, b"\0")] * 100_000),
        "tensors": make.gguf([], [make.tensor("t", [0], 0, 0)] * 250_000),
        "deep": make.gguf(
            [make.array("k", make.ARRAY, 1, struct.pack("<IQ", make.ARRAY, 1) * 200_000)]
        ),
    }
    for name, data in files.items():
        path = write(data, f"{name}.gguf")
        assert peak(lambda path=path: open_checkpoint(path)) < 200_000, name


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":[' + b"[]," * 1_200_000 + b"1]}",
        b'{"a":[' + b"1," * 4_300_000 + b"1]}",
        b'{"a":[' + b'{"":0},' * 1_200_000 + b"1]}",
        b"[" * 2_000_000,
        b'{"a":' * 1_000_000,
    ],
    ids=["lists", "numbers", "objects", "deep lists", "deep objects"],
)
def test_refused_json_takes_no_memory(text, peak):
    assert peak(lambda: parse_json(text, "it")) < 5_000_000  # parsed: 60 MB and more


def test_few_strings_are_not_looked_for_in_large_blocks(make, write):
    """Thirty thousand arrays of one string are followed one by one."""
    one = struct.pack("<IQ", make.STRING, 1) + make.string("x")
    path = write(
        make.gguf([make.array("k", make.ARRAY, 30_000, one * 30_000)], data=bytes(1 << 20))
    )
    start = time.process_time()
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.metadata["k"][29_999].tolist() == ["x"]

    assert time.process_time() - start < 2  # it took 3 s


# ---- files beside the weights ----

ODD_FILES = {
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
    "endless": lambda path: path.symlink_to("/dev/zero"),
    "link to itself": lambda path: path.symlink_to(path),
    "link to nothing": lambda path: path.symlink_to("/nowhere"),
    "empty": Path.touch,
    "sparse": lambda path: (path.touch(), os.truncate(path, 10 << 30)),
    "zeros": lambda path: (path.touch(), os.truncate(path, 1 << 20)),
}


@pytest.mark.parametrize("kind", ODD_FILES)
@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "model.safetensors",
        "model.safetensors.index.json",
        "adapter_config.json",
    ],
)
def test_files_beside_the_weights_are_regular_and_bounded(tmp_path, name, kind):
    folder = shutil.copytree(FIXTURES / "llama" / "hf", tmp_path / "model")
    if name.startswith(("model", "adapter")):
        (folder / "model.safetensors").unlink()
    (folder / name).unlink(missing_ok=True)
    ODD_FILES[kind](folder / name)

    with pytest.raises((CheckpointError, rml.TokenizerError)) as caught:
        rml.load(folder)

    assert name in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("kind", ["header", "index"])
def test_tensors_are_counted_in_headers_and_indexes(make, write, kind):
    n = limits.MAX_TENSORS + 1
    if kind == "index":
        index = {"weight_map": {f"{i}": "m.safetensors" for i in range(n)}}
        path = write(json.dumps(index).encode(), "model.safetensors.index.json")
    else:
        entry = make.entry("F32", [0], 0, 0)
        path = write(make.safetensors({f"{i}": entry for i in range(n)}), "model.safetensors")

    with pytest.raises(CheckpointError, match=r"200,001 tensors; at most 200,000 are allowed"):
        open_checkpoint(path)


def test_files_of_an_index_are_counted(write):
    names = {f"{i}": f"{i}.safetensors" for i in range(limits.MAX_FILES + 1)}
    path = write(json.dumps({"weight_map": names}).encode(), "model.safetensors.index.json")

    with pytest.raises(CheckpointError, match=r"in 4,097 files; at most 4,096 are allowed"):
        open_checkpoint(path)


def test_tensors_of_all_parts_are_counted_together(make, write):
    half = limits.MAX_TENSORS // 2 + 1
    for number in range(2):
        keys = [
            make.key("split.no", make.U16, struct.pack("<H", number)),
            make.key("split.count", make.U16, struct.pack("<H", 2)),
            make.key("split.tensors.count", make.I32, struct.pack("<i", 2 * half)),
        ]
        table = [make.tensor(f"{number}.{i}", [0], 0, 0) for i in range(half)]
        write(make.gguf(keys, table), f"m-{number + 1:05d}-of-00002.gguf")

    with pytest.raises(CheckpointError, match=r"more than 200,000 tensors"):
        open_checkpoint(write(b"", "x").with_name("m-00001-of-00002.gguf"))
