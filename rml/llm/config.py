"""What a model is: sizes and switches, read once from a checkpoint and never changed.

Every supported model is one recipe (pre-norm RMSNorm, rotary embedding, grouped-query attention, a
gated feed-forward network or experts) with switches. A switch names a difference in arithmetic,
never a model; `architecture` is for messages and for the table of tensor names alone.

`ModelConfig.from_gguf` and `ModelConfig.from_hf` read the two kinds of metadata (`config_gguf`,
`config_hf`). Whatever would change the arithmetic and is not implemented is refused there by name.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from rml._kernels.pages import MAX_HEAD_DIM
from rml.errors import CheckpointError, UnsupportedModel
from rml.files import Checkpoint
from rml.files.limits import (
    MAX_ALL_EXPERTS,
    MAX_EXPERTS,
    MAX_LAYERS,
    MAX_POSITIONS,
    MAX_VOCABULARY,
    MAX_WIDTH,
)
from rml.llm.config_gguf import fields_from_gguf
from rml.llm.config_hf import fields_from_hf
from rml.llm.rope import Rope, RopeScaling

__all__ = ["ModelConfig", "RopeScaling"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Sizes and switches of a model.

    Attributes
    ----------
    architecture : str
        Family, in Hugging Face's spelling of the model type; for messages and tensor names.
    n_layers, n_vocab, d_model, n_heads, n_kv_heads, head_dim, d_ffn, n_ctx_train : int
        Sizes. Grouped-query attention when ``n_kv_heads < n_heads``; ``n_heads * head_dim`` need
        not be ``d_model``; `d_ffn` is the width of a dense feed-forward network and 0 when every
        layer has experts.
    norm_eps : float
        Added to the mean square in RMSNorm.
    activation : str
        Of the gate: ``"silu"``, or ``"gelu_tanh"`` (the tanh approximation).
    qkv_bias : bool
        The query, key and value projections have a bias.
    qk_norm : str
        RMSNorm of queries and keys before the rotation: ``"none"``, of each ``"head"``, or of the
        ``"whole"`` row.
    sandwich_norms : bool
        Each branch's output is normalized again before it is added to the residual stream.
    embedding_scale : float
        Multiplies the embedded tokens.
    attention_scale : float
        Multiplies a score before the softmax; ``1 / sqrt(head_dim)`` unless the model says else.
    tied_head : bool
        The output projection is the embedding matrix.
    windows : tuple of (int or None)
        For each layer, how many positions it sees, itself included; None sees all. Empty: no layer
        has a window.
    n_experts, n_experts_used, d_expert_ffn : int
        Experts of a layer, how many of them a token uses, and their width; 0 for a dense model.
    normalize_expert_weights : bool
        The weights of the chosen experts are divided by their sum.
    rope_theta : float
        Base of the rotary frequencies.
    rope_local_theta : float or None
        The same, without scaling, for layers with a window; None: as the others.
    rope_scaling : RopeScaling or None
        How the frequencies are stretched.
    rope_layers : tuple of bool
        For each layer, whether queries and keys are rotated. Empty: in all.
    rope_pairing : str
        Which dimensions of a head make a pair: ``"half"``, i and i + head_dim / 2; or
        ``"interleaved"``, 2 i and 2 i + 1.
    """

    architecture: str
    n_layers: int
    n_vocab: int
    d_model: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    d_ffn: int
    n_ctx_train: int
    norm_eps: float
    attention_scale: float
    rope_theta: float
    rope_pairing: Literal["half", "interleaved"]
    activation: Literal["silu", "gelu_tanh"] = "silu"
    qkv_bias: bool = False
    qk_norm: Literal["none", "head", "whole"] = "none"
    sandwich_norms: bool = False
    embedding_scale: float = 1.0
    tied_head: bool = False
    windows: tuple[int | None, ...] = ()
    n_experts: int = 0
    n_experts_used: int = 0
    d_expert_ffn: int = 0
    normalize_expert_weights: bool = False
    rope_local_theta: float | None = None
    rope_scaling: RopeScaling | None = None
    rope_layers: tuple[bool, ...] = ()

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint) -> "ModelConfig":
        """Read the configuration of an open checkpoint, whatever its format.

        Raises
        ------
        CheckpointError
            If it is missing or broken.
        UnsupportedModel
            If it asks for what is not implemented.
        """
        path = str(checkpoint.path)
        if checkpoint.format == "gguf":
            return cls.from_gguf(checkpoint.metadata, checkpoint.tensors, path=path)
        if checkpoint.config is None:
            raise CheckpointError(
                f"{path}: there is no config.json beside the weights; download it as well"
            )
        config = cls.from_hf(checkpoint.config, path=path)
        # Before anything is made for each of them; which tensors there are is checked later.
        if config.n_layers * max(1, config.n_experts) > len(checkpoint.tensors):
            experts = f" of {config.n_experts} experts" if config.n_experts else ""
            raise CheckpointError(
                f"{path}: config.json says {config.n_layers} layers{experts}, but the checkpoint "
                f"holds {len(checkpoint.tensors)} tensors"
            )
        return config

    @classmethod
    def from_gguf(
        cls, metadata: Mapping[str, Any], tensors: Mapping[str, Any], *, path: str = ""
    ) -> "ModelConfig":
        """Read the metadata of a GGUF file.

        Parameters
        ----------
        metadata : mapping
            The file's keys and values.
        tensors : mapping of str to Tensor
            The file's tensors: switches for which there is no key are read off their names.
        path : str
            For messages.

        Raises
        ------
        UnsupportedModel
            If the architecture is unknown, or a key asks for what is not implemented.
        CheckpointError
            If a key is missing, has the wrong type, or contradicts another.
        """
        config = cls(**fields_from_gguf(metadata, tensors, path))
        config.validate(path)
        return config

    @classmethod
    def from_hf(cls, config: Mapping[str, Any], *, path: str = "") -> "ModelConfig":
        """Read a Hugging Face ``config.json``, with the defaults of Transformers' classes.

        Parameters
        ----------
        config : mapping
            The parsed file.
        path : str
            For messages.

        Raises
        ------
        UnsupportedModel
            If the model type is unknown, or a key asks for what is not implemented.
        CheckpointError
            If a key has the wrong type or contradicts another.
        """
        model = cls(**fields_from_hf(config, path))
        model.validate(path)
        return model

    def validate(self, path: str = "") -> None:
        """Check every number; all that is wrong is reported at once.

        Raises
        ------
        CheckpointError
            If the configuration is no sound model.
        UnsupportedModel
            If it is one, but beyond what the kernels hold.
        """
        where = f"{path}: " if path else ""
        if wrong := list(self._contradictions()):
            raise CheckpointError(f"{where}{self.architecture} model: " + "; ".join(wrong))
        if beyond := list(self._beyond_limits()):
            raise UnsupportedModel(f"{where}{self.architecture} model: " + "; ".join(beyond))

    def _contradictions(self) -> Iterator[str]:
        sizes = [field.name for field in fields(self) if field.type is int]
        may_be_zero = {"n_experts", "n_experts_used", "d_expert_ffn", "d_ffn"}
        for name in sizes:
            value = getattr(self, name)
            if value < (0 if name in may_be_zero else 1):
                yield f"{name} is {value}, but must be positive"
            elif value > MAX_POSITIONS:
                yield f"{name} is {value}, more than any model has"
        for name in (
            "norm_eps", "attention_scale", "embedding_scale", "rope_theta", "rope_local_theta",
        ):  # fmt: skip
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                yield f"{name} is {value}, but must be positive"
        if self.n_kv_heads > 0 and self.n_heads % self.n_kv_heads:
            yield f"{self.n_heads} heads cannot share {self.n_kv_heads} key heads evenly"
        if self.head_dim % 2:
            yield f"head_dim is {self.head_dim}, but a rotation needs pairs"
        if self.windows and len(self.windows) != self.n_layers:
            yield f"{len(self.windows)} window entries for {self.n_layers} layers"
        if any(window is not None and window < 1 for window in self.windows):
            yield "a window is smaller than 1"
        if any(window is not None and window > MAX_POSITIONS for window in self.windows):
            yield f"a window is larger than {MAX_POSITIONS}"
        if self.rope_layers and len(self.rope_layers) != self.n_layers:
            yield f"{len(self.rope_layers)} rope entries for {self.n_layers} layers"
        if self.rope_scaling is not None:
            yield from self.rope_scaling.problems(self.head_dim, self.rope_theta)
        if self.n_experts:
            if not 1 <= self.n_experts_used <= self.n_experts:
                yield f"{self.n_experts_used} of {self.n_experts} experts are used"
            if self.d_expert_ffn < 1:
                yield f"d_expert_ffn is {self.d_expert_ffn}, but must be positive"
        elif self.d_ffn < 1:
            yield f"d_ffn is {self.d_ffn}, but must be positive"

    def _beyond_limits(self) -> Iterator[str]:
        if self.head_dim > MAX_HEAD_DIM:
            yield f"head_dim is {self.head_dim}, but at most {MAX_HEAD_DIM} is supported"
        for what, count, limit in (
            ("layers", self.n_layers, MAX_LAYERS),
            ("experts", self.n_experts, MAX_EXPERTS),
            ("experts in all layers", self.n_layers * self.n_experts, MAX_ALL_EXPERTS),
            ("tokens in the vocabulary", self.n_vocab, MAX_VOCABULARY),
        ):
            if count > limit:
                yield f"there are {count} {what}, but at most {limit} are supported"
        for what, width in (
            ("d_model", self.d_model),
            ("n_heads * head_dim", self.q_size),
            ("n_kv_heads * head_dim", self.kv_size),
            ("d_ffn", self.d_ffn),
            ("d_expert_ffn", self.d_expert_ffn),
        ):
            if width > MAX_WIDTH:
                yield f"{what} is {width}, but at most {MAX_WIDTH} is supported"

    @property
    def q_size(self) -> int:
        """Length of all query heads of a position together."""
        return self.n_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Length of all key (or value) heads of a position together."""
        return self.n_kv_heads * self.head_dim

    def window(self, layer: int) -> int | None:
        """How many positions `layer` sees, itself included; None sees all."""
        return self.windows[layer] if self.windows else None

    def ropes(self, n_ctx: int | None = None) -> tuple[Rope | None, ...]:
        """One rotary table for each layer, None for a layer without; equal tables are shared.

        Parameters
        ----------
        n_ctx : int or None
            Context of the session. It matters to ``rope_scaling.type == "dynamic"`` alone, where
            None is the context of training.
        """
        far = Rope.create(self.head_dim, self.rope_theta, self.rope_scaling, n_ctx=n_ctx)
        near = far
        if self.rope_local_theta is not None:
            near = Rope.create(self.head_dim, self.rope_local_theta)
        rotated = self.rope_layers or (True,) * self.n_layers
        return tuple(
            None if not rotated[layer] else far if self.window(layer) is None else near
            for layer in range(self.n_layers)
        )

    def parameter_count(self) -> int:
        """Count the weights: a tied head once, biases and norms included."""
        attention = self.d_model * (2 * self.q_size + 2 * self.kv_size)
        if self.qkv_bias:
            attention += self.q_size + 2 * self.kv_size
        if self.qk_norm == "head":
            attention += 2 * self.head_dim
        elif self.qk_norm == "whole":
            attention += self.q_size + self.kv_size
        if self.n_experts:
            expert = 3 * self.d_model * self.d_expert_ffn
            feed_forward = self.n_experts * (expert + self.d_model)
        else:
            feed_forward = 3 * self.d_model * self.d_ffn
        norms = self.d_model * (4 if self.sandwich_norms else 2)
        embedding = self.n_vocab * self.d_model * (1 if self.tied_head else 2)
        return self.n_layers * (attention + feed_forward + norms) + embedding + self.d_model
