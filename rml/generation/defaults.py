"""What a model's own files say about generation: sampling settings and end tokens."""

from rml.errors import CheckpointError
from rml.files import Checkpoint
from rml.files.paths import is_folder, is_there
from rml.files.strict_json import load_json
from rml.generation.ranges import token_ids
from rml.generation.settings import (
    SamplingSettings,
    settings_of_gguf,
    settings_of_hugging_face,
)

__all__ = ["generation_defaults"]


def generation_defaults(checkpoint: Checkpoint) -> tuple[SamplingSettings, frozenset[int]]:
    """Read `general.sampling.*` of a GGUF file, or `generation_config.json` beside safetensors.

    Returns
    -------
    settings : SamplingSettings
        Defaults where the files say nothing.
    stop_ids : frozenset of int
        Ids that end a text, besides those that the tokenizer knows.

    Raises
    ------
    CheckpointError
        If a value is out of its range.
    """
    if checkpoint.format == "gguf":
        return settings_of_gguf(checkpoint.metadata, checkpoint.path), frozenset()
    folder = checkpoint.path if is_folder(checkpoint.path) else checkpoint.path.parent
    file = folder / "generation_config.json"
    config = load_json(file, constants=True) if is_there(file) else {}
    # The newer file wins, as in Transformers; the older one has the key in old repositories.
    source, ends = file, config.get("eos_token_id")
    if ends is None:
        source, ends = folder / "config.json", (checkpoint.config or {}).get("eos_token_id")
    try:
        stop_ids = frozenset(token_ids(ends if ends is not None else []))
    except ValueError as error:
        raise CheckpointError(f"{source}: eos_token_id={ends!r} {error}") from None
    return settings_of_hugging_face(config, file), stop_ids
