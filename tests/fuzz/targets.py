"""What is fuzzed: for each target sound inputs, how they are changed, and what must hold.

An input is right where rml refuses it with an error of its own, and where it takes it and all that
follows holds. Everything else is a finding: another error, a death, more memory or time than the
driver allows.
"""

import copy
import json
import os
import shutil
import struct
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import mutations
import numpy as np

import rml
from rml.errors import RmlError

__all__ = ["TARGETS", "Target"]

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
LLAMA = FIXTURES / "llama" / "model.gguf"
TEXTS = ["", "Hello, world!", "a" * 50, "naïve ½ \x00 你好\n\n\t x", "<s></s><unk>", "\ud800"]


@dataclass(frozen=True, slots=True)
class Target:
    """One kind of input.

    Attributes
    ----------
    seeds : callable
        Returns sound inputs.
    change : callable
        ``change(rng, data)`` makes another input of one.
    check : callable
        ``check(data, folder)`` gives it to rml; an `RmlError` is fine.
    """

    seeds: Callable[[], list[bytes]]
    change: Callable[[Random, bytes], bytes]
    check: Callable[[bytes, Path], None]


def _written(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def _use(model: rml.Model) -> None:
    """Have a model do what models do."""
    with model:
        reply = model.generate([1, 5, 7], max_tokens=2, temperature=0)
        assert len(reply.token_ids) <= 2
        assert all(0 <= i < model.config.n_vocab for i in reply.token_ids)
        str(model.plan())


def _read_tensors(path: Path) -> None:
    size = path.stat().st_size
    with rml.open_checkpoint(path) as checkpoint:
        for tensor in checkpoint.tensors.values():
            assert 0 <= tensor.n_bytes <= size
            assert len(tensor.data) == tensor.n_bytes
            try:
                array = tensor.numpy()
            except RmlError:
                continue
            assert array.shape == tensor.shape


# ---- files of weights ----


def _gguf_seeds() -> list[bytes]:
    return [(FIXTURES / "llama" / f"model{kind}.gguf").read_bytes() for kind in ("", "-q4_0")]


def _change_gguf(rng: Random, data: bytes) -> bytes:
    with rml.open_checkpoint(LLAMA) as checkpoint:
        header = min(tensor.start for tensor in checkpoint.tensors.values())
    return mutations.changed_bytes(rng, data, header)


def _check_gguf(data: bytes, folder: Path) -> None:
    path = _written(folder, "model.gguf", data)
    _read_tensors(path)
    _use(rml.load(path, n_threads=1, n_ctx=32))


def _safetensors_seeds() -> list[bytes]:
    return [(FIXTURES / "llama" / "hf" / "model.safetensors").read_bytes()]


def _change_safetensors(rng: Random, data: bytes) -> bytes:
    n = int.from_bytes(data[:8], "little")
    if rng.random() < 0.4:
        return mutations.changed_bytes(rng, data, 8 + n)
    header = mutations.changed_json(rng, data[8 : 8 + n])
    return struct.pack("<Q", len(header)) + header + data[8 + n :]


def _check_safetensors(data: bytes, folder: Path) -> None:
    _read_tensors(_written(folder, "model.safetensors", data))


# ---- folders: a document that says which file it is, and what is in it ----

_DOCUMENTS = ("config.json", "tokenizer_config.json", "generation_config.json")
_MORE = {"generation_config.json": b'{"eos_token_id": [2, 3], "bos_token_id": 1, "top_k": 5}'}


def _folder_seeds() -> list[bytes]:
    """Each begins with the name of the document and a zero."""
    folder = FIXTURES / "llama" / "hf"
    documents = {name: (folder / name).read_bytes() for name in _DOCUMENTS if name not in _MORE}
    return [name.encode() + b"\0" + data for name, data in (documents | _MORE).items()]


def _change_folder(rng: Random, data: bytes) -> bytes:
    name, _, content = data.partition(b"\0")
    return name + b"\0" + mutations.changed_json(rng, content)


def _check_folder(data: bytes, folder: Path) -> None:
    shutil.copytree(FIXTURES / "llama" / "hf", folder, dirs_exist_ok=True)
    name, _, content = data.partition(b"\0")
    _written(folder, name.decode(), content)
    _use(rml.load(folder, n_threads=1, n_ctx=32))


# ---- tokenizers ----


def _tokenizer_seeds() -> list[bytes]:
    families = ("llama", "qwen2", "gemma3_text")
    paths = [FIXTURES / family / "hf" / "tokenizer.json" for family in families]
    rich = json.loads(paths[0].read_bytes()) | {
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
                {"type": "NFKC"},
                {"type": "Replace", "pattern": {"Regex": "a+"}, "content": "b"},
            ],
        },
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {
                    "type": "Split",
                    "pattern": {"Regex": r"\p{N}{1,3}| ?\p{L}+|\s+"},
                    "behavior": "Isolated",
                    "invert": False,
                },
                {"type": "Digits", "individual_digits": True},
                {"type": "Punctuation"},
            ],
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": "<s>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
            ],
            "pair": [],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
    }
    return [*(path.read_bytes() for path in paths if path.exists()), json.dumps(rich).encode()]


