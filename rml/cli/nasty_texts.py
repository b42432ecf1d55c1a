"""Texts on which tokenizers tend to differ, for ``rml tok --compare``."""

from typing import Final

__all__ = ["NASTY_TEXTS"]

NASTY_TEXTS: Final[tuple[str, ...]] = (
    "",
    # white space
    " ",
    "  ",
    "\n",
    "\n\n",
    " \n  \n\n   ",
    "\t\t\tx",
    "\r\n\r\r\n",
    "a\r\nb \r\n c",
    " a",
    "a ",
    "  a  b   c    d     ",
    "trailing   \n",
    "a\u00a0b\u2003c\u3000d\u2028e\u2029f\u0085g\u200bh\ufeffi",
    "▁a ▁ b▁▁",
    # apostrophes and contractions
    "don't I'll we've it's they're I'm he'd",
    "DON'T I'LL WE'VE IT'S THEY'RE I'M HE'D",
    "don’t 'tis ''s 'S'm rock'n'roll o'clock ' s",
    "'\u017f '\u212a",  # the long s and the Kelvin sign, which are letters s and k to some engines
    # digits
    "1 12 123 1234 12345 123456 1234567",
    "3.14 -1,000,000.00 1e-9 0x1F 2026-01-31 12:34:56 v1.2.3",
    "a1b22c333 4th １２３ ٣٤٥ ² ½ Ⅷ ①",
    # scripts
    "Élan, naïve façade – Straße, ĲSSELMEER, İstanbul, ςΣσ",
    "Привет, мир! Γειά σου Κόσμε. שלום עולם. مرحبا بالعالم",
    "你好，世界。我喜欢吃苹果！繁體字「引號」",
    "こんにちは世界、カタカナとひらがな。ｶﾞｷﾞ",
    "안녕하세요 세계 각각",
    "नमस्ते दुनिया สวัสดีชาวโลก ខ្មែរ မြန်မာ தமிழ்",
    "\U00020000\U0002a6d6𝔘𝔫𝔦𝔠𝔬𝔡𝔢𓀀",
    # emoji, with joiners, selectors, tones and flags
    "🙂🙃 🔥🔥🔥 ❤️ ❤ ☺️",
    "👩‍💻👨‍👩‍👧‍👦🏳️‍🌈 👍🏽👍🏿 🇩🇪🇫🇷🇯 1️⃣",
    "a🦙b 🦙 c",
    # combining marks
    "e\u0301 é n\u0303 \u0301x Z\u0351\u036bͫa\u0300\u0301\u0302\u0303lgo",
    "\u200d\ufe0f\u0308",
    # control characters, the edges of Unicode
    "\x00\x01\x02\x1b[0m\x7f\x80\x9f",
    "a\x00b",
    "\ud7ff\ue000\ufffd\ufffe\uffff\U00010000\U0010ffff",
    "\u202eright to left\u202c \u2066x\u2069",
    # code
    "def f(x):\n    return {k: v**2 for k, v in x.items()}  # why?\n",
    "if (a&&b||!c) { x[i++] += *p->q; } /* ... */ // --\n\t\treturn;\n",
    '<a href="https://example.org/?q=1&r=%20#top">x</a>&nbsp;\n',
    "SELECT * FROM t WHERE a<>'b' AND c>=1;\\n\\t\\\\",
    "camelCaseHTTPServer snake_case_name kebab-case $var @attr #tag",
    "```python\nprint('hi')\n```\n\n---\n\n* **bold** _it_\n",
    # long runs
    "a" * 300,
    " " * 150 + "x",
    "\n" * 70,
    "ab" * 200,
    "=" * 80 + "\n" + "-" * 79,
    "!?" * 60 + "……" * 20,
    "7" * 100,
    "的" * 100,
    "🙂" * 40,
    "antidisestablishmentarianism" * 5,
    # special tokens, and what looks like them, as text
    "<|endoftext|>",
    "a<|im_start|>user\nhi<|im_end|>\n",
    "<s>[INST] hi [/INST]</s> <unk> <pad>",
    "<bos><start_of_turn>user\nhi<end_of_turn>\n",
    "<|begin_of_text|><|start_header_id|>x<|end_header_id|><|eot_id|>",
    "<|user|>\n hi<|end|>\n<|assistant|>",
    "<|im_start<|im_start|>|> <| im_end |> <|IM_END|>",
    "<0x0A><0xff> [control_1] <unused7> <think>\n</think>",
)
