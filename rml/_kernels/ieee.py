"""Floating point as IEEE 754 has it, whatever the program around has told numpy.

A program may have floating-point events raise (``np.seterr(all="raise")``) or turn warnings into
errors. In the arithmetic of a model they are expected: e to the power of a very negative number is
0, what is too large for float16 is infinite. Results that are no numbers are looked for by name.
"""

import numpy as np

__all__ = ["ieee"]

ieee = np.errstate(all="ignore")
"""Decorator of functions that compute."""
