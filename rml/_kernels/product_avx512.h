/* Products of quantized weights with quantized inputs, AVX-512 VNNI: many rows at a time.
 *
 * A unit (32 columns) of sixteen rows is unpacked into eight vectors: a lane is a row and holds four
 * consecutive codes, so `vpdpbusd` with four bytes of an input, broadcast to all lanes, adds to
 * sixteen integer sums, one a row. Inputs of two bytes take it twice: sum = 256 * high + low.
 *
 * One token: the eight vectors are multiplied as they are unpacked, rows in place.
 *
 * More tokens: a panel of 32 rows x 768 columns is unpacked once and multiplied with all tokens in
 * tiles of 32 rows x 6 tokens.
 *
 * In both, an output is one lane, units are added in order and the float operations are the same:
 * the same bits, however many rows and tokens are computed together.
 */
#ifndef RML_PRODUCT_AVX512_H
#define RML_PRODUCT_AVX512_H
#if defined(__AVX512VNNI__)

#include "product_f32.h"
#include "quantize.h"
#include "row_groups.h"

enum {
    PANEL_UNITS = 24, /* 32 rows x 24 units: 24 KB of codes, half the first-level cache */
    TILE_TOKENS = 6,
    /* Of the rows at work and those that are fetched, what a first-level cache of 32 KB keeps beside
     * the inputs: of more, lines would be gone before they are used. */
    NEAR_BYTES = 20 << 10
};

/* ---- one token ---- */

/* Four bytes of an input, in every lane. */
RML_INLINE __m512i four_codes(const int8_t *x) {
    int32_t four;
    memcpy(&four, x, sizeof four);
    return _mm512_set1_epi32(four);
}

/* acc + dot products of vectors [from, to) of a unit. */
RML_INLINE __m512i dot_codes(__m512i acc, const row_lanes *code, const int8_t *x, int from, int to) {
#pragma GCC unroll 8
    for (int j = from; j < to; ++j) acc = _mm512_dpbusd_epi32(acc, (__m512i)code[j], four_codes(x + 4 * j));
    return acc;
}

/* Sixteen rows, `stride` bytes apart; those behind them are fetched meanwhile, to the first-level
 * cache or, if `far`, to the second. */
RML_INLINE __m512 rows16(const uint8_t *w, ptrdiff_t stride, const rml_inputs *in, ptrdiff_t t, int bytes, int far,
                         const rml_format f) {
    const ptrdiff_t units = in->k / RML_UNIT;
    const int8_t *high = in->codes + t * bytes * in->k, *low = high + in->k;
    const float *scales = in->scales + t * units, *totals = in->totals + t * units;
    const int32_t *sums = in->sums + 2 * t * units;
    const uint8_t *next = w + 16 * stride;
    row_blocks b = blocks_of_rows(w, stride);
    __m512 acc = _mm512_setzero_ps();
    for (ptrdiff_t block = 0; block < units / f.units; ++block, b.p += f.bytes) {
        _Alignas(64) float d[16 * 2 * BLOCK_UNITS], m[16 * 2 * BLOCK_UNITS];
        row_lanes stage[STAGE_VECTORS], factors[2 * BLOCK_UNITS];
        if (f.stage) f.stage(b, stage);
        f.scales(b, stage, d, m, factors);
#pragma GCC unroll 8
        for (int i = 0; i < f.units; ++i) {
            const ptrdiff_t u = block * f.units + i;
            for (int line = 0; line < f.bytes * 16 / f.units; line += 64) {
                const char *p = (const char *)next + u * (f.bytes * 16 / f.units) + line;
                if (far)
                    _mm_prefetch(p, _MM_HINT_T1);
                else
                    _mm_prefetch(p, _MM_HINT_T0);
            }
            __asm__ volatile("" ::: "memory"); /* or the compiler gathers them in front of the block */
            row_lanes code[8];
            __m512i dot[2];
            f.unit(b, stage, i, code);
            for (int h = 0; h < 2; ++h) {
                const int8_t *x = (bytes == 1 ? high : low) + u * RML_UNIT;
                const __m512i start = f.bias ? _mm512_set1_epi32(-f.bias * sums[2 * u + h]) : _mm512_setzero_si512();
                dot[h] = dot_codes(start, code, x, 4 * h, 4 * h + 4);
            }
            const int parts = f.factored ? 2 : f.n_scales;
            if (bytes == 2) /* sums of the high bytes, of the halves that are one so far */
                for (int h = 0; h < parts; ++h) {
                    const __m512i top = dot_codes(_mm512_setzero_si512(), code, high + u * RML_UNIT, 4 * h, 4 * h + 8 / parts);
                    dot[h] = _mm512_add_epi32(dot[h], _mm512_slli_epi32(top, 8));
                }
            for (int h = 0; f.factored && h < 2; ++h) dot[h] = _mm512_mullo_epi32(dot[h], (__m512i)factors[2 * i + h]);
            if (f.n_scales == 1) dot[0] = _mm512_add_epi32(dot[0], dot[1]);
            const __m512 scale = _mm512_set1_ps(scales[u]);
            for (int h = 0; h < f.n_scales; ++h) {
                const __m512 both = _mm512_mul_ps(_mm512_load_ps(d + (f.n_scales * i + h) * 16), scale);
                acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[h]), both, acc);
            }
            for (int h = 0; h < f.n_minima; ++h) {
                const float total = f.n_minima == 1 ? totals[u] : half_total(in, t, u, h);
                acc = _mm512_fmadd_ps(_mm512_load_ps(m + (f.n_minima * i + h) * 16), _mm512_set1_ps(total), acc);
            }
        }
    }
    return acc;
}

