# The compiled twins at instruction-set level "neon"; setup.py gives the compiler flags.
include "twins.pxi"
