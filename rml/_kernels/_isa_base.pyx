# The compiled twins at instruction-set level "base"; setup.py gives the compiler flags.
include "twins.pxi"