/* ---- many tokens ---- */

/* Sixteen rows of `n` units from `u0` on: codes as [unit][8][16 rows][4], scales and minima as [unit][1 or 2][16]. */
RML_INLINE void pack16(const uint8_t *w, ptrdiff_t row_bytes, ptrdiff_t u0, ptrdiff_t n, uint8_t *panel,
                       float *scales, float *minima, const rml_format f) {
    row_blocks b = blocks_of_rows(w + u0 / f.units * f.bytes, row_bytes);
    for (ptrdiff_t u = 0; u < n; u += f.units, b.p += f.bytes) {
        row_lanes stage[STAGE_VECTORS], factors[2 * BLOCK_UNITS];
        if (f.stage) f.stage(b, stage);
        f.scales(b, stage, scales + u * f.n_scales * 16, minima + u * f.n_minima * 16, factors);
#pragma GCC unroll 8
        for (int i = 0; i < f.units; ++i) {
            row_lanes *code = (row_lanes *)(panel + (u + i) * 512);
            f.unit(b, stage, i, code);
            if (f.factored) multiply_factors(code, factors + 2 * i, f);
        }
    }
}

typedef struct {
    uint8_t codes[2][PANEL_UNITS * 512];
    float scales[2][PANEL_UNITS * 2 * 16];
    float minima[2][PANEL_UNITS * 2 * 16];
} rml_panel;

/* What the dot products of n units begin with: -bias * the sum of their inputs. Up to fifteen more
 * are written, of no meaning. */
RML_INLINE void starts_of(const int32_t *sums, ptrdiff_t n, int bias, int n_scales, int32_t *start) {
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1)), factor = _mm512_set1_epi32(-bias);
    for (ptrdiff_t i = 0; i < n * n_scales; i += 16) {
        const ptrdiff_t left = 2 * n - i * 2 / n_scales; /* half units */
        const __mmask32 mask = left >= 32 ? ~0u : (1u << left) - 1;
        const int32_t *s = sums + i * 2 / n_scales;
        __m512i v = _mm512_maskz_loadu_epi32((__mmask16)mask, s);
        if (n_scales == 1) {
            const __m512i w = _mm512_maskz_loadu_epi32((__mmask16)(mask >> 16), s + 16);
            v = _mm512_add_epi32(_mm512_permutex2var_epi32(v, even, w), _mm512_permutex2var_epi32(v, odd, w));
        }
        _mm512_store_si512(start + i, _mm512_mullo_epi32(v, factor));
    }
}

/* Units [u0, u0 + n) of 32 rows with tokens first, first + 1, ..., added to acc[token][2 halves].
 * A format has a bias or minima, never both. The inputs of the tokens after these are fetched. */
