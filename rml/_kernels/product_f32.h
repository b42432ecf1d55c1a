/* Products in float32: sixteen lanes along the columns, one fixed tree at the end.
 *
 * A few rows are expanded once and meet all tokens in a register tile, some columns at a time so
 * that tile and rows stay in the first-level cache; between two pieces of the columns the lanes
 * wait in scratch memory. Tile and piece are the level's choice and change no bit, since each
 * output has lanes of its own and its products are added in the order of the columns.
 */
#ifndef RML_PRODUCT_F32_H
#define RML_PRODUCT_F32_H

#include "expand.h"

enum { RML_ROWS = 32 }; /* rows of an item; strips are (T, 32) */

/* The sixteen lanes are `PARTS` of the machine's own registers, arrays of which stay in place. */
#if defined(__AVX512F__)
enum { F32_ROWS = 4, F32_TOKENS = 6 };
#elif defined(__AVX2__)
enum { F32_ROWS = 2, F32_TOKENS = 3 };
#else
enum { F32_ROWS = 2, F32_TOKENS = 1 };
#endif

enum {
    PARTS = 16 / RML_LANES,
    F32_COLUMNS = 1024 /* of a piece: rows and tokens of a tile take 40 KB */
};

/* Sums of sixteen vectors, each by the tree of `sum16`; sum i of v[i]. */
RML_INLINE void sums16(const float *v /* [16][16] */, float *sums) {
#if defined(__AVX512F__)
    __m512 p[8], q[4], r[2];
    for (int i = 0; i < 8; ++i) { /* lanes i and i + 8 */
        const __m512 a = _mm512_loadu_ps(v + 32 * i), b = _mm512_loadu_ps(v + 32 * i + 16);
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
    _mm512_storeu_ps(sums, _mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), s));
#else
    for (int i = 0; i < 16; ++i) sums[i] = sum16(load16(v + 16 * i));
#endif
}

/* Add the products of `n` columns to the lanes of a tile, sums[t][r][16]; `first` begins at zero. */
RML_INLINE void f32_tile(const float *w, ptrdiff_t w_stride, int n_rows, const float *x, ptrdiff_t x_stride,
                         ptrdiff_t n, int n_tokens, int first, float *sums) {
    lanes acc[F32_TOKENS][F32_ROWS][PARTS];
#pragma GCC unroll 8
    for (int t = 0; t < n_tokens; ++t)
#pragma GCC unroll 8
        for (int r = 0; r < n_rows; ++r)
#pragma GCC unroll 4
            for (int p = 0; p < PARTS; ++p)
                acc[t][r][p] = first ? splat_lanes(0) : load_lanes(sums + (t * F32_ROWS + r) * 16 + p * RML_LANES);
    ptrdiff_t i = 0;
    for (; i + 16 <= n; i += 16)
#pragma GCC unroll 4
        for (int p = 0; p < PARTS; ++p) {
            lanes row[F32_ROWS];
#pragma GCC unroll 8
            for (int r = 0; r < n_rows; ++r) row[r] = load_lanes(w + r * w_stride + i + p * RML_LANES);
#pragma GCC unroll 8
            for (int t = 0; t < n_tokens; ++t) {
                const lanes v = load_lanes(x + t * x_stride + i + p * RML_LANES);
#pragma GCC unroll 8
                for (int r = 0; r < n_rows; ++r) acc[t][r][p] = fma_lanes(v, row[r], acc[t][r][p]);
            }
        }
#pragma GCC unroll 8
    for (int t = 0; t < n_tokens; ++t)
#pragma GCC unroll 8
        for (int r = 0; r < n_rows; ++r)
#pragma GCC unroll 4
            for (int p = 0; p < PARTS; ++p) store_lanes(sums + (t * F32_ROWS + r) * 16 + p * RML_LANES, acc[t][r][p]);
    if (i < n) /* the last columns of a row, fewer than sixteen */
        for (int t = 0; t < n_tokens; ++t)
            for (int r = 0; r < n_rows; ++r) {
                float *to = sums + (t * F32_ROWS + r) * 16;
                for (ptrdiff_t l = 0; l < n - i; ++l)
                    to[l] = fma1(x[t * x_stride + i + l], w[r * w_stride + i + l], to[l]);
            }
}

/* Scratch floats for `f32_rows`: the rows expanded, and the lanes of all tokens. */
RML_INLINE ptrdiff_t f32_scratch(ptrdiff_t k, ptrdiff_t n_tokens) {
    return F32_ROWS * (k + 16) + (n_tokens + F32_TOKENS) * F32_ROWS * 16 + 256;
}

/* `n` rows from `row` on, with all tokens, into strip (T, 32). */
static void f32_rows(const rml_matrix *w, ptrdiff_t row, int n, const float *x, ptrdiff_t n_tokens,
                     float *strip, float *scratch) {
    const ptrdiff_t k = w->cols;
    float *waiting = scratch, *panel = scratch + (n_tokens + F32_TOKENS) * F32_ROWS * 16;
    for (int r = 0; r < n; r += F32_ROWS) {
        const int n_rows = n - r < F32_ROWS ? n - r : F32_ROWS;
        for (int i = 0; i < F32_ROWS; ++i) /* a row that does not exist is the last one again */
            rml_expand(w->data + (row + r + (i < n_rows ? i : n_rows - 1)) * w->row_bytes, w->type, k, panel + i * k);
        for (ptrdiff_t k0 = 0; k0 < k; k0 += F32_COLUMNS) {
            const ptrdiff_t columns = k - k0 < F32_COLUMNS ? k - k0 : F32_COLUMNS;
            const float *wk = panel + k0, *xk = x + k0;
            ptrdiff_t t = 0;
            for (; t + F32_TOKENS <= n_tokens; t += F32_TOKENS)
                f32_tile(wk, k, F32_ROWS, xk + t * k, k, columns, F32_TOKENS, k0 == 0, waiting + t * F32_ROWS * 16);
            for (; t < n_tokens; ++t)
                f32_tile(wk, k, F32_ROWS, xk + t * k, k, columns, 1, k0 == 0, waiting + t * F32_ROWS * 16);
        }
        for (ptrdiff_t i = 0; i < n_tokens * F32_ROWS; i += 16) { /* the lanes have room for sixteen */
            float sums[16];
            sums16(waiting + i * 16, sums);
            for (int j = 0; j < 16 && i + j < n_tokens * F32_ROWS; ++j)
                if ((i + j) % F32_ROWS < n_rows) strip[(i + j) / F32_ROWS * RML_ROWS + r + (i + j) % F32_ROWS] = sums[j];
        }
    }
}

#endif
