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

# ---- names of files ----

MAX_PATH_BYTES = _limit("names", "bytes of a path", 4095, "no operating system opens a longer one")
MAX_NAME_BYTES = _limit(
    "names", "bytes of a part of a path", 255, "no common file system has a longer one"
)

# ---- Hub and cache ----

MAX_REPO_NAME = _limit(
    "Hub", "characters of a repository's name", 96, "the Hugging Face Hub has it"
)
MAX_REPO_FILES = _limit(
    "Hub", "files of a repository", 100_000,
    "the Hub advises against more, and no model is known to have a tenth of it",
)  # fmt: skip
MAX_REPO_BYTES = _limit(
    "Hub", "bytes of a file of a repository", 1 << 50,
    "a petabyte: the Hub takes files of 500 GB, and sums of sizes stay numbers of 64 bits",
)  # fmt: skip
MAX_RECEIPT_BYTES = _limit(
    "cache", "bytes of a receipt", 4_000_000,
    "a model of a thousand files takes a tenth of it; nothing larger is read or parsed",
)  # fmt: skip
MAX_RECEIPTS = _limit(
    "cache", "receipts that are listed", 10_000, "a folder of millions would never be listed"
)

# ---- tokenizers ----

MAX_PATTERN_CHARS = _limit(
    "tokenizer", "characters of a pattern", 20_000,
    "the longest known, a list of the letters of all cased scripts, has 1,500",
)  # fmt: skip
MAX_PATTERN_REPEATS = _limit(
    "tokenizer", "product of nested repeats in a pattern", 10_000,
    "they are written out when a pattern is compiled; the largest known is 512",
)  # fmt: skip
MAX_STEPS = _limit(
    "tokenizer", "steps of a normalizer, pre-tokenizer or decoder", 256,
    "each goes through every text; the most known are 20",
)  # fmt: skip
MAX_STEP_DEPTH = _limit(
    "tokenizer", "sequences of steps in each other", 16, "no file is known to have more than 2"
)
MAX_TEXT_GROWTH = _limit(
    "tokenizer", "times that normalizing may make a text as long", 32,
    "Unicode's own forms make it 18 times as long at most",
)  # fmt: skip
