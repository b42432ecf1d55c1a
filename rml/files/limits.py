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
    "the safetensors format has it for its header; the largest known document, a tokenizer of "
    "262,144 tokens, is a third of it",
)  # fmt: skip
MAX_JSON_DEPTH = _limit(
    "JSON", "lists and objects in each other", 64,
    "no model is known to need more than 12, and Python's parser uses stack for each",
)  # fmt: skip
MAX_JSON_CONTAINERS = _limit(
    "JSON", "lists and objects", 1 << 20,
    "an empty one takes 3 bytes of a file and up to 100 of memory; a vocabulary of 901,629 scored "
    "tokens has as many",
)  # fmt: skip
MAX_JSON_KEYS = _limit(
    "JSON", "keys, or colons", 1 << 20,
    "one takes 6 bytes of a file and up to 350 of memory; the largest known header has 560,000",
)  # fmt: skip
MAX_JSON_VALUES = _limit(
    "JSON", "values, or commas", 1 << 22,
    "one takes 2 bytes of a file and up to 60 of memory; a tokenizer of 262,144 tokens and 514,906 "
    "merges has 1,340,000",
)  # fmt: skip
MAX_JSON_DIGITS = _limit(
    "JSON", "digits of a whole number", 4300,
    "Python has it, since reading more takes time with the square of their number",
)  # fmt: skip

# ---- GGUF ----

MAX_GGUF_HEADER_BYTES = _limit(
    "GGUF", "bytes of keys and tensor table", 100_000_000,
    "they are read into memory; those of 262,144 tokens and 514,906 merges are a fifth of it",
)  # fmt: skip
MAX_GGUF_DIMS = _limit("GGUF", "dimensions of a tensor", 4, "the format has it")
MAX_GGUF_NAME_BYTES = _limit("GGUF", "bytes of a tensor's name", 64, "the format has it")
MAX_GGUF_KEY_BYTES = _limit("GGUF", "bytes of a key", 65_535, "the format has it")
MAX_GGUF_KEYS = _limit(
    "GGUF", "metadata keys", 1 << 16,
    "one takes 14 bytes of a file and 170 of memory; no model is known to have more than 100",
)  # fmt: skip
MAX_GGUF_ARRAYS = _limit(
    "GGUF", "arrays inside arrays", 1 << 16,
    "one takes 12 bytes of a file and 180 of memory, and no model is known to have any",
)  # fmt: skip
MAX_GGUF_DEPTH = _limit(
    "GGUF", "arrays in each other", 4, "the format has no limit, and no model is known to use one"
)
MAX_GGUF_ALIGNMENT = _limit(
    "GGUF", "bytes of the alignment", 1 << 20, "larger ones have no use: pages have 4 to 64 KB"
)

# ---- safetensors ----

MAX_SAFETENSORS_DIMS = _limit(
    "safetensors", "dimensions of a tensor", 8, "no model is known to have more than 5"
)
MAX_SAFETENSORS_NAME = _limit(
    "safetensors", "characters of a tensor's name", 1024, "no model is known to have more than 150"
)

# ---- tensors of both formats ----

MAX_TENSORS = _limit(
    "tensors", "tensors of a model", 200_000,
    "one takes 25 bytes of a file and 450 of memory; the largest known model, 384 experts in 60 "
    "layers as single matrices with scales, has 140,000",
)  # fmt: skip
MAX_FILES = _limit(
    "tensors", "files of a model", 4096,
    "a process may map 65,530; no model is known to have more than 200",
)  # fmt: skip
MAX_FILE_NAME = _limit(
    "safetensors", "characters of the name of a file", 255, "file systems have it"
)
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

# ---- configuration ----

MAX_LAYERS = _limit(
    "configuration", "layers", 1024,
    "each costs twenty operations of a plan; no model is known to have more than 126",
)  # fmt: skip
MAX_EXPERTS = _limit(
    "configuration", "experts of a layer", 256,
    "each costs three records of a layer's plan; no model of these families has more",
)  # fmt: skip
MAX_ALL_EXPERTS = _limit(
    "configuration", "experts of all layers together", 1 << 15,
    "each costs a kilobyte of plans; the largest model of these families has 94 layers of 128",
)  # fmt: skip
MAX_WIDTH = _limit(
    "configuration", "values of a row: embedding, all heads together, feed-forward network",
    1 << 17,
    "a step holds 512 rows of each in memory; no model is known to have more than 73,728",
)  # fmt: skip
MAX_VOCABULARY = _limit(
    "configuration", "tokens of the vocabulary", 1 << 21,
    "a step holds 32 rows of logits in memory; no model is known to have more than 901,629",
)  # fmt: skip
MAX_POSITIONS = _limit(
    "configuration", "positions of a context or a window", (1 << 31) - 1,
    "some files mean by it that there is no limit; memory is taken only where they are used",
)  # fmt: skip
MAX_INTEGER = _limit(
    "configuration", "size of any integer", (1 << 63) - 1,
    "arithmetic and arrays take no larger one, and those of a JSON file may have any length",
)  # fmt: skip
MAX_CONFIG_KEYS = _limit(
    "configuration", "keys of an object", 1 << 16,
    "all are compared with what is known; no model is known to have more than 200",
)  # fmt: skip
MAX_CONFIG_ARRAY = _limit(
    "configuration", "values of an array", 1 << 16,
    "an array has a value for each layer, and becomes Python objects of 40 bytes each",
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
