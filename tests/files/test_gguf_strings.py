"""Arrays of strings: found quickly, decoded late, equal to reading them one by one."""

import struct
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rml.errors import CheckpointError
from rml.files import open_checkpoint
from rml.files.gguf_values import StringArray

# Everything that can mislead the search for where strings begin: zero bytes, empty strings,
# lengths around 256 and 65536, text that looks like a length.
TRICKY = [
    b"",
    b"\0" * 7,
    b"\0" * 300,
    b"\x05" + b"\0" * 7 + b"hello",
    b"x" * 255,
    b"x" * 256,
    b"x" * 257,
    struct.pack("<Q", 3) + b"abc",
    b"y" * 65_536,
    b"y" * 65_535,
    "Grüße 🙂".encode(),
    b"\xe2\x96",
    b"\xff",
]


def read_array(make, write, strings):
    data = b"".join(map(make.string, strings))
    path = write(make.gguf([make.array("s", make.STRING, len(strings), data), make.u32("end", 7)]))
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.metadata["end"] == 7
        return checkpoint.metadata["s"]


def test_a_sequence_of_str(make, write):
    words = read_array(make, write, [b"a", b"bc", b"", b"d"])

    assert isinstance(words, StringArray)
    assert len(words) == 4
    assert (words[0], words[1], words[-1]) == ("a", "bc", "d")
    assert words[1:] == ["bc", "", "d"]
    assert words[::-2] == ["d", "bc"]
    assert list(words) == ["a", "bc", "", "d"] == words.tolist()
    assert "bc" in words
    assert "c" not in words
    assert words.index("d") == 3
    assert words == ["a", "bc", "", "d"]
    assert words != ("a", "bc", "", "d")  # as for a list
    assert words != ["a", "bc", "", "e"]
    assert words != ["a"]
    assert words != "abcd"
    assert words == read_array(make, write, [b"a", b"bc", b"", b"d"])
    assert words != read_array(make, write, [b"a", b"bc", b"d", b""])
    assert hash(words) == hash(read_array(make, write, [b"a", b"bc", b"", b"d"]))
    assert repr(words) == "<StringArray of 4 strings>"
    with pytest.raises(IndexError):
        words[4]
    with pytest.raises(IndexError):
        words[-5]


def test_it_outlives_the_checkpoint(make, write):
    assert read_array(make, write, [b"still", b"here"]).tolist() == ["still", "here"]


@pytest.mark.parametrize("n", [0, 1, 2, 1000, 20_000])
def test_many_equal_strings(make, write, n):
    assert read_array(make, write, [b"token"] * n) == ["token"] * n


@pytest.mark.parametrize("repeat", [1, 30])
def test_strings_that_mislead(make, write, repeat):
    strings = TRICKY * repeat + TRICKY[::-1] * repeat

    words = read_array(make, write, strings)

    assert [word.encode("utf-8", "surrogateescape") for word in words] == strings


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.one_of(st.binary(max_size=12), st.sampled_from(TRICKY)), max_size=60))
def test_any_strings(make, write, strings):
    words = read_array(make, write, strings)

    assert [word.encode("utf-8", "surrogateescape") for word in words] == strings


@pytest.mark.parametrize("long_at", [0, 500, 999])
@pytest.mark.parametrize("length", [40, 300, 2**16, 2**40, 2**64 - 1])
def test_a_string_past_the_end(make, write, long_at, length):
    strings = [make.string(b"token")] * 1000
    strings[long_at] = struct.pack("<Q", length)
    data = b"".join(strings[: long_at + 1]) + bytes(39 if length == 40 else 0)
    path = write(make.gguf([make.array("s", make.STRING, 1000, data.ljust(8000, b"\xff"))]))

    with pytest.raises(CheckpointError, match="'s'"):
        open_checkpoint(path)


@pytest.mark.parametrize("string", [b"", b"\0" * 9, b"x" * 256], ids=["empty", "zeros", "long"])
def test_strings_without_a_short_cut_take_linear_time(make, write, string):
    n = 200_000 // (1 + len(string) // 8)

    def seconds(count):
        path = write(make.gguf([make.array("s", make.STRING, count, make.string(string) * count)]))
        start = time.perf_counter()
        open_checkpoint(path).close()
        return time.perf_counter() - start

    assert min(seconds(n) for _ in range(3)) < 2.0
