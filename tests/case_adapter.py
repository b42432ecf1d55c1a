"""The adapter through which the case bank's runner drives rml.

    python CASES/run_cases.py tests/case_adapter.py CASES [kind ...]

Each function imports what it needs, so that this file loads whatever is built, and the runner's
child processes for single files start quickly.
"""


def open_gguf(path):
    """Names and values of the tensors in a GGUF file."""
    return _values(path)


def open_safetensors(path):
    """Names and values of the tensors in a safetensors file or folder."""
    return _values(path)


def _values(path):
    from rml.files import open_checkpoint

    with open_checkpoint(path) as checkpoint:
        return {name: tensor.numpy().tolist() for name, tensor in checkpoint.tensors.items()}
