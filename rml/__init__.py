"""rml: a local language-model engine for Python; readable, exact, fast.

    import rml

    with rml.load("smollm2") as model:
        print(model.generate("The capital of France is", max_tokens=8))

Everything public is listed in ``__all__``. A name is imported when it is first used, so that
``import rml`` costs nothing to a program that needs one part only.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rml.errors import (
    ArgumentError,
    Cancelled,
    CheckpointError,
    ClosedError,
    ContextOverflow,
    DownloadError,
    GrammarError,
    NumericError,
    OutOfMemory,
    RmlError,
    SaveError,
    TemplateError,
    TokenizerError,
    UnsupportedModel,
)

if TYPE_CHECKING:
    from rml.basics import dequantize, info
    from rml.engine.session import Session
    from rml.files import Checkpoint, Tensor, open_checkpoint
    from rml.generation.results import Completion, Delta, Timings, TokenLogprob, Usage
    from rml.generation.scoring import Score
    from rml.generation.stop import StopFilter
    from rml.generation.stream import Stream
    from rml.loading import load
    from rml.model import Model
    from rml.sampling.sampler import Sampler
    from rml.sampling.settings import SamplingSettings
    from rml.tokenizers import UNSET, ChatTemplate, Tokenizer, load_tokenizer

__version__ = "0.1.0"

__all__ = [
    "UNSET",
    "ArgumentError",
    "Cancelled",
    "ChatTemplate",
    "Checkpoint",
    "CheckpointError",
    "ClosedError",
    "Completion",
    "ContextOverflow",
    "Delta",
    "DownloadError",
    "GrammarError",
    "Model",
    "NumericError",
    "OutOfMemory",
    "RmlError",
    "Sampler",
    "SamplingSettings",
    "SaveError",
    "Score",
    "Session",
    "StopFilter",
    "Stream",
    "TemplateError",
    "Tensor",
    "Timings",
    "TokenLogprob",
    "Tokenizer",
    "TokenizerError",
    "UnsupportedModel",
    "Usage",
    "__version__",
    "dequantize",
    "info",
    "load",
    "load_tokenizer",
    "open_checkpoint",
]

_HOMES = {
    "rml.basics": ("dequantize", "info"),
    "rml.files": ("Checkpoint", "Tensor", "open_checkpoint"),
    "rml.generation.results": ("Completion", "Delta", "Timings", "TokenLogprob", "Usage"),
    "rml.sampling.sampler": ("Sampler",),
    "rml.generation.scoring": ("Score",),
    "rml.engine.session": ("Session",),
    "rml.sampling.settings": ("SamplingSettings",),
    "rml.generation.stop": ("StopFilter",),
    "rml.generation.stream": ("Stream",),
    "rml.loading": ("load",),
    "rml.model": ("Model",),
    "rml.tokenizers": ("UNSET", "ChatTemplate", "Tokenizer", "load_tokenizer"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the name stands for
    if name not in _HOME:
        raise AttributeError(f"module 'rml' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
