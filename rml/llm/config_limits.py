"""Bounds of a configuration: what the kernels hold, and what no sound model exceeds."""

__all__ = ["MAX_EXPERTS", "MAX_LAYERS", "MAX_SIZE"]

# No model of these families has more; each expert costs three records in every layer's plan.
MAX_EXPERTS = 256

# Far above any model; a hostile file must not make us build lists of four thousand million layers.
MAX_LAYERS = 1024
MAX_SIZE = 2**31 - 1
