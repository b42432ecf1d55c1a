"""Files that people take for a model, known by their first bytes and refused by name."""

from pathlib import Path

from rml.errors import CheckpointError, UnsupportedModel

__all__ = ["HEAD_BYTES", "refuse_foreign"]

# Enough to know every format below, and to show a line of text.
HEAD_BYTES = 512

_PICKLE_ADVICE = (
    "its weights are Python pickles, which can run code when they are read: "
    "convert it to safetensors"
)
_RECONVERT = "convert the original model again with a current GGUF converter"

# First bytes -> what the file is, what to do. Sound files of formats that rml does not read.
_FORMATS: tuple[tuple[bytes, str, str], ...] = (
    (
        b"FUGG",
        "a GGUF file with swapped bytes (big-endian)",
        "convert it to little-endian with gguf_convert_endian.py",
    ),
    (b"lmgg", "a GGML file, older than GGUF", _RECONVERT),
    (b"fmgg", "a GGMF file, older than GGUF", _RECONVERT),
    (b"tjgg", "a GGJT file, older than GGUF", _RECONVERT),
    (b"ggml", "a GGML file, older than GGUF", _RECONVERT),
    (b"ggmf", "a GGMF file, older than GGUF", _RECONVERT),
    (b"ggjt", "a GGJT file, older than GGUF", _RECONVERT),
    (b"algg", "a LoRA adapter of the time before GGUF", "merge it into its model and convert that"),
    (b"ggla", "a LoRA adapter of the time before GGUF", "merge it into its model and convert that"),
    (b"nsgg", "a saved llama.cpp session, not a model", "give the model it was made with"),
    (b"qsgg", "a saved llama.cpp session, not a model", "give the model it was made with"),
    (b"PK\x03\x04", "a ZIP archive, such as PyTorch's .bin and .pt checkpoints", _PICKLE_ADVICE),
    (b"\x80\x02", "a Python pickle, such as old PyTorch checkpoints", _PICKLE_ADVICE),
    (b"\x80\x03", "a Python pickle", _PICKLE_ADVICE),
    (b"\x80\x04", "a Python pickle", _PICKLE_ADVICE),
    (b"\x80\x05", "a Python pickle", _PICKLE_ADVICE),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file, such as TensorFlow's .h5", "convert it to safetensors"),
    (b"\x1f\x8b", "a gzip archive", "unpack it first"),
    (b"\x28\xb5\x2f\xfd", "a Zstandard archive", "unpack it first"),
    (b"\xfd7zXZ\x00", "an xz archive", "unpack it first"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", "unpack it first"),
    (b"BZh", "a bzip2 archive", "unpack it first"),
)


def refuse_foreign(path: Path, head: bytes) -> None:
    """Refuse a file that is known to be something else than a model that rml reads.

    Parameters
    ----------
    path : Path
        The file, for messages.
    head : bytes
        Its first `HEAD_BYTES` bytes, or the whole of a shorter file.

    Raises
    ------
    UnsupportedModel
        If it is a known format that rml does not read.
    CheckpointError
        If it is a web page, a Git LFS pointer or other text.
    """
    for magic, what, advice in _FORMATS:
        if head.startswith(magic):
            raise UnsupportedModel(f"{path}: this is {what}; {advice}")
    if head[8:12] == b"blk.":  # legacy imatrix: entry count, name length, name
        raise UnsupportedModel(
            f"{path}: this is an importance matrix (imatrix), made to quantize a model; "
            "give the model itself"
        )
    if head.startswith(b"version https://git-lfs"):
        raise CheckpointError(
            f"{path}: this is not a model: it starts with 'version https://git-lfs', a pointer "
            "that Git leaves when Git LFS is not installed; run 'git lfs pull' or download the file"
        )
    text = _as_text(head)
    if text is not None:
        start = text.lstrip("\ufeff \t\r\n")
        line = start.split("\n", 1)[0].strip()[:60]
        if start[:9].lower() == "<!doctype" or start[:5].lower() in {"<html", "<?xml"}:
            raise CheckpointError(
                f"{path}: this is not a model: it starts with {line!r}, a web page that was saved "
                "in its place (an error, or a request to log in); download the file again"
            )
        raise CheckpointError(
            f"{path}: this is not a model but a text file that starts with {line!r}; give a .gguf "
            "file, a .safetensors file, or the folder that holds one"
        )


def _as_text(head: bytes) -> str | None:
    """Return the text that `head` is the beginning of, or None where it is binary."""
    for cut in range(min(4, len(head))):  # the last character may have been cut in the middle
        try:
            text = head[: len(head) - cut].decode("utf-8")
        except UnicodeDecodeError:
            continue
        return text if all(c.isprintable() or c in "\ufeff\t\r\n\f" for c in text) else None
    return None