RML_INLINE void tile(const rml_panel *panel, ptrdiff_t u0, ptrdiff_t n, const rml_inputs *in, ptrdiff_t first,
                     int tokens, int bytes, int bias, int n_minima, int n_scales, __m512 *acc) {
    const ptrdiff_t units = in->k / RML_UNIT, stride = bytes * in->k;
    const int8_t *codes = in->codes + first * stride + u0 * RML_UNIT, *next = codes + tokens * stride;
    const float *scales = in->scales + first * units + u0, *totals = in->totals + first * units + u0;
    __m512 y0[TILE_TOKENS], y1[TILE_TOKENS];
    _Alignas(64) int32_t start[TILE_TOKENS][2 * PANEL_UNITS + 16];
    float half_totals[TILE_TOKENS][2 * PANEL_UNITS];
    for (int t = 0; t < tokens; ++t) {
        y0[t] = acc[2 * t];
        y1[t] = acc[2 * t + 1];
        if (!n_minima) starts_of(in->sums + 2 * ((first + t) * units + u0), n, bias, n_scales, start[t]);
        for (ptrdiff_t u = 0; n_minima == 2 && u < n; ++u)
            for (int h = 0; h < 2; ++h) half_totals[t][2 * u + h] = half_total(in, first + t, u0 + u, h);
    }
    for (ptrdiff_t u = 0; u < n; ++u) {
        __m512i a0[TILE_TOKENS], a1[TILE_TOKENS];
        for (int t = 0; t < tokens; ++t) /* a line has two units: one or the other byte's at a time */
            if (bytes == 2 || u % 2) _mm_prefetch((const char *)(next + t * stride + u % 2 * (bytes - 1) * in->k + u * RML_UNIT), _MM_HINT_T0);
        for (int h = 0; h < n_scales; ++h) { /* one scale: the whole unit at once */
            const ptrdiff_t s = u * n_scales + h;
#pragma GCC unroll 6
            for (int t = 0; t < tokens; ++t)
                a0[t] = a1[t] = n_minima || bytes == 2 ? _mm512_setzero_si512() : _mm512_set1_epi32(start[t][s]);
#pragma GCC unroll 2
            for (int byte = 0; byte < bytes; ++byte) {
                if (byte == 1) {
#pragma GCC unroll 6
                    for (int t = 0; t < tokens; ++t) {
                        a0[t] = _mm512_slli_epi32(a0[t], 8);
                        a1[t] = _mm512_slli_epi32(a1[t], 8);
                        if (!n_minima) {
                            a0[t] = _mm512_add_epi32(a0[t], _mm512_set1_epi32(start[t][s]));
                            a1[t] = _mm512_add_epi32(a1[t], _mm512_set1_epi32(start[t][s]));
                        }
                    }
                }
#pragma GCC unroll 8
                for (int j = h * 4; j < h * 4 + 8 / n_scales; ++j) {
                    const __m512i w0 = _mm512_load_si512(panel->codes[0] + u * 512 + j * 64);
                    const __m512i w1 = _mm512_load_si512(panel->codes[1] + u * 512 + j * 64);
#pragma GCC unroll 6
                    for (int t = 0; t < tokens; ++t) {
                        const __m512i x = four_codes(codes + t * stride + byte * in->k + u * RML_UNIT + j * 4);
                        a0[t] = _mm512_dpbusd_epi32(a0[t], w0, x);
                        a1[t] = _mm512_dpbusd_epi32(a1[t], w1, x);
                    }
                }
            }
            const __m512 d0 = _mm512_load_ps(panel->scales[0] + s * 16), d1 = _mm512_load_ps(panel->scales[1] + s * 16);
#pragma GCC unroll 6
            for (int t = 0; t < tokens; ++t) {
                const __m512 scale = _mm512_set1_ps(scales[t * units + u]);
                y0[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(a0[t]), _mm512_mul_ps(d0, scale), y0[t]);
                y1[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(a1[t]), _mm512_mul_ps(d1, scale), y1[t]);
            }
        }
        for (int h = 0; h < n_minima; ++h) {
            const ptrdiff_t s = u * n_minima + h;
            const __m512 m0 = _mm512_load_ps(panel->minima[0] + s * 16), m1 = _mm512_load_ps(panel->minima[1] + s * 16);
#pragma GCC unroll 6
            for (int t = 0; t < tokens; ++t) {
                const __m512 total = _mm512_set1_ps(n_minima == 1 ? totals[t * units + u] : half_totals[t][s]);
                y0[t] = _mm512_fmadd_ps(m0, total, y0[t]);
                y1[t] = _mm512_fmadd_ps(m1, total, y1[t]);
            }
        }
    }
    for (int t = 0; t < tokens; ++t) {
        acc[2 * t] = y0[t];
        acc[2 * t + 1] = y1[t];
    }
}

/* The same for tokens [first, first + tokens), in tiles of equal width, so that none is a slow narrow
 * one. Formats with the same kind of scales share it. */
#define TILE(N, BYTES, MINIMA, SCALES) \
    case N: tile(panel, u0, n, in, first + t0, N, BYTES, bias, MINIMA, SCALES, acc + 2 * t0); break;
#define TILES(BYTES, MINIMA, SCALES)                                                                           \
    static __attribute__((noinline)) void tiles_##BYTES##_##MINIMA##_##SCALES(                                 \
        const rml_panel *panel, ptrdiff_t u0, ptrdiff_t n, const rml_inputs *in, ptrdiff_t first,              \
        ptrdiff_t tokens, int bias, __m512 *acc) {                                                             \
        const ptrdiff_t tiles = (tokens + TILE_TOKENS - 1) / TILE_TOKENS;                                      \
        for (ptrdiff_t i = 0; i < tiles; ++i) {                                                                \
            const ptrdiff_t t0 = tokens * i / tiles, t1 = tokens * (i + 1) / tiles;                            \
            switch (t1 - t0) {                                                                                 \
                TILE(1, BYTES, MINIMA, SCALES) TILE(2, BYTES, MINIMA, SCALES) TILE(3, BYTES, MINIMA, SCALES)   \
                TILE(4, BYTES, MINIMA, SCALES) TILE(5, BYTES, MINIMA, SCALES) TILE(6, BYTES, MINIMA, SCALES)   \
            }                                                                                                  \
        }                                                                                                      \
    }
