/* Products of quantized weights with quantized inputs, below AVX-512: many rows at a time.
 *
 * As product_avx512.h does it, a unit (32 columns) of several rows is unpacked into eight vectors, a
 * lane a row with four columns, and multiplied as four_columns.h says.
 *
 * One token: units are multiplied as they are unpacked, rows in place.
 *
 * More tokens: a panel of 32 rows x 256 columns is unpacked once and multiplied with all tokens in
 * tiles of two registers of rows x 4 tokens.
 *
 * In both, an output is one lane, units are added in order and the float operations are the same:
 * the same bits, however many rows and tokens are computed together.
 */
#ifndef RML_PRODUCT_ROWS_H
#define RML_PRODUCT_ROWS_H

#include "four_columns.h"
#include "product_f32.h"
#include "quantize.h"
#include "row_groups.h"

enum {
    UNIT_FOURS = RML_UNIT / 4,
    PANEL_UNITS = 8, /* whole blocks of every format */
    PANEL_GROUPS = RML_ROWS / RML_LANES,
    TILE_TOKENS = 4
};

/* ---- one token ---- */

/* As many rows as lanes, `stride` bytes apart; those behind them are fetched meanwhile if `fetch`. */
RML_INLINE lanes rows_of_one(const uint8_t *w, ptrdiff_t stride, const rml_inputs *in, ptrdiff_t t, int bytes,
                             int fetch, const rml_format f) {
    const ptrdiff_t units = in->k / RML_UNIT;
    const rml_code *codes = in->codes + t * in->k;
    const float *scales = in->scales + t * units, *totals = in->totals + t * units;
    const int32_t *sums = in->sums + 2 * t * units;
    const uint8_t *next = w + RML_LANES * stride;
    const int unit_bytes = f.bytes * RML_LANES / f.units;
    row_blocks b = blocks_of_rows(w, stride);
    lanes acc = {0};
    for (ptrdiff_t block = 0; block < units / f.units; ++block, b.p += f.bytes) {
        float d[RML_LANES * 2 * BLOCK_UNITS], m[RML_LANES * 2 * BLOCK_UNITS];
        row_lanes stage[STAGE_VECTORS], factors[2 * BLOCK_UNITS];
        if (f.stage) f.stage(b, stage);
        f.scales(b, stage, d, m, factors);
#pragma GCC unroll 8
        for (int i = 0; i < f.units; ++i) {
            const ptrdiff_t u = block * f.units + i;
            for (int line = 0; fetch && line < unit_bytes; line += 64) __builtin_prefetch(next + u * unit_bytes + line);
            row_lanes code[8];
            int_lanes dot[2];
            f.unit(b, stage, i, code);
#pragma GCC unroll 2
            for (int h = 0; h < 2; ++h) {
                four_sums part = sums_from(start_of(f.bias, sums[2 * u + h]));
#pragma GCC unroll 4
                for (int k = 4 * h; k < 4 * h + 4; ++k)
                    part = add_products(part, codes_of(code[k], f.bias), inputs_of(codes + u * RML_UNIT + 4 * k), bytes);
                dot[h] = total_of(part, bytes);
                if (f.factored) dot[h] *= (int_lanes)factors[2 * i + h];
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
    four_codes codes[PANEL_GROUPS][PANEL_UNITS][UNIT_FOURS];
    float scales[PANEL_GROUPS][PANEL_UNITS * 2 * RML_LANES]; /* [unit][one or two][row] */
    float minima[PANEL_GROUPS][PANEL_UNITS * 2 * RML_LANES];
} rml_panel;

/* `n` units from `u0` on of one group of rows. */
RML_INLINE void pack_group(const uint8_t *w, ptrdiff_t row_bytes, ptrdiff_t u0, ptrdiff_t n, int group,
                           rml_panel *panel, const rml_format f) {
    row_blocks b = blocks_of_rows(w + u0 / f.units * f.bytes, row_bytes);
    for (ptrdiff_t u = 0; u < n; u += f.units, b.p += f.bytes) {
        row_lanes stage[STAGE_VECTORS], factors[2 * BLOCK_UNITS];
        if (f.stage) f.stage(b, stage);
        f.scales(b, stage, panel->scales[group] + u * f.n_scales * RML_LANES,
                 panel->minima[group] + u * f.n_minima * RML_LANES, factors);
#pragma GCC unroll 8
        for (int i = 0; i < f.units; ++i) {
            row_lanes code[8];
            f.unit(b, stage, i, code);
            if (f.factored) multiply_factors(code, factors + 2 * i, f);
            for (int k = 0; k < UNIT_FOURS; ++k) panel->codes[group][u + i][k] = codes_of(code[k], f.packed_bias);
        }
    }
}

/* Add two groups' units [u0, u0 + n) with tokens first, first + 1, ... to strip (T, 32). */
RML_INLINE void tile(const rml_panel *panel, int group, ptrdiff_t u0, ptrdiff_t n, const rml_inputs *in,
                     ptrdiff_t first, int tokens, int bytes, int bias, int n_minima, int n_scales, float *strip) {
    const ptrdiff_t units = in->k / RML_UNIT;
    const rml_code *codes = in->codes + first * in->k + u0 * RML_UNIT;
    for (ptrdiff_t u = 0; u < n; ++u) {
        for (int h = 0; h < n_scales; ++h) { /* one scale: the whole unit at once */
            four_sums sum[TILE_TOKENS][2];
#pragma GCC unroll 4
            for (int t = 0; t < tokens; ++t) {
                const int32_t *s = in->sums + 2 * ((first + t) * units + u0 + u);
                sum[t][0] = sum[t][1] = sums_from(n_minima ? 0 : start_of(bias, n_scales == 1 ? s[0] + s[1] : s[h]));
            }
#pragma GCC unroll 2
            for (int k = h * 4; k < h * 4 + UNIT_FOURS / n_scales; ++k) {
                const four_codes w0 = panel->codes[group][u][k], w1 = panel->codes[group + 1][u][k];
#pragma GCC unroll 4
                for (int t = 0; t < tokens; ++t) {
                    const four_inputs x = inputs_of(codes + t * in->k + u * RML_UNIT + 4 * k);
                    sum[t][0] = add_products(sum[t][0], w0, x, bytes);
                    sum[t][1] = add_products(sum[t][1], w1, x, bytes);
                }
            }
#pragma GCC unroll 4
            for (int t = 0; t < tokens; ++t)
#pragma GCC unroll 2
                for (int g = 0; g < 2; ++g) {
                    float *y = strip + t * RML_ROWS + (group + g) * RML_LANES;
                    const lanes scale = load_lanes(panel->scales[group + g] + (u * n_scales + h) * RML_LANES) * in->scales[(first + t) * units + u0 + u];
                    store_lanes(y, fma_lanes(__builtin_convertvector(total_of(sum[t][g], bytes), lanes), scale, load_lanes(y)));
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
#define TILE(N, BYTES, MINIMA, SCALES) \
    case N: tile(panel, g, u0, n, in, t0 + a, N, BYTES, bias, MINIMA, SCALES, strip + a * RML_ROWS); break;
#define TILES(BYTES, MINIMA, SCALES)                                                                             \
    static __attribute__((noinline)) void tiles_##BYTES##_##MINIMA##_##SCALES(                                   \
        const rml_panel *panel, ptrdiff_t u0, ptrdiff_t n, const rml_inputs *in, ptrdiff_t t0, ptrdiff_t t1,     \
        int groups, int bias, float *strip) {                                                                    \
        const ptrdiff_t tokens = t1 - t0, tiles = (tokens + TILE_TOKENS - 1) / TILE_TOKENS;                      \
        for (int g = 0; g < groups; g += 2)                                                                      \
            for (ptrdiff_t i = 0; i < tiles; ++i) {                                                              \
                const ptrdiff_t a = tokens * i / tiles, b = tokens * (i + 1) / tiles;                            \
                switch (b - a) {                                                                                 \
                    TILE(1, BYTES, MINIMA, SCALES) TILE(2, BYTES, MINIMA, SCALES)                                \
                    TILE(3, BYTES, MINIMA, SCALES) TILE(4, BYTES, MINIMA, SCALES)                                \
                }                                                                                                \
            }                                                                                                    \
    }
TILES(2, 0, 1)
TILES(2, 0, 2)
TILES(2, 1, 1)
TILES(2, 2, 1)
#if defined(__ARM_FEATURE_DOTPROD) /* BYTES_MATTER */
TILES(1, 0, 1)
TILES(1, 0, 2)
TILES(1, 1, 1)
TILES(1, 2, 1)
#define TILES_OF(MINIMA, SCALES) (in->bytes == 1 ? tiles_1_##MINIMA##_##SCALES : tiles_2_##MINIMA##_##SCALES)
#else
#define TILES_OF(MINIMA, SCALES) tiles_2_##MINIMA##_##SCALES
#endif
#undef TILE
#undef TILES

/* ---- 32 rows ---- */

/* Scratch bytes for `integer_rows`. */
RML_INLINE ptrdiff_t integer_scratch(ptrdiff_t k, ptrdiff_t n_tokens) { return (ptrdiff_t)sizeof(rml_panel) + group_bytes(k); }

/* `n` rows from `row` on, with tokens [t0, t1), into strip (t1 - t0, 32). */
RML_INLINE void integer_rows(const rml_matrix *w, ptrdiff_t row, int n, const rml_inputs *in, ptrdiff_t t0,
                             ptrdiff_t t1, float *strip, char *scratch, const rml_format f) {
    rml_panel *panel = (rml_panel *)scratch;
    const rml_matrix whole = whole_group(w, (uint8_t *)(panel + 1));
    const uint8_t *rows[PANEL_GROUPS];
    const int groups = (n + RML_LANES - 1) / RML_LANES;
    for (int g = 0; g < PANEL_GROUPS; ++g) rows[g] = whole.data + group_start(&whole, row + g * RML_LANES) * w->row_bytes;
    const ptrdiff_t units = in->k / RML_UNIT, tokens = t1 - t0;
    if (tokens == 1) {
        /* Of long rows a group has every fourth, say: see LONG_ROW. */
        const int apart = n == RML_ROWS && w->row_bytes >= LONG_ROW ? PANEL_GROUPS : 1;
        for (int g = 0; g < groups; ++g) {
            const uint8_t *from = apart == 1 ? rows[g] : whole.data + (row + g) * w->row_bytes;
            const lanes y = BYTES_MATTER && in->bytes == 1 ? rows_of_one(from, apart * w->row_bytes, in, t0, 1, apart == 1, f)
                                                           : rows_of_one(from, apart * w->row_bytes, in, t0, 2, apart == 1, f);
            for (int i = 0; i < RML_LANES; ++i) strip[apart == 1 ? g * RML_LANES + i : i * apart + g] = y[i];
        }
    } else {
        memset(strip, 0, (size_t)tokens * RML_ROWS * sizeof *strip);
        for (ptrdiff_t u0 = 0; u0 < units; u0 += PANEL_UNITS) {
            const ptrdiff_t n_units = units - u0 < PANEL_UNITS ? units - u0 : PANEL_UNITS;
            for (int g = 0; g < (groups + 1) / 2 * 2; ++g) pack_group(rows[g], w->row_bytes, u0, n_units, g, panel, f);
            if (f.n_minima == 2) TILES_OF(2, 1)(panel, u0, n_units, in, t0, t1, groups, 0, strip);
            else if (f.n_minima == 1) TILES_OF(1, 1)(panel, u0, n_units, in, t0, t1, groups, 0, strip);
            else if (f.n_scales == 2) TILES_OF(0, 2)(panel, u0, n_units, in, t0, t1, groups, f.packed_bias, strip);
            else TILES_OF(0, 1)(panel, u0, n_units, in, t0, t1, groups, f.packed_bias, strip);
        }
    }
    /* Where the last group began earlier, its last lanes are the rows that were asked for. */
    const ptrdiff_t at = (groups - 1) * RML_LANES, skip = row + at + RML_LANES - whole.rows;
    for (ptrdiff_t t = 0; skip > 0 && t < tokens; ++t)
        memmove(strip + t * RML_ROWS + at, strip + t * RML_ROWS + at + skip, (size_t)(RML_LANES - skip) * sizeof *strip);
}

#endif
