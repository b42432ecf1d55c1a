"""tokenizer.json: every supported step against Hugging Face tokenizers, and the files beside it."""

import json
import shutil
import unicodedata

import pytest
import tokenizers
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rml.errors import CheckpointError, TokenizerError
from rml.tokenizers import Tokenizer, load_tokenizer
from rml.tokenizers.byte_level import BYTE_TO_CHAR
from rml.tokenizers.json_ends import Beside

MERGES = [("h", "e"), ("l", "l"), ("▁", "a"), ("Ġ", "a"), ("he", "ll"), ("Ġ", "Ġ"), ("▁", "▁"),
          ("1", "2"), ("hell", "o"), ("▁a", "▁a"), ("é", "é"), ("Ã", "©"), (".", ".")]  # fmt: skip
NOTHING = Beside(
    tokenizer_config={}, special_tokens_map={}, generation_config={}, config={}, templates={}
)
GPT4 = (
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}"
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
)


def vocabulary():
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    texts += dict.fromkeys([*(BYTE_TO_CHAR[b] for b in range(256)), "▁", "é", "你", "x́"])
    texts += [left + right for left, right in MERGES]
    return {text: i for i, text in enumerate(dict.fromkeys(texts))}


def added(text, special=True, **flags):
    vocab = vocabulary()
    token = {"id": vocab.get(text, len(vocab) + sum(map(ord, text))), "content": text}
    defaults = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return token | defaults | {"special": special} | flags


def document(**changes):
    model = {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
        "ignore_merges": False, "vocab": vocabulary(), "merges": [list(pair) for pair in MERGES],
    }  # fmt: skip
    model |= {key[6:]: changes.pop(key) for key in list(changes) if key.startswith("model_")}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
        "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None,
        "model": model,
    } | changes  # fmt: skip


def read(doc, **beside):
    files = {name: getattr(NOTHING, name) for name in NOTHING.__dataclass_fields__}
    return Tokenizer.from_json(doc, Beside(**files | beside))


def sequence(kind, *parts):
    return {"type": "Sequence", kind: list(parts)}


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False,
              "use_regex": True}  # fmt: skip
PLAIN_BYTES = BYTE_LEVEL | {"use_regex": False}


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


