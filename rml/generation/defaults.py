"""What a model's own files say about sampling."""

from rml.files import Checkpoint
from rml.files.paths import is_folder, is_there
from rml.files.strict_json import load_json
from rml.generation.generation_config import warn_of_keys, warn_of_old_keys
from rml.sampling.settings import (
    SamplingSettings,
    settings_of_gguf,
    settings_of_hugging_face,
)

__all__ = ["generation_defaults"]


def generation_defaults(checkpoint: Checkpoint) -> SamplingSettings:
    """Read `general.sampling.*` of a GGUF file, or `generation_config.json` beside safetensors.

    Where the files say nothing, it is rml's defaults. What they say and rml does not do is logged.

    Raises
    ------
    CheckpointError
        If a value is out of its range.
    """
    if checkpoint.format == "gguf":
        return settings_of_gguf(checkpoint.metadata, checkpoint.path)
    folder = checkpoint.path if is_folder(checkpoint.path) else checkpoint.path.parent
    file = folder / "generation_config.json"
    if not is_there(file):
        warn_of_old_keys(checkpoint.config or {}, folder / "config.json")
        return settings_of_hugging_face({}, file)
    config = load_json(file, constants=True)
    warn_of_keys(config, file)
    return settings_of_hugging_face(config, file)
