"""The one table of tensor types: names, GGUF ids, block sizes, bytes.

A *block* is the smallest piece of a row that can be read alone: `length` values stored in
`n_bytes` bytes. A row is a whole number of blocks. The names and ids are those of the GGUF format
(ggml's `ggml_type`); what the bytes of a block mean is said by its definition, which `dequant_py`
names.

Adding a weight format is one entry here, its definition and its unpackers in the C headers of the
twin (CONTRIBUTING.md has the list).
"""

from dataclasses import dataclass

__all__ = ["FORMATS", "FORMATS_BY_ID", "RETIRED_IDS", "BlockFormat"]


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """How values of one tensor type lie in bytes.

    Attributes
    ----------
    name : str
        The GGUF name, e.g. ``"Q4_1"``.
    id : int
        The number that stands for the type in a GGUF file.
    length : int
        Values in a block (1 for plain number types).
    n_bytes : int
        Bytes of a block.
    kind : str
        ``"float"`` (plain floating point), ``"quantized"`` (blocks of codes and scales) or
        ``"integer"`` (plain integers: readable, but no weights).
    """

    name: str
    id: int
    length: int
    n_bytes: int
    kind: str

    def row_bytes(self, columns: int) -> int:
        """Bytes of a row of `columns` values; `columns` must be a whole number of blocks."""
        blocks, rest = divmod(columns, self.length)
        if rest:
            raise ValueError(f"{columns} values are no whole number of {self.name} blocks")
        return blocks * self.n_bytes


_TABLE = (
    ("F32", 0, 1, 4, "float"),
    ("F16", 1, 1, 2, "float"),
    ("Q4_0", 2, 32, 18, "quantized"),
    ("Q4_1", 3, 32, 20, "quantized"),
    ("Q5_0", 6, 32, 22, "quantized"),
    ("Q5_1", 7, 32, 24, "quantized"),
    ("Q8_0", 8, 32, 34, "quantized"),
    ("Q8_1", 9, 32, 36, "quantized"),
    ("Q2_K", 10, 256, 84, "quantized"),
    ("Q3_K", 11, 256, 110, "quantized"),
    ("Q4_K", 12, 256, 144, "quantized"),
    ("Q5_K", 13, 256, 176, "quantized"),
    ("Q6_K", 14, 256, 210, "quantized"),
    ("Q8_K", 15, 256, 292, "quantized"),
    ("IQ2_XXS", 16, 256, 66, "quantized"),
    ("IQ2_XS", 17, 256, 74, "quantized"),
    ("IQ3_XXS", 18, 256, 98, "quantized"),
    ("IQ1_S", 19, 256, 50, "quantized"),
    ("IQ4_NL", 20, 32, 18, "quantized"),
    ("IQ3_S", 21, 256, 110, "quantized"),
    ("IQ2_S", 22, 256, 82, "quantized"),
    ("IQ4_XS", 23, 256, 136, "quantized"),
    ("I8", 24, 1, 1, "integer"),
    ("I16", 25, 1, 2, "integer"),
    ("I32", 26, 1, 4, "integer"),
    ("I64", 27, 1, 8, "integer"),
    ("F64", 28, 1, 8, "float"),
    ("IQ1_M", 29, 256, 56, "quantized"),
    ("BF16", 30, 1, 2, "float"),
    ("TQ1_0", 34, 256, 54, "quantized"),
    ("TQ2_0", 35, 256, 66, "quantized"),
    ("MXFP4", 39, 32, 17, "quantized"),
    ("NVFP4", 40, 64, 36, "quantized"),
    ("Q1_0", 41, 128, 18, "quantized"),
    ("Q2_0", 42, 64, 18, "quantized"),
)

FORMATS: dict[str, BlockFormat] = {row[0]: BlockFormat(*row) for row in _TABLE}
FORMATS_BY_ID: dict[int, BlockFormat] = {entry.id: entry for entry in FORMATS.values()}

# Ids that once meant a type and do no more; a file with one must be converted again.
RETIRED_IDS: dict[int, str] = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}