LLAMA = sequence(
    "normalizers",
    {"type": "Prepend", "prepend": "▁"},
    {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
)
PIECE_DECODER = sequence(
    "decoders",
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
    {"type": "Strip", "content": " ", "start": 1, "stop": 0},
)
NORMALIZERS = [
    None,
    *({"type": form} for form in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase")),
    {"type": "Strip", "strip_left": True, "strip_right": False},
    {"type": "Strip", "strip_left": False, "strip_right": True},
    {"type": "Replace", "pattern": {"Regex": "l+"}, "content": "L"},
    {"type": "Replace", "pattern": {"String": "."}, "content": "\\1"},
    {"type": "Replace", "pattern": {"Regex": "\\s+"}, "content": " "},
    LLAMA,
    sequence("normalizers", {"type": "NFC"}, LLAMA),
]
PRE_TOKENIZERS = [
    None,
    BYTE_LEVEL,
    PLAIN_BYTES,
    BYTE_LEVEL | {"add_prefix_space": True},
    sequence("pretokenizers", {"type": "Digits", "individual_digits": True}, BYTE_LEVEL),
    sequence("pretokenizers", {"type": "Digits", "individual_digits": False}, BYTE_LEVEL),
    sequence("pretokenizers", split(GPT4), PLAIN_BYTES),
    sequence(
        "pretokenizers",
        {"type": "Punctuation", "behavior": "Contiguous"},
        BYTE_LEVEL,
        split("[0-9][0-9][0-9]"),
    ),
    *(
        sequence("pretokenizers", split("[a-e ]", behavior, invert), PLAIN_BYTES)
        for behavior in
        ("Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous")
        for invert in (False, True)
    ),
    split(" ", "MergedWithPrevious", kind="String"),
    sequence("pretokenizers", split("(l)(l)"), split(" ?[^(\\s|[.,!?…。])]+"), PLAIN_BYTES),
    {"type": "Whitespace"},
    {"type": "WhitespaceSplit"},
    {"type": "Punctuation", "behavior": "Isolated"},
    *(
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": cut}
        for scheme in ("always", "first", "never")
        for cut in (True, False)
    ),
]  # fmt: skip
MODELS = [
    {},
    {"model_unk_token": "<unk>"},
    {"model_unk_token": "<unk>", "model_fuse_unk": True},
    {"model_byte_fallback": True},
    {"model_byte_fallback": True, "model_unk_token": "<unk>", "model_fuse_unk": True},
    {"model_ignore_merges": True},
    {"model_merges": [" ".join(pair) for pair in MERGES]},
    {"model_merges": [list(pair) for pair in (*MERGES, MERGES[0], MERGES[4])]},
]
TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [
        {"SpecialToken": {"id": "<s>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
        {"SpecialToken": {"id": "</s>", "type_id": 0}},
    ],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {
        "<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]},
        "</s>": {"id": "</s>", "ids": [2], "tokens": ["</s>"]},
    },
}
FLAGS = st.fixed_dictionaries(
    {name: st.booleans() for name in ("lstrip", "rstrip", "single_word", "normalized", "special")}
)
PIECES = st.sampled_from(
    ["hello", "he", "ll", " ", "  ", "\n", "a", "1", "12345", "é", "é", "你", "🦙", ".", "...",
     "<s>", "</s>", "<x>", "x", "_", "▁", "'s", "'S", "İ", "\u2003", "<", "A", "<0x0A>"]
)  # fmt: skip
TEXTS = st.one_of(
    st.lists(PIECES, max_size=8).map("".join),
    # Characters old enough for every table of Unicode at hand to agree on them.
    st.text(
        st.characters(exclude_categories=("Cs", "Co")).filter(
            lambda char: unicodedata.ucd_3_2_0.category(char) != "Cn"
        ),
        max_size=12,
    ),
)


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(NORMALIZERS),
    st.sampled_from(PRE_TOKENIZERS),
    st.sampled_from(MODELS),
    st.dictionaries(st.sampled_from(["<s>", "</s>", "<x>", "  ", "he"]), FLAGS, max_size=3),
    st.booleans(),
    TEXTS,
)
def test_ids_are_those_of_hugging_face(normalizer, pre_tokenizer, model, flags, ends, text):
    # A control token that merges make is never made here: text must not become one.
    for token, each in flags.items():
        each["special"] = each["special"] and token != "he"
        each["normalized"] = each["normalized"] and not (each["special"] and normalizer is None)
    # A name that ends a generation is a control token here, also if the file does not say so.
    assume("</s>" in flags or "</s>" not in text)
    # The reference takes a replaced beginning for a later place, and adds no first space there.
    moves = any(part in str(normalizer) for part in ("l+", "s+", "1", "'strip_left': True"))
    assume(not (moves and "'first'" in str(pre_tokenizer)))
    # A token that the normalizer empties makes the reference panic.
    assume(not ("  " in flags and (normalizer or {}).get("type") == "Strip"))
    doc = document(
        normalizer=normalizer,
        pre_tokenizer=pre_tokenizer,
        post_processor=TEMPLATE if ends else None,
        added_tokens=sorted(
            (added(token, **each) for token, each in flags.items()), key=lambda t: t["id"]
        ),
        **model,
    )
    reference = tokenizers.Tokenizer.from_str(json.dumps(doc))
    # The reference numbers tokens that its vocabulary lacks as it likes.
    for token in doc["added_tokens"]:
        token["id"] = reference.token_to_id(token["content"])

    assert read(doc).encode(text, True, True) == reference.encode(text).ids


# Steps that are refused by name


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"normalizer": {"type": "BertNormalizer"}}, "BertNormalizer"),
        ({"normalizer": {"type": "Precompiled"}}, "Precompiled"),
        ({"normalizer": sequence("normalizers", {"type": "Nmt"})}, "Nmt"),
        ({"pre_tokenizer": {"type": "BertPreTokenizer"}}, "BertPreTokenizer"),
        ({"pre_tokenizer": {"type": "UnicodeScripts"}}, "UnicodeScripts"),
        ({"pre_tokenizer": {"type": "Metaspace", "replacement": "_"}}, "Metaspace"),
        ({"pre_tokenizer": {"type": "Metaspace", "prepend_scheme": "odd"}}, "odd"),
        ({"pre_tokenizer": split("a", "Odd")}, "Odd"),
        ({"pre_tokenizer": split("(")}, "not valid"),
        ({"pre_tokenizer": split("\\h+")}, "Oniguruma"),
        ({"pre_tokenizer": {"type": "Split", "behavior": "Isolated"}}, "pattern"),
        ({"post_processor": {"type": "Odd"}}, "Odd"),
        ({"model_type": "Unigram"}, "Unigram"),
        ({"model_type": "WordPiece"}, "WordPiece"),
        ({"model_type": "WordLevel"}, "WordLevel"),
        ({"model_dropout": 0.1}, "dropout"),
        ({"model_end_of_word_suffix": "</w>"}, "end_of_word_suffix"),
        ({"model_continuing_subword_prefix": "##"}, "continuing_subword_prefix"),
    ],
)
def test_what_changes_ids_and_is_not_implemented(changes, name):
    with pytest.raises(TokenizerError, match=name):
        read(document(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"model": 3},
        {"model_vocab": None},
        {"model_vocab": {"a": "b"}},
        {"model_vocab": {"a": -1}},
        {"model_vocab": {"a": 1 << 40}},
        {"model_vocab": {}},
        {"model_merges": 7},
        {"model_merges": ["a b c"]},
        {"model_merges": [["a"]]},
        {"model_merges": [3]},
        {"added_tokens": [{"id": 1}]},
        {"added_tokens": [{"id": "a", "content": "b"}]},
        {"added_tokens": 5},
        {"normalizer": {"type": "Sequence"}},
        {"normalizer": "NFC"},
        {"pre_tokenizer": {"pretokenizers": []}},
        {"post_processor": {"type": "TemplateProcessing"}},
    ],
)
def test_broken_documents(changes):
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        read(document(**changes))


