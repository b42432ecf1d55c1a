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

/* Sums of sixteen vectors, each by the tree of `sum16`; sum i of v[i]. */
RML_INLINE f32x16 sums16(const f32x16 *v) {
#if defined(__AVX512F__)
    __m512 p[8], q[4], r[2];
    for (int i = 0; i < 8; ++i) { /* lanes i and i + 8 */
        const __m512 a = (__m512)v[2 * i], b = (__m512)v[2 * i + 1];
        p[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    }
    for (int i = 0; i < 4; ++i) /* i and i + 4 */
        q[i] = _mm512_add_ps(_mm512_shuffle_f32x4(p[2 * i], p[2 * i + 1], 0x88), _mm512_shuffle_f32x4(p[2 * i], p[2 * i + 1], 0xdd));
    for (int i = 0; i < 2; ++i) { /* i and i + 2 */
        const __m512d a = _mm512_castps_pd(q[2 * i]), b = _mm512_castps_pd(q[2 * i + 1]);
        r[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
    /* i and i + 1; sum 4j + k is then in lane 4k + j */
    const __m512 s = _mm512_add_ps(_mm512_shuffle_ps(r[0], r[1], 0x88), _mm512_shuffle_ps(r[0], r[1], 0xdd));
    return (f32x16)_mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), s);
#else
    f32x16 sums;
    for (int i = 0; i < 16; ++i) sums[i] = sum16(v[i]);
    return sums;
#endif
}

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
    if (n_rows == 4 && n_tokens > 1) {
        for (int t0 = 0; t0 < n_tokens; t0 += 4) {
            f32x16 v[16];
            for (int i = 0; i < 16; ++i) v[i] = t0 + i / 4 < n_tokens ? acc[i % 4][t0 + i / 4] : splat16(0);
            const f32x16 sums = sums16(v);
            for (int t = 0; t < 4 && t0 + t < n_tokens; ++t)
                memcpy(strip + (t0 + t) * RML_ROWS, (const float *)&sums + 4 * t, 4 * sizeof(float));
        }
        return;
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
            for (; t + 2 <= n_tokens && F32_TOKENS > 2; t += 2)
                f32_tile(panel, k, F32_ROWS, x + t * k, k, 2, strip + t * RML_ROWS + r);
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
