"""Every part of the tokenizer.json format: read, harmless, or refused by name."""

import pytest

from rml.errors import TokenizerError
from rml.tokenizers.json_ends import Beside
from rml.tokenizers.json_keys import KEYS
from rml.tokenizers.tokenizer import Tokenizer

NOTHING = Beside(
    tokenizer_config={}, special_tokens_map={}, generation_config={}, config={}, templates={}
)
PATTERN = {"String": "x"}

# What Hugging Face tokenizers 0.23 can write: part -> kind -> keys besides the type.
FORMAT = {
    "normalizer": {
        "Sequence": "normalizers", "NFC": "", "NFD": "", "NFKC": "", "NFKD": "", "Lowercase": "",
        "Strip": "strip_left strip_right", "Prepend": "prepend", "Replace": "pattern content",
        "BertNormalizer": "clean_text handle_chinese_chars strip_accents lowercase",
        "ByteLevel": "", "Nmt": "", "Precompiled": "precompiled_charsmap", "StripAccents": "",
    },
    "pre_tokenizer": {
        "Sequence": "pretokenizers", "ByteLevel": "add_prefix_space trim_offsets use_regex",
        "Split": "pattern behavior invert", "Digits": "individual_digits",
        "Punctuation": "behavior", "Whitespace": "", "WhitespaceSplit": "",
        "Metaspace": "replacement prepend_scheme split add_prefix_space str_rep",
        "BertPreTokenizer": "", "CharDelimiterSplit": "delimiter", "FixedLength": "length",
        "UnicodeScripts": "",
    },
    "post_processor": {
        "Sequence": "processors", "ByteLevel": "add_prefix_space trim_offsets use_regex",
        "TemplateProcessing": "single pair special_tokens", "BertProcessing": "sep cls",
        "RobertaProcessing": "sep cls trim_offsets add_prefix_space",
    },
    "decoder": {
        "Sequence": "decoders", "ByteLevel": "add_prefix_space trim_offsets use_regex",
        "ByteFallback": "", "Fuse": "", "Replace": "pattern content",
        "Metaspace": "replacement prepend_scheme split add_prefix_space str_rep",
        "Strip": "content start stop", "WordPiece": "prefix cleanup",
        "BPEDecoder": "suffix", "CTC": "pad_token word_delimiter_token cleanup",
    },
    "model": {
        "BPE": "dropout unk_token continuing_subword_prefix end_of_word_suffix fuse_unk"
               " byte_fallback ignore_merges vocab merges",
        "Unigram": "unk_id vocab byte_fallback", "WordLevel": "vocab unk_token",
        "WordPiece": "unk_token continuing_subword_prefix max_input_chars_per_word vocab",
    },
}  # fmt: skip
REFUSED = {
    "normalizer": {"BertNormalizer", "ByteLevel", "Nmt", "Precompiled", "StripAccents"},
    "pre_tokenizer": {"BertPreTokenizer", "CharDelimiterSplit", "FixedLength", "UnicodeScripts"},
    "post_processor": set(),
    "decoder": {"BPEDecoder", "CTC"},
    "model": {"Unigram", "WordLevel", "WordPiece"},
}
# A sound value of each key.
VALUES = {
    "normalizers": [], "strip_left": True, "strip_right": True, "prepend": "x", "pattern": PATTERN,
    "content": "y", "pretokenizers": [], "add_prefix_space": False, "trim_offsets": True,
    "use_regex": True, "behavior": "Isolated", "invert": False, "individual_digits": True,
    "replacement": "▁", "prepend_scheme": "never", "split": True, "str_rep": "▁",
    "processors": [], "single": [{"Sequence": {"id": "A", "type_id": 0}}], "pair": [],
    "special_tokens": {}, "sep": ["a", 0], "cls": ["a", 0], "decoders": [], "start": 0, "stop": 0,
    "prefix": "##", "cleanup": True,
}  # fmt: skip


def document(**changes):
    model = {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
        "ignore_merges": False, "vocab": {"a": 0, "b": 1}, "merges": [],
    }  # fmt: skip
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
        "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None,
        "model": model,
    } | changes  # fmt: skip