def _check_tokenizer(data: bytes, folder: Path) -> None:
    tokenizer = rml.load_tokenizer(_written(folder, "tokenizer.json", data).parent)
    for text in TEXTS:
        try:
            ids = tokenizer.encode(text)
            assert all(0 <= i < tokenizer.n_vocab for i in ids)
            assert isinstance(tokenizer.decode(ids), str)
        except RmlError:
            pass
    tokenizer.decode(range(tokenizer.n_vocab))
    assert tokenizer.bos_token is None or isinstance(tokenizer.bos_token, str)
    assert tokenizer.eos_token is None or isinstance(tokenizer.eos_token, str)
    assert all(0 <= i < tokenizer.n_vocab for i in tokenizer.stop_ids)
    tokenizer.check()


# ---- templates ----

_TEMPLATE = b"""{%- if tools %}{{ tools | tojson(indent=4) }}{%- endif %}
{%- for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}
{%- if message.content is string %}{{ message.content | trim }}
{%- else %}{%- for part in message.content %}{{ part['text'] }}{%- endfor %}{%- endif %}
{{- '<|im_end|>\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"""


def _check_template(data: bytes, _: Path) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hi" * 50}]},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "Bye " * 100},
    ]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    before = copy.deepcopy((messages, tools))
    try:
        text = rml.ChatTemplate(data.decode("utf-8", "surrogatepass")).render(messages, tools=tools)
        assert isinstance(text, str)
    except UnicodeDecodeError:
        return
    finally:
        assert (messages, tools) == before


# ---- sessions ----


def _session_seeds() -> list[bytes]:
    path = Path(os.environ.get("TMPDIR", "/tmp")) / f"rml-fuzz-{os.getpid()}.session"
    with rml.load(LLAMA, n_threads=1) as model, model.session() as session:
        session.forward(list(range(5, 28)))
        session.save(path)
    data = path.read_bytes()
    path.unlink()
    return [data]


def _change_session(rng: Random, data: bytes) -> bytes:
    """Mostly with a digest that agrees, so that what comes before it is looked at."""
    import hashlib

    n = int.from_bytes(data[12:16], "little")
    body = data[:-32]
    if rng.random() < 0.5:
        header = mutations.changed_json(rng, body[16 : 16 + n])
        body = body[:12] + struct.pack("<I", len(header)) + header + body[16 + n :]
    else:
        body = mutations.changed_bytes(rng, body, 16 + n)
    if rng.random() < 0.1:
        return mutations.changed_bytes(rng, body + hashlib.sha256(body).digest())
    return body + hashlib.sha256(body).digest()


_model: list[rml.Model] = []


def _loaded() -> rml.Model:
    if not _model:
        _model.append(rml.load(LLAMA, n_threads=1))
    return _model[0]


def _check_session(data: bytes, folder: Path) -> None:
    model = _loaded()
    with model.load_session(_written(folder, "session", data)) as session:
        logits = session.forward([7])
        assert logits.shape == (model.config.n_vocab,)
        assert session.position == len(session.tokens)


# ---- options ----

_OPTIONS = (
    *("max_tokens", "temperature", "top_k", "top_p", "min_p", "typical_p", "repeat_penalty"),
    *("repeat_last_n", "presence_penalty", "frequency_penalty", "dry_multiplier", "dry_base"),
    *("dry_allowed_length", "xtc_probability", "xtc_threshold", "top_n_sigma", "seed", "stop"),
    *("stop_ids", "n", "echo", "logprobs", "logit_bias", "mask", "ignore_eos", "samplers"),
    *("progress", "truncate", "session", "parse_special", "prefix_cache", "suppress_tokens"),
    "no_such_option",
)


def _change_options(rng: Random, _: bytes) -> bytes:
    options = {
        rng.choice(_OPTIONS): mutations.nasty_value(rng) for _ in range(rng.choice([1, 1, 2, 3]))
    }
    return json.dumps(options).encode("utf-8", "surrogatepass")


def _check_options(data: bytes, _: Path) -> None:
    options = json.loads(data)
    # A long answer, or many, are no fault.
    options["max_tokens"] = options.get("max_tokens", 3)
    if isinstance(options.get("n"), int):
        options["n"] = min(options["n"], 20)
    try:
        _loaded().generate([1, 5, 7], **options)
    except TypeError as error:
        assert "unexpected keyword argument" in str(error)  # noqa: PT017
    assert len(_loaded().generate([1, 5], max_tokens=2, ignore_eos=True).token_ids) == 2


TARGETS = {
    "gguf": Target(_gguf_seeds, _change_gguf, _check_gguf),
    "safetensors": Target(_safetensors_seeds, _change_safetensors, _check_safetensors),
    "folder": Target(_folder_seeds, _change_folder, _check_folder),
    "tokenizer": Target(_tokenizer_seeds, mutations.changed_json, _check_tokenizer),
    "template": Target(lambda: [_TEMPLATE], mutations.changed_template, _check_template),
    "session": Target(_session_seeds, _change_session, _check_session),
    "options": Target(lambda: [b"{}"], _change_options, _check_options),
}

warnings.simplefilter("ignore")
np.seterr(all="ignore")
