/* Products of quantized weights with quantized inputs where there is no int8 dot product.
 *
 * A panel of 32 rows x 256 columns is unpacked once, into 16-bit integers, and multiplied with all
 * tokens in tiles of two registers of rows x 4 tokens: a lane is a row, and an instruction
 * multiplies two columns of it with a pair of inputs and adds the products. Sums are exact, for
 * inputs of 8 and of 16 bits alike.
 *
 * An output is one lane, units are added in order and the float operations are those of
 * product_avx512.h: the same bits, however many rows and tokens are computed together.
 */
#ifndef RML_PRODUCT_PAIRS_H
#define RML_PRODUCT_PAIRS_H

#include "expand.h"
#include "pairs.h"
#include "product_f32.h"
#include "quantize.h"

enum {
    PAIR_UNITS = 8, /* of a panel */
    PAIR_GROUPS = RML_ROWS / RML_LANES,
    PAIR_TOKENS = 4
};

typedef struct {
    pair_lanes codes[PAIR_GROUPS][PAIR_UNITS][UNIT_PAIRS];
    lanes scales[PAIR_GROUPS][PAIR_UNITS][2];
    lanes minima[PAIR_GROUPS][PAIR_UNITS][2];
} rml_pair_panel;

typedef void unpack_fn(const uint8_t *row, ptrdiff_t unit, uint8_t *code, float *d, float *m);

/* `n` units from `u0` on of the rows that begin at row[0], row[1], ... */
RML_INLINE void pack_pairs(const uint8_t *const *row, ptrdiff_t u0, ptrdiff_t n, int bias, unpack_fn *unpack,
                           rml_pair_panel *panel) {
    for (int g = 0; g < PAIR_GROUPS; ++g)
        for (ptrdiff_t u = 0; u < n; ++u) {
            uint8_t code[RML_LANES][RML_UNIT];
            float d[2][RML_LANES], m[2][RML_LANES];
            for (int r = 0; r < RML_LANES; ++r) {
                float scale[2] = {0}, minimum[2] = {0};
                unpack(row[g * RML_LANES + r], u0 + u, code[r], scale, minimum);
                for (int h = 0; h < 2; ++h) d[h][r] = scale[h], m[h][r] = minimum[h];
            }
            for (int h = 0; h < 2; ++h) {
                panel->scales[g][u][h] = load_lanes(d[h]);
                panel->minima[g][u][h] = load_lanes(m[h]);
            }
            pairs_of_rows(code, bias, panel->codes[g][u]);
        }
}

/* Add two groups' units [u0, u0 + n) with tokens first, first + 1, ... to strip (T, 32). */
RML_INLINE void pair_tile(const rml_pair_panel *panel, int group, ptrdiff_t u0, ptrdiff_t n, const rml_inputs *in,
                          ptrdiff_t first, int tokens, int n_minima, int n_scales, float *strip) {
    const ptrdiff_t units = in->k / RML_UNIT;
    const rml_code *codes = in->codes + first * in->k + u0 * RML_UNIT;
    for (ptrdiff_t u = 0; u < n; ++u) {
        for (int h = 0; h < n_scales; ++h) { /* one scale: the whole unit at once */
            int_lanes sum[PAIR_TOKENS][2];
#pragma GCC unroll 4
            for (int t = 0; t < tokens; ++t) sum[t][0] = sum[t][1] = (int_lanes){0};
#pragma GCC unroll 4
            for (int p = h * (UNIT_PAIRS / 2); p < h * (UNIT_PAIRS / 2) + UNIT_PAIRS / n_scales; ++p) {
                const pair_lanes w0 = panel->codes[group][u][p], w1 = panel->codes[group + 1][u][p];
#pragma GCC unroll 4
                for (int t = 0; t < tokens; ++t) {
                    const pair_lanes x = splat_pair(codes + t * in->k + u * RML_UNIT + 2 * p);
                    sum[t][0] = add_pair_products(sum[t][0], w0, x);
                    sum[t][1] = add_pair_products(sum[t][1], w1, x);
                }
            }
#pragma GCC unroll 4
            for (int t = 0; t < tokens; ++t)
#pragma GCC unroll 2
                for (int g = 0; g < 2; ++g) {
                    float *y = strip + t * RML_ROWS + (group + g) * RML_LANES;
                    const lanes scale = panel->scales[group + g][u][h] * splat_lanes(in->scales[(first + t) * units + u0 + u]);
                    store_lanes(y, fma_lanes(__builtin_convertvector(sum[t][g], lanes), scale, load_lanes(y)));
                }
        }
        for (int h = 0; h < n_minima; ++h)
#pragma GCC unroll 4
            for (int t = 0; t < tokens; ++t) {
                const lanes total = splat_lanes(n_minima == 1 ? in->totals[(first + t) * units + u0 + u]
                                                              : half_total(in, first + t, u0 + u, h));
#pragma GCC unroll 2
                for (int g = 0; g < 2; ++g) {
                    float *y = strip + t * RML_ROWS + (group + g) * RML_LANES;
                    store_lanes(y, fma_lanes(panel->minima[group + g][u][h], total, load_lanes(y)));
                }
            }
    }
}

