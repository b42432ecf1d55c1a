/* Thirty-two rows of a product with all tokens, by whatever path suits, and its three ends. */
#ifndef RML_PRODUCT_H
#define RML_PRODUCT_H

#include "activation.h"
#include "product_f32.h"
#if defined(__AVX512VNNI__)
#include "product_avx512.h"
#else
#include "product_rows.h"
#endif

enum { RML_PASS_TOKENS = 512 }; /* tokens that share one expansion of the weights */

/* The level's product of quantized weights, once for each format. */
#define X(NAME, ...)                                                                                            \
    static __attribute__((noinline)) void integer_rows_##NAME(const rml_matrix *w, ptrdiff_t row, int n,        \
                                                              const rml_inputs *in, ptrdiff_t t0, ptrdiff_t t1, \
                                                              float *strip, char *scratch) {                    \
        const rml_format f = RML_FORMAT(NAME);                                                                  \
        integer_rows(w, row, n, in, t0, t1, strip, scratch, f);                                                 \
    }
RML_QUANTIZED_FORMATS(X)
#undef X

/* Scratch bytes of one thread for `rml_rows`, beside its strips. */
static ptrdiff_t rml_rows_scratch(ptrdiff_t k, ptrdiff_t n_tokens) {
    const ptrdiff_t floats = f32_scratch(k) * (ptrdiff_t)sizeof(float);
    const ptrdiff_t integers = integer_scratch(k, n_tokens);
    return whole_lines(integers > floats ? integers : floats);
}

/* y[t][r] of rows [row, row + n), n <= 32, and tokens [t0, t1) into strip (t1 - t0, 32). */
static void rml_rows(const rml_matrix *w, ptrdiff_t row, int n, const rml_inputs *in, ptrdiff_t t0,
                     ptrdiff_t t1, float *strip, char *scratch) {
    if (in->bytes)
        switch (w->type) {
#define X(NAME, ID, ...) \
    case ID: integer_rows_##NAME(w, row, n, in, t0, t1, strip, scratch); return;
            RML_QUANTIZED_FORMATS(X)
#undef X
        }
    f32_rows(w, row, n, in->x + t0 * in->stride, in->stride, t1 - t0, strip, (float *)scratch);
}

/* out[t][r] = strip + bias; `out` points at row `row` of token t0, `stride` floats a token. */
static void rml_store_strip(const float *strip, ptrdiff_t n_tokens, int n, const float *bias, float *out,
                            ptrdiff_t stride) {
    for (ptrdiff_t t = 0; t < n_tokens; ++t)
        for (int r = 0; r < n; ++r)
            out[t * stride + r] = bias ? strip[t * RML_ROWS + r] + bias[r] : strip[t * RML_ROWS + r];
}

static void rml_add_strip(const float *strip, ptrdiff_t n_tokens, int n, float *out, ptrdiff_t stride) {
    for (ptrdiff_t t = 0; t < n_tokens; ++t)
        for (int r = 0; r < n; ++r) out[t * stride + r] += strip[t * RML_ROWS + r];
}

static void rml_gate_strip(float *gate, const float *up, ptrdiff_t n_tokens, int n, int activation, float *out,
                           ptrdiff_t stride) {
    for (ptrdiff_t t = 0; t < n_tokens; ++t) {
        const float *g = gate + t * RML_ROWS, *u = up + t * RML_ROWS;
        float y[RML_ROWS];
        for (int i = 0; i < RML_ROWS; i += RML_LANES)
            store_lanes(y + i, activate_lanes(load_lanes(g + i), activation) * load_lanes(u + i));
        memcpy(out + t * stride, y, (size_t)n * sizeof *y);
    }
}

#endif
