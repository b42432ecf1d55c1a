# Every compiled twin, in one module per instruction-set level (see setup.py).
include "op_cy.pyx"
include "norm_cy.pyx"
include "add_cy.pyx"
include "dequant_cy.pyx"
include "product_cy.pyx"
include "matmul_many_cy.pyx"
include "matmul_glu_cy.pyx"
include "accumulate_cy.pyx"
include "rope_cy.pyx"
include "attention_cy.pyx"
include "kv_store_cy.pyx"
# Last: it names them all.
include "program_cy.pyx"
