# The compiled twins at instruction-set level "avx512vnni"; setup.py gives the compiler flags.
include "twins.pxi"
