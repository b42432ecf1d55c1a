/* Products of quantized weights with quantized inputs where there is no int8 dot product.
 *
 * As product_avx512.h does it, a unit (32 columns) of several rows is unpacked into eight vectors, a
 * lane a row. Its codes become 16-bit integers, and an instruction multiplies two columns of each
 * row with a pair of inputs and adds the products. Sums are exact, for inputs of 8 and of 16 bits.
 *
 * One token: units are multiplied as they are unpacked, rows in place.
 *
 * More tokens: a panel of 32 rows x 256 columns is unpacked once and multiplied with all tokens in
 * tiles of two registers of rows x 4 tokens.
 *
 * In both, an output is one lane, units are added in order and the float operations are the same:
 * the same bits, however many rows and tokens are computed together.
 */
#ifndef RML_PRODUCT_PAIRS_H
#define RML_PRODUCT_PAIRS_H

#include "grids.h"
#include "pairs.h"
#include "product_f32.h"
#include "quantize.h"

enum {
    UNIT_PAIRS = RML_UNIT / 2,
    PAIR_UNITS = 8, /* of a panel: whole blocks of every format */
    PAIR_GROUPS = RML_ROWS / RML_LANES,
    PAIR_TOKENS = 4
};

/* What the loops below need to know of a format; constants, once inlined. */
typedef struct {
    stage_fn *stage; /* or NULL */
    unit_fn *unit;
    scales_fn *scales;
    int units, bytes, bias, n_minima, n_scales;
} rml_format;

/* ---- one token ---- */

RML_INLINE lanes rows_of_one(const uint8_t *w, ptrdiff_t row_bytes, const rml_inputs *in, ptrdiff_t t, const rml_format f) {
    const ptrdiff_t units = in->k / RML_UNIT;
    const rml_code *codes = in->codes + t * in->k;
    const float *scales = in->scales + t * units, *totals = in->totals + t * units;
    const int32_t *sums = in->sums + 2 * t * units;
    const uint8_t *next = w + RML_LANES * row_bytes; /* the rows after these, fetched meanwhile */
    const int unit_bytes = f.bytes * RML_LANES / f.units;
    row_blocks b = blocks_of_rows(w, row_bytes);
    lanes acc = {0};
    for (ptrdiff_t block = 0; block < units / f.units; ++block, b.p += f.bytes) {
        float d[RML_LANES * 2 * 8], m[RML_LANES * 2 * 8];
        row_lanes stage[STAGE_VECTORS];
        if (f.stage) f.stage(b, stage);
        f.scales(b, stage, d, m);
#pragma GCC unroll 8
        for (int i = 0; i < f.units; ++i) {
            const ptrdiff_t u = block * f.units + i;
            for (int line = 0; line < unit_bytes; line += 64) __builtin_prefetch(next + u * unit_bytes + line);
            row_lanes code[8];
            int_lanes dot[2];
            f.unit(b, stage, i, code);
#pragma GCC unroll 2
            for (int h = 0; h < 2; ++h) {
                dot[h] = (int_lanes)in_rows((uint32_t)(-f.bias * sums[2 * u + h]));
#pragma GCC unroll 4
                for (int k = 4 * h; k < 4 * h + 4; ++k) {
                    const rml_code *x = codes + u * RML_UNIT + 4 * k;
                    dot[h] = add_pair_products(dot[h], even_pair(code[k]), splat_pair(x));
                    dot[h] = add_pair_products(dot[h], odd_pair(code[k]), splat_pair(x + 2));
                }
            }
            if (f.n_scales == 1) dot[0] += dot[1];
            for (int h = 0; h < f.n_scales; ++h) {
                const lanes both = load_lanes(d + (f.n_scales * i + h) * RML_LANES) * scales[u];
                acc = fma_lanes(__builtin_convertvector(dot[h], lanes), both, acc);
            }
            for (int h = 0; h < f.n_minima; ++h) {
                const float total = f.n_minima == 1 ? totals[u] : half_total(in, t, u, h);
                acc = fma_lanes(load_lanes(m + (f.n_minima * i + h) * RML_LANES), splat_lanes(total), acc);
            }
        }
    }
    return acc;
}

