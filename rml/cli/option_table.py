"""The one table of options: llama.cpp's flags where it has one, the same in every command."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

__all__ = ["MODEL_OPTIONS", "PASSED_ON", "SAMPLING_OPTIONS", "TABLE"]


def _id_list(text: str) -> tuple[int, ...]:
    """Read token ids between commas; an empty text holds none."""
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise click.BadParameter(f"{text!r}: expected token ids, as 5,17") from None


# Name of an option and of its parameter -> its flags and click's keywords.
TABLE: Mapping[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "model": (
        ("-m", "--model", "-hf", "--hf-repo"),
        {
            "default": "smollm2",
            "show_default": True,
            "metavar": "MODEL",
            "help": "A .gguf file, a Hugging Face folder, a known name, or org/repo[:QUANT].",
        },
    ),
    "threads": (
        ("-t", "--threads"),
        {"type": int, "metavar": "N", "help": "Threads (default: what the machine offers)."},
    ),
    "ctx_size": (
        ("-c", "--ctx-size"),
        {"type": click.IntRange(0), "metavar": "N", "help": "Context in tokens; 0: the model's."},
    ),
    "batch_size": (
        ("-b", "--batch-size"),
        {"type": click.IntRange(1), "metavar": "N", "help": "Prompt tokens computed at once."},
    ),
    "compute": (
        ("--compute",),
        {
            "type": click.Choice(["int8", "int8x2", "f32"]),
            "help": "Arithmetic of products with quantized weights; int8x2 is exact to about 1e-7, "
            "int8 is faster.",
        },
    ),
    "mmap": (
        ("--mmap/--no-mmap",),
        {
            "default": None,
            "help": "Map the weights (default), or read them into memory: then the file may be "
            "changed while the model is in use.",
        },
    ),
    "cache_type_k": (
        ("-ctk", "--cache-type-k"),
        {"metavar": "TYPE", "help": "Type of cached keys, such as f16 or f32."},
    ),
    "cache_type_v": (
        ("-ctv", "--cache-type-v"),
        {"metavar": "TYPE", "help": "Type of cached values, such as f16 or f32."},
    ),
    "chat_template": (
        ("--chat-template", "--chat-template-file"),
        {"metavar": "NAME|FILE", "help": "Another template: its name, a file, or Jinja source."},
    ),
    "system": (
        ("-sys", "--system", "--system-prompt"),
        {"metavar": "TEXT", "help": "Instructions before the conversation."},
    ),
    "parse_special": (
        ("--parse-special",),
        {"is_flag": True, "help": "Read <|...|> and the like in the text as control tokens."},
    ),
    "display_prompt": (
        ("--display-prompt",),
        {"is_flag": True, "help": "Print the prompt, too, before its continuation."},
    ),
    "offline": (
        ("--offline",),
        {"is_flag": True, "default": None, "help": "Do not use the network."},
    ),
    "ignore_eos": (
        ("--ignore-eos",),
        {"is_flag": True, "default": None, "help": "Never choose an end token."},
    ),
    "n_predict": (
        ("-n", "--n-predict", "--predict"),
        {
            "type": int,
            "metavar": "N",
            "help": "Tokens to generate at most; -1: until a stop or the end of the context. By "
            "default 256, or in a chat as -1.",
        },
    ),
    "stop": (
        ("-r", "--stop", "--reverse-prompt"),
        {"multiple": True, "metavar": "TEXT", "help": "End the answer before TEXT (repeatable)."},
    ),
    "seed": (
        ("-s", "--seed"),
        {"type": int, "metavar": "N", "help": "Seed of the random choices; -1: a new one."},
    ),
    "temperature": (
        ("--temperature", "--temp"),
        {"type": float, "metavar": "T", "help": "0: always the likeliest token."},
    ),
    "top_k": (("--top-k",), {"type": int, "metavar": "K", "help": "Keep the K likeliest tokens."}),
    "top_p": (
        ("--top-p",),
        {"type": float, "metavar": "P", "help": "Keep the likeliest tokens with sum P."},
    ),
    "min_p": (
        ("--min-p",),
        {"type": float, "metavar": "P", "help": "Drop tokens below P times the likeliest one."},
    ),
    "typical_p": (
        ("--typical-p", "--typical"),
        {"type": float, "metavar": "P", "help": "Keep tokens of typical surprise with sum P."},
    ),
    "top_n_sigma": (
        ("--top-n-sigma", "--top-nsigma"),
        {"type": float, "metavar": "N", "help": "Keep logits within N deviations of the largest."},
    ),
    "repeat_penalty": (
        ("--repeat-penalty",),
        {"type": float, "metavar": "X", "help": "Divide the scores of recent tokens by X."},
    ),
    "repeat_last_n": (
        ("--repeat-last-n",),
        {"type": int, "metavar": "N", "help": "Tokens that count as recent; -1: all."},
    ),
    "presence_penalty": (
        ("--presence-penalty",),
        {"type": float, "metavar": "X", "help": "Taken off a recent token's score, once."},
    ),
    "frequency_penalty": (
        ("--frequency-penalty",),
        {"type": float, "metavar": "X", "help": "Taken off for each recent occurrence."},
    ),
    "dry_multiplier": (
        ("--dry-multiplier",),
        {"type": float, "metavar": "X", "help": "Strength against repeated phrases (DRY); 0: off."},
    ),
    "dry_base": (
        ("--dry-base",),
        {"type": float, "metavar": "X", "help": "Growth of DRY with the length of the phrase."},
    ),
    "dry_allowed_length": (
        ("--dry-allowed-length",),
        {"type": int, "metavar": "N", "help": "Shortest phrase that DRY counts."},
    ),
    "dry_last_n": (
        ("--dry-penalty-last-n",),
        {"type": int, "metavar": "N", "help": "Tokens that DRY looks at; -1: all."},
    ),
    "dry_breakers": (
        ("--dry-sequence-breaker",),
        {
            "multiple": True,
            "metavar": "TEXT",
            "help": "Text across which DRY follows no phrase (repeatable); none: follow all.",
        },
    ),
    "xtc_probability": (
        ("--xtc-probability",),
        {
            "type": float,
            "metavar": "P",
            "help": "How often the likeliest tokens are dropped (XTC).",
        },
    ),
    "xtc_threshold": (
        ("--xtc-threshold",),
        {"type": float, "metavar": "P", "help": "Likelihood from which on XTC drops them."},
    ),
    "dynatemp_range": (
        ("--dynatemp-range",),
        {"type": float, "metavar": "X", "help": "Let the temperature move by X with the entropy."},
    ),
    "dynatemp_exponent": (
        ("--dynatemp-exp",),
        {"type": float, "metavar": "X", "help": "Exponent of that."},
    ),
    "mirostat": (
        ("--mirostat",),
        {"type": int, "metavar": "V", "help": "2: hold the surprise of the text constant; 0: off."},
    ),
    "mirostat_tau": (
        ("--mirostat-ent",),
        {"type": float, "metavar": "X", "help": "That surprise, in bits."},
    ),
    "mirostat_eta": (
        ("--mirostat-lr",),
        {"type": float, "metavar": "X", "help": "How fast it is followed."},
    ),
    "samplers": (
        ("--samplers", "--sampler-seq", "--sampling-seq"),
        {
            "metavar": "A;B;C",
            "help": "Stages in their order, as names or letters, or llama.cpp for its order.",
        },
    ),
    "truncate": (
        ("--truncate",),
        {
            "type": click.Choice(["left"]),
            "help": "Leave out the oldest text or turns where the context is too short.",
        },
    ),
    "suppress_tokens": (
        ("--suppress-tokens",),
        {"type": _id_list, "metavar": "ID,ID", "help": "Never choose these tokens."},
    ),
    "logit_bias": (
        ("-l", "--logit-bias"),
        {
            "multiple": True,
            "metavar": "ID+X",
            "help": "Add X to (ID-X: take it off) a token's score; ID-inf bans it (repeatable).",
        },
    ),
    "file": (
        ("-f", "--file"),
        {
            "multiple": True,
            "type": click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
            "help": "Read a file, before a text that is given, too (repeatable); -: stdin.",
        },
    ),
    "escape": (
        ("--escape/--no-escape", "-e"),
        {
            "default": True,
            "show_default": True,
            "help": r"Read \n, \t, \r, \", \', \\ and \xHH in a text of the command line, in -r "
            "and in --dry-sequence-breaker.",
        },
    ),
    "prompt": (("-p", "--prompt"), {"metavar": "TEXT", "help": "The prompt, as an option."}),
    "output": (
        ("-o", "--output"),
        {"type": click.Choice(["text", "json"]), "default": "text", "help": "Form of the output."},
    ),
}

MODEL_OPTIONS = (
    "model",
    "threads",
    "ctx_size",
    "batch_size",
    "compute",
    "cache_type_k",
    "cache_type_v",
    "mmap",
    "offline",
)
# Those that are passed on, by the names that `Model.generate` has for them.
PASSED_ON = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "top_n_sigma",
    "repeat_penalty",
    "repeat_last_n",
    "presence_penalty",
    "frequency_penalty",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_last_n",
    "xtc_probability",
    "xtc_threshold",
    "dynatemp_range",
    "dynatemp_exponent",
    "mirostat",
    "mirostat_tau",
    "mirostat_eta",
    "samplers",
    "ignore_eos",
    "truncate",
    "suppress_tokens",
)
SAMPLING_OPTIONS = (
    *("n_predict", "stop", "seed", *PASSED_ON, "dry_breakers", "logit_bias"),
    "escape",
)
