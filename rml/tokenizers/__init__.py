"""Text to ids and back, and chat messages to text.

Reading order: `tokenizer` (the public class) and `special_tokens`; `pretokenize` (how text is cut
into words), `bpe` and `byte_level`; `sentencepiece`; then where they come from: `gguf_tokenizer`
with `vocabulary`, `json_tokenizer` with `json_stages` and `char_bpe`, and `loading`. For chat:
`chat_template`, with `chat_messages` and `content_forms` (what messages may hold, and the form in
which a template reads it), `template_sandbox`, `template_guard` and `marked_text` behind it;
`template_source` and `builtin_templates` (where templates come from).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rml.tokenizers.loading import load_tokenizer
from rml.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from rml.tokenizers.chat_template import UNSET, ChatTemplate

__all__ = ["UNSET", "ChatTemplate", "Tokenizer", "load_tokenizer"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the name stands for
    # Imported when first used: jinja2 takes a third of the time that a plain completion needs for
    # imports, and only chats need it.
    if name in {"UNSET", "ChatTemplate"}:
        return getattr(import_module("rml.tokenizers.chat_template"), name)
    raise AttributeError(f"module 'rml.tokenizers' has no attribute {name!r}")
