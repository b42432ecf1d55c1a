"""The vocabulary of the toy models: every byte has an id, so any text can be encoded.

Ids 0 to 2 are control tokens, 3 to 258 the bytes (in the order GPT-2 lists them), 259 to 287 are
merges of common English letters. The splitting rule is SmolLM's: single digits, then GPT-2's.
"""

import json
from pathlib import Path

from gguf import GGUFWriter, TokenType

__all__ = ["BOS", "CHAT_TEMPLATE", "EOS", "TOKENS", "write_gguf_tokenizer", "write_hf_tokenizer"]

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
BOS, EOS = 1, 2

# How GPT-2's byte-level BPE writes a byte: itself where it is a visible Latin-1 character, else a
# character from 256 on (Radford et al. 2019). A space becomes Ġ.
VISIBLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
HIDDEN = [byte for byte in range(256) if byte not in VISIBLE]
BYTES = [*(chr(byte) for byte in VISIBLE), *(chr(256 + i) for i in range(len(HIDDEN)))]

MERGES = (
    *("h e", "Ġ t", "i n", "e r", "a n", "Ġ a", "o n", "r e", "Ġt he", "Ġ s", "Ġ w", "Ġ o"),
    *("e n", "a t", "o r", "an d", "i s", "i t", "e s", "Ġ c", "in g", "Ġ f", "Ġ p", "o u"),
    *("Ġ b", "a l", "Ġ m", "Ġ and", "l l"),
)
TOKENS = [*CONTROL, *BYTES, *(merge.replace(" ", "") for merge in MERGES)]

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def write_gguf_tokenizer(writer: GGUFWriter) -> None:
    """Add the tokenizer's keys to a GGUF file."""
    kinds = [TokenType.CONTROL] * len(CONTROL)
    kinds += [TokenType.NORMAL] * (len(TOKENS) - len(CONTROL))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types(kinds)
    writer.add_token_merges(list(MERGES))
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def write_hf_tokenizer(folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json."""
    splitter = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": i, "content": text} | flags | {"special": True} for i, text in enumerate(CONTROL)
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, splitter],
        },
        "post_processor": None,
        "decoder": splitter,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(TOKENS)},
            "merges": [merge.split(" ") for merge in MERGES],
        },
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": CONTROL[BOS],
        "eos_token": CONTROL[EOS],
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    for name, value in (("tokenizer.json", tokenizer), ("tokenizer_config.json", config)):
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        (folder / name).write_text(text + "\n", "utf-8")
