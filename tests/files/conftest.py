"""Writers of small GGUF and safetensors files, good and bad, byte by byte.

They share nothing with the readers: each test says in bytes what the format's text says in words.
"""

import json
import struct
from types import SimpleNamespace

import pytest

# Value types of the GGUF format.
U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)


def string(text):
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def key(name, type_id, value):
    """A metadata entry; `value` is its bytes."""
    return string(name) + struct.pack("<I", type_id) + value


def text(name, value):
    return key(name, STRING, string(value))


def u32(name, value):
    return key(name, U32, struct.pack("<I", value))


def array(name, element, count, data):
    return key(name, ARRAY, struct.pack("<IQ", element, count) + data)


def tensor(name, dims, type_id, offset):
    """An entry of the tensor table; `dims` innermost first, as in the file."""
    return (
        string(name)
        + struct.pack("<I", len(dims))
        + struct.pack(f"<{len(dims)}Q", *dims)
        + struct.pack("<IQ", type_id, offset)
    )


def gguf(keys=(), tensors=(), data=b"", *, version=3, alignment=32, n_tensors=None, n_keys=None):
    """A GGUF file; counts are those of the lists unless given."""
    head = b"GGUF" + struct.pack(
        "<IQQ",
        version,
        len(tensors) if n_tensors is None else n_tensors,
        len(keys) if n_keys is None else n_keys,
    )
    head += b"".join(keys) + b"".join(tensors)
    return head + bytes(-len(head) % alignment) * bool(data) + data


def safetensors(header, data=b"", *, length=None):
    """A safetensors file; `header` is bytes or something for JSON."""
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(head) if length is None else length) + head + data


def entry(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.fixture(scope="session")
def make():
    """The writers and the numbers of the value types."""
    return SimpleNamespace(**{k: v for k, v in globals().items() if not k.startswith("_")})


@pytest.fixture
def write(tmp_path):
    """Write bytes to a file in a fresh folder and return its path."""

    def _write(data, name="model.gguf"):
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return _write
