/* Products in float32: sixteen lanes along the columns, one fixed tree at the end.
 *
 * Weights are expanded once and meet all tokens in a register tile: a block of tokens, some columns
 * at a time, so that the inputs of the block stay in the first-level cache while the rows pass by.
 * Between two pieces of the columns the lanes wait in memory. One token meets plain numbers where
 * they are. Tile, block and piece are the level's choice and change no bit, since each output has
 * lanes of its own and its products are added in the order of the columns.
 */
#ifndef RML_PRODUCT_F32_H
#define RML_PRODUCT_F32_H

#include "expand.h"

enum { RML_ROWS = 32 }; /* rows of an item; strips are (T, 32) */

/* Bytes of a row from which on those that are read side by side are taken apart from each other, so
 * that each lies in pages of its own: the processor then fetches ahead by itself, and better than
 * it is told to. Half a page, since every second row is the nearest that is apart. */
enum { LONG_ROW = 2048 };

/* The sixteen lanes are `PARTS` of the machine's own registers, arrays of which stay in place. */
#if defined(__AVX512F__)
enum { F32_ROWS = 4, F32_TOKENS = 6 };
#elif defined(__AVX2__)
enum { F32_ROWS = 2, F32_TOKENS = 3 };
#elif defined(__aarch64__)
enum { F32_ROWS = 2, F32_TOKENS = 2 };
#else
enum { F32_ROWS = 2, F32_TOKENS = 1 };
#endif