/* ---- many tokens ---- */

typedef struct {
    pair_lanes codes[PAIR_GROUPS][PAIR_UNITS][UNIT_PAIRS];
    float scales[PAIR_GROUPS][PAIR_UNITS * 2 * RML_LANES]; /* [unit][one or two][row] */
    float minima[PAIR_GROUPS][PAIR_UNITS * 2 * RML_LANES];
} rml_pair_panel;

/* `n` units from `u0` on of one group of rows. */
RML_INLINE void pack_pairs(const uint8_t *w, ptrdiff_t row_bytes, ptrdiff_t u0, ptrdiff_t n, int group,
                           rml_pair_panel *panel, const rml_format f) {
    row_blocks b = blocks_of_rows(w + u0 / f.units * f.bytes, row_bytes);
    for (ptrdiff_t u = 0; u < n; u += f.units, b.p += f.bytes) {
        row_lanes stage[STAGE_VECTORS];
        if (f.stage) f.stage(b, stage);
        f.scales(b, stage, panel->scales[group] + u * f.n_scales * RML_LANES, panel->minima[group] + u * f.n_minima * RML_LANES);
#pragma GCC unroll 8
        for (int i = 0; i < f.units; ++i) {
            row_lanes code[8];
            f.unit(b, stage, i, code);
            for (int k = 0; k < 8; ++k) {
                panel->codes[group][u + i][2 * k] = even_pair(code[k]);
                panel->codes[group][u + i][2 * k + 1] = odd_pair(code[k]);
            }
        }
    }
}

/* Add two groups' units [u0, u0 + n) with tokens first, first + 1, ... to strip (T, 32). */
RML_INLINE void pair_tile(const rml_pair_panel *panel, int group, ptrdiff_t u0, ptrdiff_t n, const rml_inputs *in,
                          ptrdiff_t first, int tokens, int bias, int n_minima, int n_scales, float *strip) {
    const ptrdiff_t units = in->k / RML_UNIT;
    const rml_code *codes = in->codes + first * in->k + u0 * RML_UNIT;
    for (ptrdiff_t u = 0; u < n; ++u) {
        for (int h = 0; h < n_scales; ++h) { /* one scale: the whole unit at once */
            int_lanes sum[PAIR_TOKENS][2];
#pragma GCC unroll 4
            for (int t = 0; t < tokens; ++t) {
                const int32_t *s = in->sums + 2 * ((first + t) * units + u0 + u);
                const int32_t start = n_minima ? 0 : -bias * (n_scales == 1 ? s[0] + s[1] : s[h]);
                sum[t][0] = sum[t][1] = (int_lanes)in_rows((uint32_t)start);
            }
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
                    const lanes scale = load_lanes(panel->scales[group + g] + (u * n_scales + h) * RML_LANES) * in->scales[(first + t) * units + u0 + u];
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
                    store_lanes(y, fma_lanes(load_lanes(panel->minima[group + g] + (u * n_minima + h) * RML_LANES), total, load_lanes(y)));
                }
            }
    }
}

/* The same for all groups and tokens [t0, t1), in tiles of equal width. */
#define TILE(N, MINIMA, SCALES) \
    case N: pair_tile(panel, g, u0, n, in, t0 + a, N, bias, MINIMA, SCALES, strip + a * RML_ROWS); break;
