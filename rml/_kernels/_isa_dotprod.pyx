# The compiled twins at instruction-set level "dotprod"; setup.py gives the compiler flags.
include "twins.pxi"