enum {
    PARTS = 16 / RML_LANES,
    F32_BLOCK = 12,    /* tokens of a block, in whole tiles */
    F32_COLUMNS = 512, /* of a piece, whole blocks of every format: inputs of a block take 24 KB */
    F32_PAD = 16       /* columns between rows: else they would compete for the same lines of a cache */
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

/* Add the products of `n` columns, a multiple of sixteen, to the lanes of a tile, [t][32 rows][16];
 * `first` begins at zero. */
RML_INLINE void f32_tile(const float *w, ptrdiff_t w_stride, const float *x, ptrdiff_t x_stride, ptrdiff_t n,
                         int tokens, int first, float *sums) {
    lanes acc[F32_TOKENS][F32_ROWS][PARTS];
#pragma GCC unroll 8
    for (int t = 0; t < tokens; ++t)
#pragma GCC unroll 8
        for (int r = 0; r < F32_ROWS; ++r)
#pragma GCC unroll 4
            for (int p = 0; p < PARTS; ++p)
                acc[t][r][p] = first ? splat_lanes(0) : load_lanes(sums + (t * RML_ROWS + r) * 16 + p * RML_LANES);
    for (ptrdiff_t i = 0; i < n; i += 16)
#pragma GCC unroll 4
        for (int p = 0; p < PARTS; ++p) {
            lanes row[F32_ROWS];
#pragma GCC unroll 8
            for (int r = 0; r < F32_ROWS; ++r) row[r] = load_lanes(w + r * w_stride + i + p * RML_LANES);
#pragma GCC unroll 8
            for (int t = 0; t < tokens; ++t) {
                const lanes v = load_lanes(x + t * x_stride + i + p * RML_LANES);
#pragma GCC unroll 8
                for (int r = 0; r < F32_ROWS; ++r) acc[t][r][p] = fma_lanes(v, row[r], acc[t][r][p]);
            }
        }
#pragma GCC unroll 8
    for (int t = 0; t < tokens; ++t)
#pragma GCC unroll 8
        for (int r = 0; r < F32_ROWS; ++r)
#pragma GCC unroll 4
            for (int p = 0; p < PARTS; ++p) store_lanes(sums + (t * RML_ROWS + r) * 16 + p * RML_LANES, acc[t][r][p]);
}

/* The same for a block of tokens, in tiles of equal width. */
static __attribute__((noinline)) void f32_tiles(const float *w, ptrdiff_t w_stride, const float *x, ptrdiff_t x_stride,
                                                ptrdiff_t n, int tokens, int first, float *sums) {
    const int tiles = (tokens + F32_TOKENS - 1) / F32_TOKENS;
    for (int i = 0; i < tiles; ++i) {
        const int t = tokens * i / tiles;
        const float *xt = x + t * x_stride;
        float *to = sums + t * RML_ROWS * 16;
        switch (tokens * (i + 1) / tiles - t) {
#define TILE(N) \
    case N: f32_tile(w, w_stride, xt, x_stride, n, N <= F32_TOKENS ? N : 1, first, to); break;
            TILE(1) TILE(2) TILE(3) TILE(4) TILE(5) TILE(6)
#undef TILE
        }
    }
}

/* Sixteen columns of a row of plain numbers, a register's worth from column p * RML_LANES on. */
RML_INLINE lanes load_plain(const uint8_t *row, int type, int p) {
    if (type == RML_F16) return load_half_lanes((const uint16_t *)row + p * RML_LANES);
    if (type == RML_BF16) return load_bf16_lanes((const uint16_t *)row + p * RML_LANES);
    return load_lanes((const float *)row + p * RML_LANES);
}

/* One token with `n` rows where they are; k is a multiple of sixteen. */
RML_INLINE void f32_in_place(const rml_matrix *w, ptrdiff_t row, int n, const float *x, int type, float *strip) {
    enum { ROWS = 4 };
    const ptrdiff_t size = type == RML_F32 ? 4 : 2;
    for (int r0 = 0; r0 < n; r0 += ROWS) {
        const uint8_t *rows[ROWS];
        lanes acc[ROWS][PARTS] = {0};
        for (int r = 0; r < ROWS; ++r) rows[r] = w->data + (row + (r0 + r < n ? r0 + r : n - 1)) * w->row_bytes;
        for (ptrdiff_t i = 0; i < w->cols; i += 16)
#pragma GCC unroll 4
            for (int r = 0; r < ROWS; ++r) {
                const uint8_t *at = rows[r] + i * size;
                if (i * size % 64 == 0) __builtin_prefetch(at + ROWS * w->row_bytes);
#pragma GCC unroll 4
                for (int p = 0; p < PARTS; ++p)
                    acc[r][p] = fma_lanes(load_lanes(x + i + p * RML_LANES), load_plain(at, type, p), acc[r][p]);
            }
        for (int r = 0; r < ROWS && r0 + r < n; ++r) {
            float sums[16];
            for (int p = 0; p < PARTS; ++p) store_lanes(sums + p * RML_LANES, acc[r][p]);
            strip[r0 + r] = sum16(load16(sums));
        }
    }
}

RML_INLINE ptrdiff_t whole_vectors(ptrdiff_t k) { return (k + 15) & ~(ptrdiff_t)15; }

/* Scratch floats for `f32_rows`: the rows expanded, the lanes of a block, inputs of a block. */
RML_INLINE ptrdiff_t f32_scratch(ptrdiff_t k) {
    return (RML_ROWS + F32_BLOCK) * (whole_vectors(k) + F32_PAD) + F32_BLOCK * RML_ROWS * 16;
}

/* `n` rows from `row` on, with all tokens (`stride` floats apart), into strip (T, 32). */
static void f32_rows(const rml_matrix *w, ptrdiff_t row, int n, const float *x, ptrdiff_t stride, ptrdiff_t n_tokens,
                     float *strip, float *scratch) {
    const ptrdiff_t k = w->cols, padded = whole_vectors(k);
    if (n_tokens == 1 && k == padded)
        switch (w->type) {
        case RML_F32: f32_in_place(w, row, n, x, RML_F32, strip); return;
        case RML_F16: f32_in_place(w, row, n, x, RML_F16, strip); return;
        case RML_BF16: f32_in_place(w, row, n, x, RML_BF16, strip); return;
        }
    float *waiting = scratch, *rows = waiting + F32_BLOCK * RML_ROWS * 16, *packed = rows + RML_ROWS * (padded + F32_PAD);
    /* Expanded pieces are kept where more than one block of tokens will meet them. */
    const int keep = n_tokens > F32_BLOCK;
    const ptrdiff_t row_stride = (keep ? padded : F32_COLUMNS) + F32_PAD;
    for (ptrdiff_t t0 = 0; t0 < n_tokens; t0 += F32_BLOCK) {
        const int tokens = n_tokens - t0 < F32_BLOCK ? (int)(n_tokens - t0) : F32_BLOCK;
        const float *block = x + t0 * stride;
        ptrdiff_t block_stride = stride;
        if (k != padded) { /* zeros make the last sixteen columns whole */
            for (int t = 0; t < tokens; ++t) {
                memcpy(packed + t * padded, block + t * stride, (size_t)k * sizeof *packed);
                memset(packed + t * padded + k, 0, (size_t)(padded - k) * sizeof *packed);
            }
            block = packed;
            block_stride = padded;
        }
        for (ptrdiff_t k0 = 0; k0 < padded; k0 += F32_COLUMNS) {
            const ptrdiff_t columns = padded - k0 < F32_COLUMNS ? padded - k0 : F32_COLUMNS;
            for (int r = 0; r < n; r += F32_ROWS) {
                float *piece = keep ? rows + r * row_stride + k0 : rows;
                for (int i = 0; t0 == 0 && i < F32_ROWS; ++i) { /* a row that does not exist is the last one again */
                    const ptrdiff_t values = k - k0 < columns ? k - k0 : columns;
                    rml_expand_from(w, row + (r + i < n ? r + i : n - 1), k0, values, piece + i * row_stride);
                    memset(piece + i * row_stride + values, 0, (size_t)(columns - values) * sizeof *piece);
                }
                f32_tiles(piece, row_stride, block + k0, block_stride, columns, tokens, k0 == 0, waiting + r * 16);
            }
        }
        for (int t = 0; t < tokens; ++t)
            for (int r = 0; r < n; r += 16) sums16(waiting + (t * RML_ROWS + r) * 16, strip + (t0 + t) * RML_ROWS + r);
    }
}

#endif