# Beside the tokenizer.json

SPECIALS = [added("<unk>"), added("<s>"), added("</s>"), added("<|im_end|>") | {"id": 600}]


@pytest.mark.parametrize(
    ("beside", "bos", "eos", "ends"),
    [
        ({}, 1, 2, [1, 2]),
        ({"tokenizer_config": {"bos_token": "<s>", "eos_token": "</s>"}}, 1, 2, [1, 2]),
        (
            {"tokenizer_config": {"bos_token": {"content": "<s>"}, "eos_token": None}},
            1, None, [1, 2],
        ),
        ({"tokenizer_config": {"bos_token": None}}, None, 2, [1, 2]),
        ({"tokenizer_config": {"add_bos_token": False}}, 1, 2, [2]),
        ({"tokenizer_config": {"add_eos_token": False}}, 1, 2, [1]),
        ({"tokenizer_config": {"add_bos_token": True, "add_eos_token": True}}, 1, 2, [1, 2]),
        ({"special_tokens_map": {"bos_token": "<unk>"}}, 0, 2, [1, 2]),
        ({"config": {"bos_token_id": 0, "eos_token_id": 600}}, 0, 600, [1, 2]),
        ({"generation_config": {"eos_token_id": [600, 2]}}, 1, 600, [1, 2]),
        (
            {"tokenizer_config": {"bos_token": None}, "config": {"bos_token_id": 1}},
            None, 2, [1, 2],
        ),
    ],
)  # fmt: skip
def test_beginning_and_end(beside, bos, eos, ends):
    tokenizer = read(document(added_tokens=SPECIALS, post_processor=TEMPLATE), **beside)

    assert (tokenizer.bos_id, tokenizer.eos_id) == (bos, eos)
    assert tokenizer.encode("") == ends
    assert tokenizer.encode("", add_special=False) == []