#define TILES(MINIMA, SCALES)                                                                                    \
    static __attribute__((noinline)) void pair_tiles_##MINIMA##_##SCALES(                                        \
        const rml_pair_panel *panel, ptrdiff_t u0, ptrdiff_t n, const rml_inputs *in, ptrdiff_t t0,              \
        ptrdiff_t t1, int groups, int bias, float *strip) {                                                      \
        const ptrdiff_t tokens = t1 - t0, tiles = (tokens + PAIR_TOKENS - 1) / PAIR_TOKENS;                      \
        for (int g = 0; g < groups; g += 2)                                                                      \
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

/* ---- 32 rows ---- */

/* Scratch bytes for `pair_rows`; no block of a format has more than 34 bytes for 32 values. */
RML_INLINE ptrdiff_t pair_scratch(ptrdiff_t k) {
    return (ptrdiff_t)sizeof(rml_pair_panel) + RML_LANES * (k / RML_UNIT * 34);
}

/* `n` rows from `row` on, with tokens [t0, t1), into strip (t1 - t0, 32). */
RML_INLINE void pair_rows(const rml_matrix *w, ptrdiff_t row, int n, const rml_inputs *in, ptrdiff_t t0, ptrdiff_t t1,
                          float *strip, char *scratch, const rml_format f) {
    rml_pair_panel *panel = (rml_pair_panel *)scratch;
    const uint8_t *data = w->data;
    ptrdiff_t n_rows = w->rows;
    if (n_rows < RML_LANES) { /* the last row again and again */
        uint8_t *copy = (uint8_t *)(panel + 1);
        for (ptrdiff_t r = 0; r < RML_LANES; ++r)
            memcpy(copy + r * w->row_bytes, data + (r < n_rows ? r : n_rows - 1) * w->row_bytes, (size_t)w->row_bytes);
        data = copy;
        n_rows = RML_LANES;
    }
    /* Groups of as many rows as lanes; the last rows of a matrix are computed with those before. */
    const uint8_t *rows[PAIR_GROUPS];
    const int groups = (n + RML_LANES - 1) / RML_LANES;
    for (int g = 0; g < PAIR_GROUPS; ++g) {
        const ptrdiff_t first = row + g * RML_LANES, last = n_rows - RML_LANES;
        rows[g] = data + (first < last ? first : last) * w->row_bytes;
    }
    const ptrdiff_t units = in->k / RML_UNIT, tokens = t1 - t0;
    if (tokens == 1)
        for (int g = 0; g < groups; ++g)
            store_lanes(strip + g * RML_LANES, rows_of_one(rows[g], w->row_bytes, in, t0, f));
    else {
        memset(strip, 0, (size_t)tokens * RML_ROWS * sizeof *strip);
        for (ptrdiff_t u0 = 0; u0 < units; u0 += PAIR_UNITS) {
            const ptrdiff_t n_units = units - u0 < PAIR_UNITS ? units - u0 : PAIR_UNITS;
            for (int g = 0; g < (groups + 1) / 2 * 2; ++g) pack_pairs(rows[g], w->row_bytes, u0, n_units, g, panel, f);
            if (f.n_minima == 2) pair_tiles_2_1(panel, u0, n_units, in, t0, t1, groups, 0, strip);
            else if (f.n_minima == 1) pair_tiles_1_1(panel, u0, n_units, in, t0, t1, groups, 0, strip);
            else if (f.n_scales == 2) pair_tiles_0_2(panel, u0, n_units, in, t0, t1, groups, f.bias, strip);
            else pair_tiles_0_1(panel, u0, n_units, in, t0, t1, groups, f.bias, strip);
        }
    }
    /* Where the last group began earlier, its last lanes are the rows that were asked for. */
    const ptrdiff_t at = (groups - 1) * RML_LANES, skip = row + at + RML_LANES - n_rows;
    for (ptrdiff_t t = 0; skip > 0 && t < tokens; ++t)
        memmove(strip + t * RML_ROWS + at, strip + t * RML_ROWS + at + skip, (size_t)(RML_LANES - skip) * sizeof *strip);
}

#define X(NAME, ID, LENGTH, BYTES, BIAS, MINIMA, SCALES)                                                              \
    static __attribute__((noinline)) void pair_rows_##NAME(const rml_matrix *w, ptrdiff_t row, int n,                 \
                                                           const rml_inputs *in, ptrdiff_t t0, ptrdiff_t t1,          \
                                                           float *strip, char *scratch) {                             \
        const rml_format f = {stage_rows_##NAME, unit_rows_##NAME, scales_rows_##NAME, LENGTH / 32,                   \
                              BYTES, BIAS, MINIMA, SCALES};                                                           \
        pair_rows(w, row, n, in, t0, t1, strip, scratch, f);                                                          \
    }
RML_QUANTIZED_FORMATS(X)
#undef X

#endif
