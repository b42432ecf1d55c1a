"""Keys of a model's metadata that rml does not know, or cannot follow."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from rml.errors import RmlError
from rml.files import Checkpoint
from rml.llm.config import ModelConfig
from rml.scan.report import Finding
from rml.scan.templates import hidden_characters

__all__ = ["odd_keys"]

# Keys of these kinds say where a file comes from, and change nothing.
_NOTES: Final = ("general.", "quantize.", "split.")
_TOKENIZER: Final = frozenset(
    f"tokenizer.{key}"
    for key in (
        *("chat_template", "chat_templates", "huggingface.json", "rwkv.world"),
        *(
            f"ggml.{key}"
            for key in (
                *("model", "pre", "tokens", "token_type", "scores", "merges", "added_tokens"),
                *("token_type_count", "precompiled_charsmap", "remove_extra_whitespaces"),
                *("add_bos_token", "add_eos_token", "add_sep_token", "add_space_prefix"),
                *("bos_token_id", "eos_token_id", "eot_token_id", "eom_token_id"),
                *("unknown_token_id", "separator_token_id", "seperator_token_id"),
                *("padding_token_id", "cls_token_id", "mask_token_id", "eos_token_ids"),
                *("prefix_token_id", "middle_token_id", "suffix_token_id", "eog_token_ids"),
                *(f"fim_{n}_token_id" for n in ("pre", "suf", "mid", "pad", "rep", "sep")),
            )
        ),
    )
)


def odd_keys(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Look at the keys of a checkpoint."""
    metadata = checkpoint.metadata
    prefix = f"{metadata.get('general.architecture', '')}."
    unknown = [key for key in metadata if not _is_known(key, prefix)]
    if unknown:
        what = f"keys that rml does not know: {', '.join(unknown[:8])}"
        yield Finding("metadata", "keys", what, len(unknown))
    hidden = [key for key, value in _texts(metadata) if hidden_characters(key + value)]
    if hidden:
        what = f"keys with characters that nobody sees: {', '.join(hidden[:8])}"
        yield Finding("metadata", "keys", what, len(hidden))
    # Weights alone, without a config.json beside them, ask for nothing.
    if checkpoint.tensors and not (checkpoint.format == "safetensors" and not checkpoint.config):
        try:
            ModelConfig.from_checkpoint(checkpoint)
        except RmlError as error:
            yield Finding("metadata", "model", f"rml cannot run it: {error}")


def _is_known(key: str, prefix: str) -> bool:
    if key.startswith("tokenizer."):
        return key in _TOKENIZER or key.startswith("tokenizer.chat_template.")
    return key.startswith((*_NOTES, prefix))


def _texts(metadata: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Keys with their texts, but for those that other parts look at."""
    for key, value in metadata.items():
        is_text = isinstance(value, str) and not key.startswith("tokenizer.")
        yield key, value if is_text else ""