def test_no_beginning_without_one_named():
    tokenizer = read(document(added_tokens=SPECIALS), tokenizer_config={"add_bos_token": True})

    assert tokenizer.bos_id is None
    assert tokenizer.encode("") == []


def test_all_ends_of_a_generation():
    tokenizer = read(
        document(added_tokens=SPECIALS),
        tokenizer_config={"eos_token": "</s>"},
        generation_config={"eos_token_id": [5, 6]},
        config={"eos_token_id": 7, "text_config": {"eos_token_id": [8]}},
    )

    assert tokenizer.end_tokens == {
        2: ("tokenizer_config.json: eos_token", "its name"),
        5: ("generation_config.json: eos_token_id",),
        6: ("generation_config.json: eos_token_id",),
        7: ("config.json: eos_token_id",),
        8: ("config.json: text_config.eos_token_id",),
        600: ("its name",),
    }
    assert tokenizer.stop_ids == {2, 5, 6, 7, 8, 600}


@pytest.mark.parametrize("wrong", ["x", -1, [2, None], True, 2.0])
@pytest.mark.parametrize("file", ["generation_config", "config"])
def test_an_end_that_is_no_id_names_the_key(file, wrong):
    with pytest.raises(CheckpointError, match=rf"{file}\.json: eos_token_id=.* must be token ids"):
        read(document(added_tokens=SPECIALS), **{file: {"eos_token_id": wrong}})


def test_ids_beyond_the_vocabulary_are_left_out_with_a_reason(caplog):
    tokenizer = read(
        document(added_tokens=SPECIALS),
        generation_config={"eos_token_id": [2, 5000], "bos_token_id": 7000, "pad_token_id": 9000},
    )

    assert tokenizer.stop_ids == {2, 600}
    assert (tokenizer.bos_id, tokenizer.bos_token) == (None, None)
    assert "generation_config.json: eos_token_id names token 5000" in caplog.text
    assert "bos_token_id 7000" in caplog.text
    assert "9000" not in caplog.text  # nothing uses it


def test_an_end_that_is_no_control_token_becomes_one():
    """A name, and a key for a token that text cannot make."""
    tokens = [added("<|im_end|>", special=False) | {"id": 600},
              added("<end>", special=False) | {"id": 601}]  # fmt: skip
    tokenizer = read(document(added_tokens=tokens), generation_config={"eos_token_id": 601})

    assert tokenizer.stop_ids == {600, 601, 2}
    assert tokenizer.decode([600, 601]) == ""
    assert tokenizer.encode("<|im_end|><end>", False, True) == [600, 601]
    assert not {600, 601} & set(tokenizer.encode("<|im_end|><end>", False))


def test_an_end_that_text_is_made_of_stays_text():
    vocab = vocabulary()
    ends = [vocab["hello"], vocab["."], vocab["<0x0A>"]]
    tokenizer = read(
        document(decoder=PIECE_DECODER, normalizer=LLAMA, model_byte_fallback=True),
        generation_config={"eos_token_id": ends},
    )

    assert set(ends) <= tokenizer.stop_ids
    assert tokenizer.decode(tokenizer.encode("hello.\n")) == "hello.\n"
    assert set(ends) <= set(tokenizer.encode("hello.\n"))


def test_flags_of_tokenizer_config_count_more():
    decoder = {"600": {"content": "<|im_end|>", "special": True, "rstrip": True}}
    tokenizer = read(
        document(added_tokens=SPECIALS), tokenizer_config={"added_tokens_decoder": decoder}
    )

    assert tokenizer.encode("<|im_end|>  a", False, True) == [600, vocabulary()["a"]]


