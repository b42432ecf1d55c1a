"""What a file from a stranger may ask for at most: one table, each limit with its reason.

A limit is there for one of three causes: the format has it; no sound file is known to come near it;
or more of it would freeze the program or fill its memory. A file that exceeds one is refused with
an error that names it. The readers take the values from here, `rml scan` and SECURITY.md list them.
"""

from dataclasses import dataclass

__all__ = ["LIMITS", "Limit"]


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit.

    Attributes
    ----------
    room : str
        What it is a limit of: ``"GGUF"``, ``"safetensors"``, ``"template"`` and so on.
    what : str
        What is counted, in the words of a message: "dimensions of a tensor".
    value : int
        The most that is accepted.
    reason : str
        Why, in one sentence.
    """

    room: str
    what: str
    value: int
    reason: str


LIMITS: list[Limit] = []


def _limit(room: str, what: str, value: int, reason: str) -> int:
    LIMITS.append(Limit(room, what, value, reason))
    return value


# ---- JSON ----

MAX_JSON_BYTES = _limit(
    "JSON", "bytes of a document", 100_000_000,
    "the safetensors format has it for its header; the largest known index is a tenth of it",
)  # fmt: skip

# ---- GGUF ----

MAX_GGUF_DIMS = _limit("GGUF", "dimensions of a tensor", 4, "the format has it")
MAX_GGUF_NAME_BYTES = _limit("GGUF", "bytes of a tensor's name", 64, "the format has it")
MAX_GGUF_KEY_BYTES = _limit("GGUF", "bytes of a key", 65_535, "the format has it")
MAX_GGUF_ALIGNMENT = _limit(
    "GGUF", "bytes of the alignment", 1 << 20, "larger ones have no use: pages have 4 to 64 KB"
)
MAX_GGUF_DEPTH = _limit(
    "GGUF", "arrays in arrays", 4, "the format has no limit, and no model is known to use one"
)

# ---- safetensors ----

MAX_SAFETENSORS_DIMS = _limit(
    "safetensors", "dimensions of a tensor", 8, "no model is known to have more than 5"
)

# ---- tensors of both formats ----

MAX_TENSOR_VALUES = _limit(
    "tensors", "values of a tensor, dimensions of zero left out", 1 << 48,
    "a shape such as (2**62, 0) takes no bytes, and still breaks arithmetic on shapes",
)  # fmt: skip

# ---- chat templates ----

MAX_TEMPLATE_CHARS = _limit(
    "template", "characters of a chat template, or bytes of its file", 1 << 18,
    "the longest in use have 30 000, and Jinja reads about a megabyte a second",
)  # fmt: skip
MAX_TEMPLATE_TOKENS = _limit(
    "template", "words and signs of a chat template", 40_000,
    "the longest in use have 4 000; Jinja's parser makes objects of each",
)  # fmt: skip
MAX_TEMPLATE_NODES = _limit(
    "template", "nodes of a chat template's syntax tree", 8_000,
    "the largest in use have 1 300; Jinja's compiler is quadratic in branches and variables",
)  # fmt: skip
MAX_TEMPLATE_DEPTH = _limit(
    "template", "levels of a chat template's syntax tree", 90,
    "the deepest in use have 29; Python's own compiler takes no more than 100 levels of blocks",
)  # fmt: skip
MAX_TEMPLATE_BRANCHES = _limit(
    "template", "branches times variables that are set in a chat template", 100_000,
    "the most in use is 5 000; Jinja's compiler copies all variables at every branch",
)  # fmt: skip
MAX_TEMPLATE_CALLS = _limit(
    "template", "calls of macros inside each other while a chat template runs", 100,
    "tools whose schemas nest use about ten",
)  # fmt: skip
MAX_TEMPLATE_MILLISECONDS = _limit(
    "template", "milliseconds of processor time of one rendering, beside its input's", 1_500,
    "a short chat takes one and 2000 messages take fifty; ChatTemplate(effort=) raises it",
)  # fmt: skip
MAX_TEMPLATE_BYTES = _limit(
    "template", "bytes that one rendering may hold, beside 16 for each character given", 1 << 26,
    "real templates hold their input a few times; ChatTemplate(effort=) raises it",
)  # fmt: skip
MAX_TEMPLATE_SEARCH = _limit(
    "template", "comparisons in one search, sort or test of equality", 1 << 27,
    "a single call cannot be stopped; this many take a tenth of a second",
)  # fmt: skip
MAX_TEMPLATE_BITS = _limit("template", "bits of a whole number", 4096, "counting needs 64")
MAX_TEMPLATE_WIDTH = _limit(
    "template", "a width, precision or number of columns in a chat template", 10_000,
    "indents and numbers in prompts have ten or twenty",
)  # fmt: skip
MAX_TEMPLATE_VALUES = _limit(
    "template", "values met in a walk through one nested value, shared ones each time", 1 << 18,
    "a hundred tools have ten thousand",
)  # fmt: skip
MAX_TEMPLATE_LEVELS = _limit(
    "template", "levels of a nested value that is given to a chat template or made by it", 200,
    "schemas of tools have ten; deeper ones exhaust the stack of Python's JSON writer",
)  # fmt: skip
MAX_TEMPLATE_DATE = _limit(
    "template", "characters of a format of a date", 200, "the longest in use have twenty"
)
