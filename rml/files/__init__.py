"""Model files: bytes to names and views, no arithmetic.

`open_checkpoint` opens a GGUF file, a safetensors file or a Hugging Face folder as a `Checkpoint`,
whose `Tensor` objects are views into the mapped files.

Reading order: `checkpoint` (the face), `mapped` (files in memory, tensors), `gguf` and
`gguf_values`, `safetensors` and `strict_json`, `folder` (which file of a folder is the model),
`foreign` (files that are no models, refused by name).
"""

from rml.files.checkpoint import Checkpoint, open_checkpoint
from rml.files.mapped import Tensor

__all__ = ["Checkpoint", "Tensor", "open_checkpoint"]
