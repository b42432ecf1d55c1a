# The compiled twins at instruction-set level "avx2"; setup.py gives the compiler flags.
include "twins.pxi"
