"""A tokenizer.json from a stranger: what would take for ever, or all memory, ends with an error."""

import contextlib
import json
import time
from pathlib import Path

import pytest

import rml
from rml.errors import RmlError, TokenizerError
from rml.files.limits import MAX_PATTERN_CHARS, MAX_PATTERN_REPEATS, MAX_STEP_DEPTH, MAX_STEPS
from rml.tokenizers import patterns
from rml.tokenizers.patterns import compile_pattern

SOURCE = Path(__file__).resolve().parents[1] / "fixtures" / "llama" / "hf" / "tokenizer.json"


@pytest.fixture
def load(tmp_path):
    """`load(normalizer=...)`: the tokenizer of the fixture with other parts."""

    def loaded(**parts):
        document = json.loads(SOURCE.read_text(encoding="utf-8")) | parts
        (tmp_path / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
        return rml.load_tokenizer(tmp_path)

    return loaded


def split(pattern, behavior="Isolated", invert=False):
    return {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": behavior,
        "invert": invert,
    }


def replace(pattern, content, kind="String"):
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def sequence(kind, steps):
    return {"type": "Sequence", kind: steps}


# ---- time ----

ENDLESS = [
    (r"(?:a|aa)+$", "a" * 60 + "!"),
    (r"(a+)+$", "a" * 60 + "!"),
    (r"(?:a*)*b", "a" * 60),
    (r"(?:x+x+)+y", "x" * 60),
    (r"(?:a|a)*c", "a" * 60),
    (r"^(?:(?:a|b|ab)*)*c", "ab" * 40),
    (r"(?:\w+\s?)+\?$", "word " * 40 + "!"),
    (r"(?:a?){40}a{40}", "a" * 39),
    (r"(?=(?:a|aa)+$)a", "a" * 60 + "!"),
    (r"(?<=(?:a|aa)+)b!", "a" * 60 + "b"),
]


@pytest.fixture
def hurried(monkeypatch):
    """Patterns have less time, so that the tests have."""
    monkeypatch.setattr(patterns, "_SECONDS", 0.2)


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize(("pattern", "text"), ENDLESS)
@pytest.mark.parametrize("behavior", ["Isolated", "Removed", "MergedWithNext"])
def test_a_pattern_that_tries_for_ever(load, pattern, text, behavior):
    tokenizer = load(pre_tokenizer=split(pattern, behavior))
    began = time.monotonic()
    with contextlib.suppress(TokenizerError):  # some of them `regex` knows how to give up
        tokenizer.encode(text)
    assert time.monotonic() - began < 20
    tokenizer.encode("z")


@pytest.mark.usefixtures("hurried")
def test_some_of_them_do(load):
    with pytest.raises(TokenizerError, match=r"'\(\?:a\|aa\)\+\$' takes too long: .* 0.2 s"):
        load(pre_tokenizer=split(r"(?:a|aa)+$")).encode("a" * 60 + "!")
    with pytest.raises(TokenizerError, match="takes too long"):
        load(normalizer=replace(r"(?:a|aa)+$", "b", "Regex")).encode("a" * 60 + "!")


@pytest.mark.usefixtures("hurried")
def test_the_time_is_that_of_all_pieces_together(load):
    steps = [split(r"!"), split(r"(?:a|aa)+$")]
    tokenizer = load(pre_tokenizer=sequence("pretokenizers", steps))
    began = time.monotonic()
    with pytest.raises(TokenizerError, match="takes too long"):
        tokenizer.encode(("a" * 24 + "b!") * 2000)
    assert time.monotonic() - began < 20


def test_known_patterns_are_matched_without_a_clock():
    blanks = r"\s*[\r\n]+|\s+(?!\S)|\s+"
    words = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
    for source in (
        words + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + blanks,
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        r"\p{N}",
    ):
        known = compile_pattern(source, "here")
        assert known.known
        timed = compile_pattern(f"(?:{source})", "here")
        assert not timed.known
        text = "It's 12345 o'clock,  isn't it?\n\n ½ naïve"
        now = time.monotonic()
        assert known.split(text, now) == timed.split(text, now + 60)
        assert list(known.spans(text, now)) == list(timed.spans(text, now + 60))


# ---- size of patterns ----


@pytest.mark.parametrize(
    "pattern",
    [
        r"((a{1000}){1000}){1000}",
        r"(?:a{1000}){1000}",
        r"(?:(?:a{2,300}){300}b){5}",
        r"a{100001}",
        r"a{1,100001}",
        r"a{,100001}",
        r"a{99999,}",
        r"a{99999999999999999999}",
        r"a{1000}{1000}",
        r"a{1000}?{1000}",
        r"(?:[ab]{200}\)){200}",
        r"(" * 30 + "a" + "{3})" * 30,
    ],
)
def test_repeats_of_repeats(load, pattern):
    with pytest.raises(TokenizerError, match=rf"nested repeats .* {MAX_PATTERN_REPEATS:,} are"):
        load(pre_tokenizer=split(pattern))


@pytest.mark.parametrize(
    "pattern",
    [r"a{1000}b{1000}c{1000}", r"(?:a{100}){100}", r"\s{512}(?!\S)|\s{256}", r"\{9999999\}", "x{}"],
)
def test_repeats_side_by_side(load, pattern):
    load(pre_tokenizer=split(pattern)).encode("abc")


@pytest.mark.parametrize(
    "pattern",
    [
        "a" * (MAX_PATTERN_CHARS + 1),
        "|".join(f"w{i}" for i in range(20_000)),
        "(" * MAX_PATTERN_CHARS + ")" * MAX_PATTERN_CHARS,
    ],
)
def test_long_patterns(load, pattern):
    with pytest.raises(TokenizerError, match=rf"characters; {MAX_PATTERN_CHARS:,} are allowed"):
        load(pre_tokenizer=split(pattern))


@pytest.mark.parametrize(
    "pattern",
    ["(" * 9000 + "a" + ")" * 9000, "[" * 9000, "(?:" * 5000, "\\", "(?P<x", "(?<=a*b)c", "(?R)"],
)
def test_odd_patterns(load, pattern):
    with contextlib.suppress(RmlError):
        load(pre_tokenizer=split(pattern)).encode("abc")


# ---- growth ----


def test_a_text_that_grows_and_grows(load):
    steps = [replace("a", "aa")] * 40
    with pytest.raises(TokenizerError, match=r"Replace makes more than 10,0\d\d characters"):
        load(normalizer=sequence("normalizers", steps)).encode("a")


@pytest.mark.parametrize(
    "steps",
    [
        [replace("a", "b" * 1_000_000)],
        [replace("a", "b" * 20_000), replace("b", "a" * 20_000)],
        [replace("", "b" * 100_000)],
        [replace("a", "b" * 100_000, "Regex"), replace("[b]", "a" * 20_000, "Regex")],
        [replace("(?=.)", "x" * 1000, "Regex")] * 5,
        [replace("", "x" * 1000, "Regex")] * 5,
        [{"type": "Prepend", "prepend": "x" * 2_000_000}],
        [{"type": "Prepend", "prepend": "x" * 5000}] * 200,
    ],
)
def test_what_is_put_in(load, steps):
    tokenizer = load(normalizer=sequence("normalizers", steps))
    with pytest.raises(TokenizerError, match="makes more than"):
        tokenizer.encode("aaaa")


def test_letters_that_are_spelled_again_and_again(load):
    steps = [{"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}] * 60
    with pytest.raises(TokenizerError, match="the pre_tokenizer makes more than"):
        load(pre_tokenizer=sequence("pretokenizers", steps)).encode("é")


def test_what_unicode_makes_longer_is_right(load):
    steps = [{"type": form} for form in ("NFKD", "NFKC", "NFD", "NFC")]
    tokenizer = load(normalizer=sequence("normalizers", steps), model=bytes_only())
    tokenizer.encode("\ufdfa" * 10_000)  # 18 characters each


def bytes_only():
    return json.loads(SOURCE.read_text(encoding="utf-8"))["model"]


@pytest.mark.parametrize("n", [1, 40])
def test_a_decoder_that_makes_more_and_more(load, n):
    steps = [replace("q", "qq" if n > 1 else "q" * 1_000_000)] * n
    tokenizer = load(decoder=sequence("decoders", steps))
    token = next(i for i in range(tokenizer.n_vocab) if "q" in tokenizer._tokens[i])
    with pytest.raises(TokenizerError, match="makes more than"):
        tokenizer.decode([token])
    with pytest.raises(TokenizerError, match="makes more than"):
        tokenizer.stream_decoder().decode(token)


# ---- steps ----


@pytest.mark.parametrize(
    ("part", "inner", "step"),
    [
        ("normalizer", "normalizers", {"type": "NFC"}),
        ("pre_tokenizer", "pretokenizers", split("a")),
        ("decoder", "decoders", {"type": "Fuse"}),
    ],
)
def test_many_steps(load, part, inner, step):
    load(**{part: sequence(inner, [step] * MAX_STEPS)})
    with pytest.raises(TokenizerError, match=f"{part} has {MAX_STEPS + 1} steps"):
        load(**{part: sequence(inner, [step] * (MAX_STEPS + 1))})
    nested = step
    for _ in range(MAX_STEP_DEPTH):
        nested = sequence(inner, [nested])
    load(**{part: nested})
    with pytest.raises(TokenizerError, match=f"{part} has more than {MAX_STEP_DEPTH} sequences"):
        load(**{part: sequence(inner, [nested])})


@pytest.mark.parametrize("part", ["normalizer", "pre_tokenizer", "decoder", "post_processor"])
@pytest.mark.parametrize(
    "value",
    [
        5,
        "NFC",
        [],
        [{"type": "NFC"}],
        {"type": None},
        {"type": ["Sequence"]},
        {"type": "Sequence"},
        {"type": "Sequence", "normalizers": 5, "pretokenizers": {}, "decoders": "x"},
        {"type": "Replace"},
        {"type": "Replace", "pattern": 5, "content": 5},
        {"type": "Replace", "pattern": {"String": 5}, "content": "x"},
        {"type": "Replace", "pattern": {"Regex": "a"}, "content": None},
        {"type": "Replace", "pattern": {"String": "a"}, "content": 7},
        {"type": "Split", "pattern": {"Regex": ["a"]}, "behavior": "Isolated", "invert": 3},
        {"type": "Prepend", "prepend": ["x"]},
        {"type": "Strip", "content": 5, "start": "x", "stop": None},
        {"type": "Strip", "content": "x", "start": 10**30, "stop": -1},
        {"type": "Metaspace", "replacement": 5, "prepend_scheme": []},
        {"type": "TemplateProcessing", "single": 5, "pair": 5, "special_tokens": 5},
        {"type": "ByteLevel", "add_prefix_space": [], "trim_offsets": {}, "use_regex": "no"},
    ],
)
def test_parts_of_another_kind(load, part, value):
    with contextlib.suppress(RmlError):
        tokenizer = load(**{part: value})
        tokenizer.decode(tokenizer.encode("a b"))


# ---- ids ----


@pytest.mark.parametrize("ids", [["x"], [-1], [2**63], [1.0], [None], [True], [[1]], [10**6], 5])
def test_ids_of_a_post_processor(load, ids):
    template = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "s", "type_id": 0}}, {"Sequence": {"id": "A"}}],
        "pair": [],
        "special_tokens": {"s": {"id": "s", "ids": ids, "tokens": ["s"]}},
    }
    for part in (template, {"type": "Sequence", "processors": [template]}):
        with pytest.raises(TokenizerError):
            load(post_processor=part)


@pytest.mark.parametrize("kind", ["BertProcessing", "RobertaProcessing"])
@pytest.mark.parametrize("value", [["s", "x"], ["s", -1], ["s"], ["s", 10**6], 5, None])
def test_ids_of_the_older_post_processors(load, kind, value):
    right = ["</s>", 2]
    for more in ({"cls": value, "sep": right}, {"cls": right, "sep": value}):
        with pytest.raises(TokenizerError):
            load(post_processor={"type": kind} | more)