def read(**changes):
    return Tokenizer.from_json(document(**changes), NOTHING)


def spec_of(part, kind, **changes):
    keys = FORMAT[part][kind].split()
    content = {"content": "-"} if (part, kind) == ("decoder", "Strip") else {}
    values = {key: VALUES[key] for key in keys} | content
    return {"type": kind} | values | changes


def pairs(wanted):
    return [
        (part, kind)
        for part, kinds in FORMAT.items()
        for kind in kinds
        if part != "model" and (kind in REFUSED[part]) != wanted
    ]


def test_the_table_is_the_format_without_what_is_refused():
    for part, kinds in FORMAT.items():
        assert KEYS[part].keys() == kinds.keys() - REFUSED[part]
        for kind, keys in KEYS[part].items():
            assert keys.keys() == set(kinds[kind].split())


@pytest.mark.parametrize(("part", "kind"), pairs(True))
def test_what_is_read(part, kind):
    read(**{part: spec_of(part, kind)})


@pytest.mark.parametrize(("part", "kind"), pairs(False))
def test_what_is_refused_by_name(part, kind):
    with pytest.raises(TokenizerError, match=f"{part} '{kind}' is not implemented"):
        read(**{part: {"type": kind}})


@pytest.mark.parametrize("kind", sorted(REFUSED["model"]))
def test_models_that_are_refused_by_name(kind):
    with pytest.raises(TokenizerError, match=kind):
        read(model={"type": kind, "vocab": {}})


@pytest.mark.parametrize(("part", "kind"), pairs(True))
def test_a_key_that_nobody_reads(part, kind):
    for harmless in (None, False, "", [], {}):
        read(**{part: spec_of(part, kind, novel=harmless)})
    for value in (True, 1, "x", [0], {"a": None}):
        with pytest.raises(TokenizerError, match=f"the {part} {kind} has a key 'novel'"):
            read(**{part: spec_of(part, kind, novel=value)})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"novel": 1}, "document tokenizer.json has a key 'novel'"),
        ({"added_tokens": [{"id": 0, "content": "a", "novel": 1}]}, "added token .* key 'novel'"),
        ({"added_tokens": [{"id": 0, "content": "a", "special": "yes"}]}, "special .*true or fal"),
        ({"model": document()["model"] | {"novel": 1}}, "model BPE has a key 'novel'"),
        ({"model": document()["model"] | {"dropout": 0.5}}, "dropout"),
        ({"model": document()["model"] | {"fuse_unk": "no"}}, "fuse_unk .*true or false or null"),
        ({"model": document()["model"] | {"unk_token": 3}}, "unk_token .*a text or null"),
        ({"normalizer": spec_of("normalizer", "Strip", strip_left=1)}, "strip_left .*true or"),
        ({"pre_tokenizer": spec_of("pre_tokenizer", "Digits", individual_digits=None)}, "digits"),
    ],
)  # fmt: skip
def test_keys_and_types_of_the_rest(changes, message):
    with pytest.raises(TokenizerError, match=message):
        read(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"version": "2.0"},
        {"truncation": {"direction": "Right", "max_length": 1, "strategy": "LongestFirst"}},
        {"padding": {"strategy": {"Fixed": 9}, "pad_id": 900, "pad_token": "[PAD]"}},
        {"model": document()["model"] | {"dropout": 0.0, "continuing_subword_prefix": "",
                                         "end_of_word_suffix": "", "fuse_unk": None}},
    ],
)  # fmt: skip
def test_what_is_harmless(changes):
    assert read(**changes).encode("ab") == [0, 1]


def test_a_text_that_is_put_there_twice_is_refused():
    text = {"Sequence": {"id": "A", "type_id": 0}}
    for single in ([text, text], [{"Sequence": {"id": "B", "type_id": 0}}]):
        with pytest.raises(TokenizerError, match="one text once"):
            read(post_processor=spec_of("post_processor", "TemplateProcessing", single=single))
