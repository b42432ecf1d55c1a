"""A model's weights and the recipe that they are used by."""

from collections.abc import Callable, Sequence
from functools import partial

from rml._kernels.checks import COMPUTE_MODES
from rml._kernels.pages import Pages
from rml._kernels.threads import resolve_threads
from rml.errors import ArgumentError, ClosedError
from rml.files import Checkpoint
from rml.llm.config import ModelConfig
from rml.llm.evaluator import Evaluator
from rml.llm.layers import LayerGroup
from rml.llm.recipe import Recipe, require_covered
from rml.llm.weight_source import WeightSource
from rml.ranges import one_of

__all__ = ["DecoderLM"]


class DecoderLM:
    """A model's weights and its recipe; immutable, and shared by any number of sequences.

    Parameters
    ----------
    checkpoint : Checkpoint
        Open for as long as the decoder is used; the matrices are views into it.
    config : ModelConfig, optional
        What the checkpoint holds; read from it if not given.
    compute : str
        How quantized weights are multiplied: ``"int8x2"``, ``"int8"`` or ``"f32"``.
    n_threads : int, optional
        Threads of every step; all processors that the process may use if not given.
    n_ctx : int, optional
        Context that rotary tables are made for, where they depend on it; the model's own if not
        given.

    Attributes
    ----------
    checkpoint : Checkpoint
    config : ModelConfig
    compute : str
    n_threads : int
    n_ctx : int
        Context that rotary tables are made for.

    Raises
    ------
    UnsupportedModel
        If the recipe does not cover the model.
    CheckpointError
        If weights are missing or do not have the shapes that the configuration implies.
    ArgumentError
        If `compute` or `n_threads` is out of range.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        config: ModelConfig | None = None,
        compute: str = "int8x2",
        n_threads: int | None = None,
        n_ctx: int | None = None,
    ) -> None:
        compute = one_of("compute", compute, COMPUTE_MODES)
        self.config = config if config is not None else ModelConfig.from_checkpoint(checkpoint)
        self.compute = compute
        self.n_threads = resolve_threads(n_threads)
        self.checkpoint = checkpoint
        self.n_ctx = self.config.n_ctx_train if n_ctx is None else n_ctx
        require_covered(self.config, checkpoint.path)
        self._recipe = Recipe(
            WeightSource(checkpoint, self.config),
            self.config,
            compute=compute,
            n_threads=self.n_threads,
            n_ctx=self.n_ctx,
        )

    @property
    def groups(self) -> tuple[LayerGroup, ...]:
        """Layers that share pages, and what they keep of a position."""
        return self._recipe.groups

    def evaluator(self, pages: Sequence[Pages]) -> Evaluator:
        """Make what runs steps over these pages, one for each of `groups`.

        Raises
        ------
        ArgumentError
            If the pages are of other sizes.
        """
        for group, its_pages in zip(self.groups, pages, strict=True):
            have = (its_pages.n_layers, its_pages.n_kv_heads, its_pages.head_dim)
            wanted = (len(group.layers), group.n_kv_heads, group.head_dim)
            if have != wanted:
                raise ArgumentError(
                    "the pages were made for another model: their layers, kv heads and dimensions "
                    f"a head are {have}, those of this model {wanted}"
                )
        return Evaluator(self._recipe, pages, self.require_weights)

    def require_weights(self) -> None:
        """Look whether the weights are there, and are what was loaded.

        Raises
        ------
        ClosedError
            If the checkpoint was closed.
        CheckpointError
            If another program has changed a file that is mapped.
        """
        if self.checkpoint.closed:
            raise ClosedError("the model was closed")
        self.checkpoint.require_unchanged()

    def __reduce__(self) -> tuple[Callable[[], "DecoderLM"], tuple[()]]:
        # As the checkpoint, which pickles as its path: the weights are not copied.
        names = ("config", "compute", "n_threads", "n_ctx")
        arguments = {name: getattr(self, name) for name in names}
        return partial(type(self), self.checkpoint, **arguments), ()
