"""Every key of a `generation_config.json`: in effect, harmless here, or warned of by name.

What would change an answer and is not done is said once at load, with its value. Most files hold
such a key with the value that means "off", and of that nothing is said.

Source: ``GenerationConfig`` of Transformers, versions 4 and 5.
"""

import logging
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from rml.sampling.settings import SamplingSettings

__all__ = ["HARMLESS", "IN_EFFECT", "NOT_DONE", "warn_of_keys", "warn_of_old_keys"]

_log = logging.getLogger("rml")

IN_EFFECT: Final = frozenset(
    setting.metadata["hugging_face"]
    for setting in fields(SamplingSettings)
    if setting.metadata.get("hugging_face")
) | {"bad_words_ids", "do_sample", "eos_token_id", "bos_token_id"}

# Of other ways to get an answer only, of what a call returns, of speed, or of no meaning here.
# Lengths are a call's: what a file says of them is Transformers' default, not the model's.
HARMLESS: Final = frozenset(
    (
        "_commit_hash",
        "_from_model_config",
        "_original_object_hash",
        "assistant_confidence_threshold",
        "assistant_early_exit",
        "assistant_lookbehind",
        "cache_config",
        "cache_implementation",
        "compile_config",
        "decoder_start_token_id",
        "disable_compile",
        "early_stopping",
        "is_assistant",
        "length_penalty",
        "low_memory",
        "max_cache_len",
        "max_length",
        "max_matching_ngram_size",
        "max_new_tokens",
        "num_assistant_tokens",
        "num_assistant_tokens_schedule",
        "output_attentions",
        "output_hidden_states",
        "output_logits",
        "output_scores",
        "pad_token_id",
        "prefill_chunk_size",
        "prompt_lookup_num_tokens",
        "remove_invalid_values",
        "renormalize_logits",
        "return_dict_in_generate",
        "return_legacy_cache",
        "target_lookbehind",
        "transformers_version",
        "use_cache",
        "use_mtp",
    )
)

# What rml does not do, and the value that asks for nothing.
NOT_DONE: Final[Mapping[str, Any]] = {
    "begin_suppress_tokens": [],
    "constraints": [],
    "diversity_penalty": 0,
    "dola_layers": [],
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1,
    "epsilon_cutoff": 0,
    "eta_cutoff": 0,
    "exponential_decay_length_penalty": [],
    "force_words_ids": [],
    "forced_bos_token_id": [],
    "forced_decoder_ids": [],
    "forced_eos_token_id": [],
    "guidance_scale": 1,
    "max_time": 0,
    "min_length": 0,
    "min_new_tokens": 0,
    "no_repeat_ngram_size": 0,
    "num_beam_groups": 1,
    "num_beams": 1,
    "num_return_sequences": 1,
    "penalty_alpha": 0,
    "sequence_bias": [],
    "stop_strings": [],
    "token_healing": False,
    "top_h": 1,
    "watermarking_config": {},
}


# What older versions of Transformers wrote into a config.json whatever the model: its defaults.
_WRITTEN_ANYWAY: Final[Mapping[str, Any]] = {
    **NOT_DONE,
    "bad_words_ids": [],
    "min_p": 0,
    "repetition_penalty": 1,
    "suppress_tokens": [],
    "temperature": 1,
    "top_k": 50,
    "top_p": 1,
    "typical_p": 1,
}


def warn_of_old_keys(config: Mapping[str, Any], path: object) -> None:
    """Log a warning of settings in a ``config.json`` without a `generation_config.json` beside it.

    Older versions of Transformers kept them there; rml reads them in the other file alone.
    """
    asked = [
        f"{key}={config[key]!r:.60}"
        for key, neutral in _WRITTEN_ANYWAY.items()
        if config.get(key) is not None and config[key] != neutral
    ]
    if asked:
        _log.warning(
            "%s has settings of generation, which rml reads in a generation_config.json only; they "
            "are not in effect: %s",
            path,
            ", ".join(asked),
        )


def warn_of_keys(config: Mapping[str, Any], path: object) -> None:
    """Log a warning that names what `config` asks for and rml does not do, or does not know."""
    asked = [
        f"{key}={value!r:.60}"
        for key, value in config.items()
        if key in NOT_DONE and value is not None and value != NOT_DONE[key]
    ]
    if any(len(words) != 1 for words in _lists(config.get("bad_words_ids"))):
        asked.append("bad_words_ids of several tokens")
    unknown = [key for key in config if key not in IN_EFFECT | HARMLESS | NOT_DONE.keys()]
    if asked:
        _log.warning(
            "%s asks for what rml does not do, so answers may differ: %s", path, ", ".join(asked)
        )
    if unknown:
        _log.warning("%s has keys that rml does not know: %s", path, ", ".join(map(repr, unknown)))


def _lists(value: object) -> list[list[Any]]:
    return [words for words in value if isinstance(words, list)] if isinstance(value, list) else []
