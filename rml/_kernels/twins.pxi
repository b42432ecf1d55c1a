# Every compiled twin, in one module per instruction-set level (see setup.py).
include "op_cy.pyx"
include "norm_cy.pyx"