TILES(1, 0, 1)
TILES(1, 0, 2)
TILES(1, 1, 1)
TILES(1, 2, 1)
TILES(2, 0, 1)
TILES(2, 0, 2)
TILES(2, 1, 1)
TILES(2, 2, 1)
#undef TILE
#undef TILES

typedef void tiles_fn(const rml_panel *panel, ptrdiff_t u0, ptrdiff_t n, const rml_inputs *in, ptrdiff_t first,
                      ptrdiff_t tokens, int bias, __m512 *acc);

RML_INLINE tiles_fn *tiles_of(const rml_format f, int bytes) {
    if (f.n_minima == 2) return bytes == 1 ? tiles_1_2_1 : tiles_2_2_1;
    if (f.n_minima == 1) return bytes == 1 ? tiles_1_1_1 : tiles_2_1_1;
    if (f.n_scales == 2) return bytes == 1 ? tiles_1_0_2 : tiles_2_0_2;
    return bytes == 1 ? tiles_1_0_1 : tiles_2_0_1;
}

/* ---- 32 rows ---- */

/* Lanes of rows first..first+15 into a strip row that begins at `row`; lanes before it are dropped. */
RML_INLINE void place16(float *strip, __m512 v, ptrdiff_t first, ptrdiff_t row) {
    const ptrdiff_t skip = first < row ? row - first : 0;
    const __mmask16 lanes = (__mmask16)(0xffffu << skip);
    _mm512_mask_compressstoreu_ps(strip + (first + skip - row), lanes, v);
}

/* Scratch bytes for `integer_rows`. */
RML_INLINE ptrdiff_t integer_scratch(ptrdiff_t k, ptrdiff_t n_tokens) {
    return (ptrdiff_t)sizeof(rml_panel) + n_tokens * 2 * 64 + group_bytes(k);
}

RML_INLINE void integer_rows(const rml_matrix *w, ptrdiff_t row, int n, const rml_inputs *in, ptrdiff_t t0,
                             ptrdiff_t t1, float *strip, char *scratch, const rml_format f) {
    rml_panel *panel = (rml_panel *)scratch;
    __m512 *acc = (__m512 *)(scratch + sizeof(rml_panel));
    const rml_matrix whole = whole_group(w, (uint8_t *)(acc + 2 * (t1 - t0)));
    const ptrdiff_t first[2] = {group_start(&whole, row), group_start(&whole, row + 16)};
    const uint8_t *rows[2] = {whole.data + first[0] * w->row_bytes, whole.data + first[1] * w->row_bytes};
    if (t1 - t0 == 1) {
        const int far = 2 * 16 * w->row_bytes > NEAR_BYTES;
        for (int h = 0; h < (n > 16 ? 2 : 1); ++h) {
            __m512 y;
            if (in->bytes == 1)
                y = far ? rows16(rows[h], w->row_bytes, in, t0, 1, 1, f) : rows16(rows[h], w->row_bytes, in, t0, 1, 0, f);
            else
                y = far ? rows16(rows[h], w->row_bytes, in, t0, 2, 1, f) : rows16(rows[h], w->row_bytes, in, t0, 2, 0, f);
            place16(strip, y, first[h], row);
        }
        return;
    }
    const ptrdiff_t units = in->k / RML_UNIT, tokens = t1 - t0;
    tiles_fn *tiles = tiles_of(f, in->bytes);
    memset(acc, 0, (size_t)tokens * 2 * sizeof *acc);
    /* Panels of equal size, in whole blocks. */
    const ptrdiff_t blocks = units / f.units, panels = (units + PANEL_UNITS - 1) / PANEL_UNITS;
    for (ptrdiff_t i = 0; i < panels; ++i) {
        const ptrdiff_t u0 = blocks * i / panels * f.units, n_units = blocks * (i + 1) / panels * f.units - u0;
        for (int h = 0; h < 2; ++h)
            pack16(rows[h], w->row_bytes, u0, n_units, panel->codes[h], panel->scales[h], panel->minima[h], f);
        tiles(panel, u0, n_units, in, t0, tokens, f.packed_bias, acc);
    }
    for (ptrdiff_t t = 0; t < tokens; ++t)
        for (int h = 0; h < (n > 16 ? 2 : 1); ++h) place16(strip + t * RML_ROWS, acc[2 * t + h], first[h], row);
}

#endif
#endif
