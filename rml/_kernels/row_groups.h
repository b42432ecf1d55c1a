/* What the products by groups of rows share: a format as constants, and matrices of few rows. */
#ifndef RML_ROW_GROUPS_H
#define RML_ROW_GROUPS_H

#include "grids.h"

/* What the loops of a product need to know of a format; constants, once inlined. */
typedef struct {
    stage_fn *stage; /* or NULL */
    unit_fn *unit;
    scales_fn *scales;
    int units, bytes, bias, n_minima, factored;
    int n_scales;    /* floats of a unit */
    int packed_bias; /* of codes that their factors are multiplied into */
} rml_format;

#define RML_FORMAT(NAME)                                                                              \
    {stage_rows_##NAME, unit_rows_##NAME,  scales_rows_##NAME,                                        \
     UNITS_##NAME,      BYTES_##NAME,      BIAS_##NAME,                                               \
     MINIMA_##NAME,     FACTORED_##NAME,   FACTORED_##NAME ? 1 : SCALES_##NAME,                       \
     FACTORED_##NAME && BIAS_##NAME ? 128 : BIAS_##NAME}

enum { BLOCK_UNITS = 8 }; /* at most */

/* Codes of a unit with its two factors: a product of many tokens then has one sum for both halves.
 * (One token multiplies the sums of the halves with them, which is the same integer.) */
RML_INLINE void multiply_factors(row_lanes *v, const row_lanes *factors, const rml_format f) {
    for (int k = 0; k < 8; ++k)
        v[k] = multiply_bytes(v[k], factors[k / 4], (uint32_t)f.packed_bias - factors[k / 4] * (uint32_t)f.bias);
}

/* Bytes that `whole_group` may write; no block of a format has more than 34 bytes for 32 values. */
RML_INLINE ptrdiff_t group_bytes(ptrdiff_t k) { return RML_LANES * (k / RML_UNIT * 34); }

/* The matrix, or where it has fewer rows than lanes a copy that repeats the last one. */
RML_INLINE rml_matrix whole_group(const rml_matrix *w, uint8_t *copy) {
    rml_matrix whole = *w;
    if (w->rows >= RML_LANES) return whole;
    for (ptrdiff_t r = 0; r < RML_LANES; ++r)
        memcpy(copy + r * w->row_bytes, w->data + (r < w->rows ? r : w->rows - 1) * w->row_bytes, (size_t)w->row_bytes);
    whole.data = copy;
    whole.rows = RML_LANES;
    return whole;
}

/* Where the group begins that holds row `first`: the last rows are computed with those before. */
RML_INLINE ptrdiff_t group_start(const rml_matrix *whole, ptrdiff_t first) {
    const ptrdiff_t last = whole->rows - RML_LANES;
    return first < last ? first : last;
}

#endif