@pytest.mark.parametrize(
    ("config", "files", "names"),
    [
        ({}, {}, {}),
        ({"chat_template": "x"}, {}, {"default": "x"}),
        (
            {"chat_template": [{"name": n, "template": t} for n, t in (("default", "x"), ("a", "y"))]},  # noqa: E501
            {}, {"default": "x", "a": "y"},
        ),
        ({"chat_template": "x"}, {"default": "z", "a": "t"}, {"default": "z", "a": "t"}),
    ],
)  # fmt: skip
def test_chat_templates(config, files, names):
    tokenizer = read(document(), tokenizer_config=config, templates=files)

    assert tokenizer.chat_templates == names
    assert tokenizer.chat_template == names.get("default")


def test_chat_template_of_the_wrong_type():
    with pytest.raises(TokenizerError, match="template"):
        read(document(), tokenizer_config={"chat_template": 5})


# Ids, text and special tokens


def test_gaps_and_padding_have_no_text():
    tokenizer = read(document(added_tokens=[added("<x>") | {"id": 700}]))

    assert tokenizer.n_vocab == 701
    assert tokenizer.decode([650, 5000]) == ""
    assert any("650" in line or "no text" in line for line in tokenizer.check())


def test_the_last_merges_and_their_tokens_may_be_missing():
    doc = document(pre_tokenizer=BYTE_LEVEL, decoder=BYTE_LEVEL)
    for left, right in MERGES[-3:]:
        del doc["model"]["vocab"][left + right]
    tokenizer = read(doc)

    assert tokenizer.decode(tokenizer.encode("é .. hello")) == "é .. hello"
    assert any("merges" in line for line in tokenizer.check())


@given(TEXTS)
@pytest.mark.parametrize("normalizer", [None, LLAMA])
def test_round_trip(normalizer, text):
    assume("▁" not in text)
    kind = {"pre_tokenizer": BYTE_LEVEL, "decoder": BYTE_LEVEL}
    if normalizer:
        kind = {"normalizer": LLAMA, "model_byte_fallback": True, "decoder": PIECE_DECODER}
    tokenizer = read(document(**kind, added_tokens=[added("<x>", special=False)]))
    decoder = tokenizer.stream_decoder()
    ids = tokenizer.encode(text)

    assert tokenizer.decode(ids) == text
    assert "".join(decoder.decode([i]) for i in ids) + decoder.flush() == text


def test_text_that_looks_like_a_byte_token_stays_text():
    tokenizer = read(document(model_byte_fallback=True, normalizer=LLAMA, decoder=PIECE_DECODER))

    assert tokenizer.decode(tokenizer.encode("<0x0A>")) == "<0x0A>"
    assert vocabulary()["<0x0A>"] not in tokenizer.encode("<0x0A>")
    assert vocabulary()["<0x0A>"] in tokenizer.encode("\n")


def test_control_tokens_of_later_search_need_written_text():
    token = added("<s>", normalized=True)
    tokenizer = read(document(added_tokens=[token], normalizer={"type": "Lowercase"}))

    assert tokenizer.encode("<S>", False, True) == [1]
    assert 1 not in tokenizer.encode("<S>", False)
    assert tokenizer.encode_parts([("<S>", True)], False) == [1]
    assert 1 not in tokenizer.encode_parts([("<S>", False)], False)


# Folders


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "tokenizer.json").write_text(json.dumps(document(added_tokens=SPECIALS)))
    return tmp_path


def test_folder(folder):
    (folder / "tokenizer_config.json").write_text('{"bos_token": "<s>", "add_bos_token": true}')
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, 5]}')
    (folder / "chat_template.jinja").write_text("x")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "rag.jinja").write_bytes("\ufeffy".encode())

    for path in (folder, str(folder), folder / "tokenizer.json", folder / "model.safetensors"):
        tokenizer = load_tokenizer(path)

        assert tokenizer.encode("")[0] == 1
        assert tokenizer.stop_ids == {2, 5, 600}
        assert tokenizer.chat_templates == {"default": "x", "rag": "y"}


