"""Control tokens: which there are, and which only look like one, or like another.

Control tokens steer a conversation, so that text must never become one. A token that looks like one
and is none is a trap either way: in other programs it may be one, and a template that writes it
writes ordinary text.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from rml.scan.report import Finding
from rml.scan.templates import hidden_characters
from rml.tokenizers import Tokenizer
from rml.tokenizers.end_tokens import END_NAMES

__all__ = ["oddities"]

# As model makers write them; tags of HTML and bytes such as <0x0A> are none.
_LIKE: Final = re.compile(
    r"<[|｜][^|｜<>\s]{1,60}[|｜]>|<(start|end)_of_\w{1,30}>|\[/?(INST|SYS|SYSTEM_PROMPT|TOOL_\w+|"
    r"AVAILABLE_TOOLS|gMASK|sMASK)\]|<</?SYS>>|<(bos|eos|pad|unk|mask|s|/s)>"
)


def oddities(tokenizer: Tokenizer, texts: Iterable[str]) -> Iterator[Finding]:
    """Look at the tokens of a model; `texts` are those that its file lists, empty ones left out."""
    twice = [f"{text!a}" for text, count in Counter(filter(None, texts)).items() if count > 1]
    if twice:
        what = f"texts are those of several tokens: {', '.join(twice[:8])}"
        yield Finding("tokens", "vocabulary", what, len(twice))
    like: list[str] = []
    hidden: list[str] = []
    for token in range(tokenizer.n_vocab):
        try:
            text = tokenizer.token_bytes(token).decode("utf-8")
        except UnicodeDecodeError:
            continue
        if tokenizer.is_special(token):
            if hidden_characters(text):
                hidden.append(f"{token} ({text!a})")
        elif tokenizer.token_id(text) != token and (text in END_NAMES or _LIKE.fullmatch(text)):
            like.append(f"{token} ({text!a})")
    if like:
        what = f"tokens look like control tokens and are none: {', '.join(like[:8])}"
        yield Finding("tokens", "vocabulary", what, len(like))
    if hidden:
        what = f"control tokens have characters that nobody sees: {', '.join(hidden[:8])}"
        yield Finding("tokens", "vocabulary", what, len(hidden))
