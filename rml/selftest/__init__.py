"""Every kernel measured on this machine, for people with other processors than ours.

Each implementation that can run here (the Python definitions, and the compiled twins of every
instruction-set level) computes small problems with random data. The results are held against
float64 on the same inputs, within the sum of the roundings that the kernel's order of operations
implies; what has no roundings must agree exactly.

`run` yields the measurements; `products`, `attention` and `others` are the problems.
"""

from rml.selftest.run import Measurement, implementations, run

__all__ = ["Measurement", "implementations", "run"]