def test_the_order_of_template_files(folder):
    def templates():
        return load_tokenizer(folder).chat_templates

    def named(source):
        tool_use = {"name": "tool_use", "template": "t"}
        default = {"name": "default", "template": source}
        return json.dumps({"chat_template": [tool_use, default]})

    processor, config = folder / "chat_template.json", folder / "tokenizer_config.json"
    processor.write_text('{"chat_template": "processor"}')
    assert templates() == {"default": "processor"}
    processor.write_text(named("processor"))
    assert templates() == {"default": "processor", "tool_use": "t"}
    config.write_text(named("config"))
    assert templates() == {"default": "config", "tool_use": "t"}
    config.write_text('{"chat_template": null}')
    assert templates() == {"default": "processor", "tool_use": "t"}
    (folder / "chat_template.jinja").write_bytes(b"\xef\xbb\xbfjinja")
    assert templates() == {"default": "jinja", "tool_use": "t"}
    assert load_tokenizer(folder).chat_template == "jinja"


@pytest.mark.parametrize("name", ["tokenizer.model", "vocab.json", None])
def test_folder_without_a_readable_tokenizer(tmp_path, name):
    if name:
        (tmp_path / name).write_bytes(b"x")

    with pytest.raises(TokenizerError, match="save_pretrained" if name else "no tokenizer"):
        load_tokenizer(tmp_path)


def test_broken_json(folder):
    (folder / "tokenizer.json").write_text("{")

    with pytest.raises(CheckpointError, match="JSON"):
        load_tokenizer(folder)


def test_broken_template_file(folder):
    (folder / "chat_template.jinja").write_bytes(b"\xff")

    with pytest.raises(CheckpointError, match="UTF-8"):
        load_tokenizer(folder)


# The case bank


TINY = [
    "gemma3-linear", "llama-rope-llama3", "llama-untied", "mistral-nemo-headdim",
    "qwen2-bias-tied", "qwen3moe", "smollm3-nope",
]  # fmt: skip


@pytest.mark.parametrize("name", TINY)
def test_bank_vectors_and_both_formats(cases_dir, name):
    base = cases_dir / "tiny" / name
    ours, gguf = load_tokenizer(base / "hf"), load_tokenizer(base / "model.gguf")
    reference = tokenizers.Tokenizer.from_file(str(base / "hf" / "tokenizer.json"))
    vectors = json.loads((base / "expected.json").read_text())["tokenizer_vectors"]

    assert [ours.encode(v["text"], False) for v in vectors] == [v["ids"] for v in vectors]
    for text in ("Hello the and", "a <|im_end|> b", "héllo\n\n  wörld 🦙 </s> x", "", " "):
        assert ours.encode(text, True, True) == reference.encode(text).ids
        assert gguf.encode(text, False, True) == ours.encode(text, False, True)


def test_bug_b20_rows_without_tokens(cases_dir, tmp_path):
    folder = shutil.copytree(cases_dir / "tiny" / "qwen2-bias-tied" / "hf", tmp_path / "hf")
    doc = json.loads((folder / "tokenizer.json").read_text())
    for merge in doc["model"]["merges"][-5:]:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        del doc["model"]["vocab"][left + right]
    del doc["model"]["merges"][-5:]
    (folder / "tokenizer.json").chmod(0o644)
    (folder / "tokenizer.json").write_text(json.dumps(doc))
    tokenizer = load_tokenizer(folder)
    gaps = [i for i in range(288) if not tokenizer.token_bytes(i)]

    assert len(gaps) == 5
    assert tokenizer.decode([*gaps, 287, 288, 10**6]) == ""
    assert tokenizer.decode(tokenizer.encode("Hello the and")) == "Hello the and"