/* The same for all groups and tokens [t0, t1), in tiles of equal width. */
#define TILE(N, MINIMA, SCALES) \
    case N: pair_tile(panel, g, u0, n, in, t0 + a, N, MINIMA, SCALES, strip + a * RML_ROWS); break;
#define TILES(MINIMA, SCALES)                                                                                    \
    static __attribute__((noinline)) void pair_tiles_##MINIMA##_##SCALES(                                        \
        const rml_pair_panel *panel, ptrdiff_t u0, ptrdiff_t n, const rml_inputs *in, ptrdiff_t t0,              \
        ptrdiff_t t1, float *strip) {                                                                            \
        const ptrdiff_t tokens = t1 - t0, tiles = (tokens + PAIR_TOKENS - 1) / PAIR_TOKENS;                      \
        for (int g = 0; g < PAIR_GROUPS; g += 2)                                                                 \
            for (ptrdiff_t i = 0; i < tiles; ++i) {                                                              \
                const ptrdiff_t a = tokens * i / tiles, b = tokens * (i + 1) / tiles;                            \
                switch (b - a) {                                                                                 \
                    TILE(1, MINIMA, SCALES) TILE(2, MINIMA, SCALES) TILE(3, MINIMA, SCALES)                      \
                    TILE(4, MINIMA, SCALES)                                                                      \
                }                                                                                                \
            }                                                                                                    \
    }
TILES(0, 1)
TILES(0, 2)
TILES(1, 1)
TILES(2, 1)
#undef TILE
#undef TILES

/* Scratch bytes for `pair_rows`. */
RML_INLINE ptrdiff_t pair_scratch(void) { return (ptrdiff_t)sizeof(rml_pair_panel); }

/* `n` rows from `row` on, with tokens [t0, t1), into strip (t1 - t0, 32). */
RML_INLINE void pair_rows(const rml_matrix *w, ptrdiff_t row, int n, const rml_inputs *in, ptrdiff_t t0, ptrdiff_t t1,
                          float *strip, char *scratch, int block_units, int bias, int n_minima, int n_scales,
                          unpack_fn *unpack) {
    rml_pair_panel *panel = (rml_pair_panel *)scratch;
    const uint8_t *rows[RML_ROWS];
    for (int r = 0; r < RML_ROWS; ++r) /* a row that does not exist is the last one again */
        rows[r] = w->data + (row + (r < n ? r : n - 1)) * w->row_bytes;
    memset(strip, 0, (size_t)(t1 - t0) * RML_ROWS * sizeof *strip);
    const ptrdiff_t units = in->k / RML_UNIT, step = PAIR_UNITS / block_units * block_units;
    for (ptrdiff_t u0 = 0; u0 < units; u0 += step) {
        const ptrdiff_t n_units = units - u0 < step ? units - u0 : step;
        pack_pairs(rows, u0, n_units, bias, unpack, panel);
        if (n_minima == 2) pair_tiles_2_1(panel, u0, n_units, in, t0, t1, strip);
        else if (n_minima == 1) pair_tiles_1_1(panel, u0, n_units, in, t0, t1, strip);
        else if (n_scales == 2) pair_tiles_0_2(panel, u0, n_units, in, t0, t1, strip);
        else pair_tiles_0_1(panel, u0, n_units, in, t0, t1, strip);
    }
}

#define X(NAME, ID, LENGTH, BYTES, BIAS, MINIMA, SCALES)                                                        \
    static __attribute__((noinline)) void pair_rows_##NAME(const rml_matrix *w, ptrdiff_t row, int n,           \
                                                           const rml_inputs *in, ptrdiff_t t0, ptrdiff_t t1,    \
                                                           float *strip, char *scratch) {                       \
        pair_rows(w, row, n, in, t0, t1, strip, scratch, LENGTH / 32, BIAS, MINIMA, SCALES, unpack_##NAME);     \
    }
RML_QUANTIZED_FORMATS(X)
#undef X

#endif
