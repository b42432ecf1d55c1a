/* Products in float32: sixteen lanes along the columns, one fixed tree at the end.
 *
 * A few rows are expanded once and meet all tokens in a register tile. The shape of the tile is
 * the level's choice and changes no bit, since each output has lanes of its own.
 */
#ifndef RML_PRODUCT_F32_H
#define RML_PRODUCT_F32_H

#include "formats.h"

enum { RML_ROWS = 32 }; /* rows of an item; strips are (T, 32) */

#if defined(__AVX512F__)
enum { F32_ROWS = 4, F32_TOKENS = 6 };
#elif defined(__AVX2__)
enum { F32_ROWS = 2, F32_TOKENS = 3 };
#else
enum { F32_ROWS = 2, F32_TOKENS = 1 };
#endif

RML_INLINE void f32_tile(const float *w, ptrdiff_t w_stride, int n_rows, const float *x,
                         ptrdiff_t k, int n_tokens, float *strip) {
    f32x16 acc[F32_ROWS][F32_TOKENS];
    for (int r = 0; r < n_rows; ++r)
        for (int t = 0; t < n_tokens; ++t) acc[r][t] = splat16(0);
    ptrdiff_t i = 0;
    for (; i + 16 <= k; i += 16) {
        f32x16 row[F32_ROWS];
        for (int r = 0; r < n_rows; ++r) row[r] = load16(w + r * w_stride + i);
        for (int t = 0; t < n_tokens; ++t) {
            const f32x16 v = load16(x + t * k + i);
            for (int r = 0; r < n_rows; ++r) acc[r][t] = fma16(v, row[r], acc[r][t]);
        }
    }
    if (i < k)
        for (int t = 0; t < n_tokens; ++t) {
            const f32x16 v = load_part(x + t * k + i, k - i);
            for (int r = 0; r < n_rows; ++r)
                acc[r][t] = fma16(v, load_part(w + r * w_stride + i, k - i), acc[r][t]);
        }
    for (int r = 0; r < n_rows; ++r)
        for (int t = 0; t < n_tokens; ++t) strip[t * RML_ROWS + r] = sum16(acc[r][t]);
}

/* Scratch floats for `f32_rows`. */
RML_INLINE ptrdiff_t f32_scratch(ptrdiff_t k) { return F32_ROWS * (k + 16); }

/* `n` rows from `row` on, with all tokens, into strip (T, 32). */
static void f32_rows(const rml_matrix *w, ptrdiff_t row, int n, const float *x, ptrdiff_t n_tokens,
                     float *strip, float *panel) {
    const ptrdiff_t k = w->cols;
    for (int r = 0; r < n; r += F32_ROWS) {
        const int n_rows = n - r < F32_ROWS ? n - r : F32_ROWS;
        for (int i = 0; i < n_rows; ++i)
            rml_expand(w->data + (row + r + i) * w->row_bytes, w->type, k, panel + i * k);
        ptrdiff_t t = 0;
        if (n_rows == F32_ROWS) {
            for (; t + F32_TOKENS <= n_tokens; t += F32_TOKENS)
                f32_tile(panel, k, F32_ROWS, x + t * k, k, F32_TOKENS, strip + t * RML_ROWS + r);
            for (; t < n_tokens; ++t)
                f32_tile(panel, k, F32_ROWS, x + t * k, k, 1, strip + t * RML_ROWS + r);
        } else {
            for (int i = 0; i < n_rows; ++i)
                for (t = 0; t < n_tokens; ++t)
                    f32_tile(panel + i * k, k, 1, x + t * k, k, 1, strip + t * RML_ROWS + r + i);
        }
    }
}

#endif
