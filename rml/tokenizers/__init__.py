"""Text to ids and back, and chat messages to text.

Reading order: `tokenizer` (the public class), `special_tokens`, `pretokenize` (how text is cut into
words), `bpe` and `byte_level`; `chat_template`, then `template_sandbox`, `template_guard` and
`marked_text` behind it; `loading` finds the tokenizer of a file.
"""

from rml.tokenizers.chat_template import UNSET, ChatTemplate
from rml.tokenizers.loading import load_tokenizer
from rml.tokenizers.tokenizer import Tokenizer

__all__ = ["UNSET", "ChatTemplate", "Tokenizer", "load_tokenizer"]
