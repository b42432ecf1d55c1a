/* Products of quantized weights with quantized inputs, AVX-512 VNNI: many rows at a time.
 *
 * A unit (32 columns) of sixteen rows is unpacked into eight vectors: a lane is a row and holds four
 * consecutive codes, so `vpdpbusd` with four codes of an input, broadcast to all lanes, adds to
 * sixteen integer sums, one a row.
 *
 * One token: the eight vectors are multiplied as they are unpacked, rows in place.
 *
 * More tokens: a panel of 32 rows x 768 columns is unpacked once and multiplied with all columns of
 * all tokens in tiles of 32 rows x 6 columns.
 *
 * In both, an output is one lane, units are added in order and the float operations are those of
 * product_int8.h: the same bits, however many rows and tokens are computed together.
 */
#ifndef RML_PRODUCT_AVX512_H
#define RML_PRODUCT_AVX512_H
#if defined(__AVX512VNNI__)

#include "codes_avx512.h"
#include "grids_avx512.h"
#include "product_int8.h"

enum {
    PANEL_UNITS = 24, /* 32 rows x 24 units: 24 KB of codes, half the first-level cache */
    TILE_COLUMNS = 6
};

/* ---- one token ---- */

/* What the loops below need to know of a format; constants, once inlined. */
typedef struct {
    stage_fn *stage; /* or NULL */
    unit16_fn *unit16;
    scales_fn *scales;
    int units, bytes, bias, has_min, n_scales;
} rml_format;

/* Four codes of an input, in every lane. */
RML_INLINE __m512i four_codes(const int8_t *x) {
    int32_t four;
    memcpy(&four, x, sizeof four);
    return _mm512_set1_epi32(four);
}

RML_INLINE __m512 rows16(const uint8_t *w, ptrdiff_t row_bytes, const rml_inputs *in, ptrdiff_t t, int columns,
                         const rml_format f) {
    const ptrdiff_t units = in->k / RML_UNIT, first = t * columns;
    const int8_t *codes = in->codes + first * in->k;
    const float *scales = in->scales + first * units, *totals = in->totals + first * units;
    const int32_t *sums = in->sums + 2 * first * units;
    const __m512i offsets = row_offsets(row_bytes);
    const uint8_t *next = w + 16 * row_bytes; /* the rows after these, fetched meanwhile */
    __m512 acc[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    for (ptrdiff_t block = 0; block < units / f.units; ++block) {
        _Alignas(64) float d[16 * 2 * 8], m[16 * 2 * 8];
        const uint8_t *rows = w + block * f.bytes;
        __m512i stage[STAGE_VECTORS];
        if (f.stage) f.stage(rows, row_bytes, offsets, stage);
        f.scales(rows, offsets, stage, d, m);
#pragma GCC unroll 8
        for (int i = 0; i < f.units; ++i) {
            const ptrdiff_t u = block * f.units + i;
            for (int line = 0; line < f.bytes * 16 / f.units; line += 64)
                _mm_prefetch((const char *)next + u * (f.bytes * 16 / f.units) + line, _MM_HINT_T0);
            __m512i code[8];
            f.unit16(rows, row_bytes, offsets, stage, i, code);
            for (int c = 0; c < columns; ++c) {
                const int8_t *x = codes + c * in->k + u * RML_UNIT;
                const int32_t *s = sums + 2 * (c * units + u);
                const __m512 scale = _mm512_set1_ps(scales[c * units + u]);
                __m512i half[2];
                for (int h = 0; h < 2; ++h) {
                    half[h] = f.bias ? _mm512_set1_epi32(-f.bias * s[h]) : _mm512_setzero_si512();
                    for (int j = 4 * h; j < 4 * h + 4; ++j)
                        half[h] = _mm512_dpbusd_epi32(half[h], code[j], four_codes(x + 4 * j));
                }
                if (f.n_scales == 1) {
                    const __m512 dot = _mm512_cvtepi32_ps(_mm512_add_epi32(half[0], half[1]));
                    acc[c] = _mm512_fmadd_ps(dot, _mm512_mul_ps(_mm512_load_ps(d + i * 16), scale), acc[c]);
                    if (f.has_min && c == 0)
                        acc[0] = _mm512_fmadd_ps(_mm512_load_ps(m + i * 16), _mm512_set1_ps(totals[u]), acc[0]);
                    continue;
                }
                for (int h = 0; h < 2; ++h) {
                    const __m512 both = _mm512_mul_ps(_mm512_load_ps(d + (2 * i + h) * 16), scale);
                    acc[c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(half[h]), both, acc[c]);
                    if (f.has_min && c == 0) {
                        const float total = rml_half_total(scales, sums, units, columns, u, h);
                        acc[0] = _mm512_fmadd_ps(_mm512_load_ps(m + (2 * i + h) * 16), _mm512_set1_ps(total), acc[0]);
                    }
                }
            }
        }
    }
    return columns == 1 ? acc[0] : _mm512_add_ps(acc[0], acc[1]);
}

/* ---- many tokens ---- */

/* Sixteen rows of `n` units from `u0` on: codes as [unit][8][16 rows][4], scales as [unit][1 or 2][16]. */
RML_INLINE void pack16(const uint8_t *w, ptrdiff_t row_bytes, ptrdiff_t u0, ptrdiff_t n, uint8_t *panel,
                       float *scales, float *minima, const rml_format f) {
    const __m512i offsets = row_offsets(row_bytes);
    for (ptrdiff_t u = 0; u < n; u += f.units) {
        const uint8_t *rows = w + (u0 + u) / f.units * f.bytes;
        __m512i stage[STAGE_VECTORS];
        if (f.stage) f.stage(rows, row_bytes, offsets, stage);
        f.scales(rows, offsets, stage, scales + u * f.n_scales * 16, minima + u * f.n_scales * 16);
#pragma GCC unroll 8
        for (int i = 0; i < f.units; ++i)
            f.unit16(rows, row_bytes, offsets, stage, i, (__m512i *)(panel + (u + i) * 512));
    }
}

typedef struct {
    uint8_t codes[2][PANEL_UNITS * 512];
    float scales[2][PANEL_UNITS * 2 * 16];
    float minima[2][PANEL_UNITS * 2 * 16];
} rml_panel;

/* Units [u0, u0 + n) of 32 rows with columns first, first + 1, ..., added to acc[column][2 halves].
 * A format has a bias or minima, never both. */
RML_INLINE void tile(const rml_panel *panel, ptrdiff_t u0, ptrdiff_t n, const rml_inputs *in, ptrdiff_t first,
                     int columns, int bias, int has_min, int n_scales, __m512 *acc) {
    const ptrdiff_t units = in->k / RML_UNIT;
    const int8_t *codes = in->codes + first * in->k + u0 * RML_UNIT;
    const float *scales = in->scales + first * units + u0, *totals = in->totals + first * units + u0;
    const int32_t *sums = in->sums + 2 * (first * units + u0);
    __m512 y0[TILE_COLUMNS], y1[TILE_COLUMNS];
    int32_t start[TILE_COLUMNS][2 * PANEL_UNITS]; /* dot products begin at -bias * sum of the inputs */
    float half_totals[TILE_COLUMNS][2 * PANEL_UNITS];
    for (int t = 0; t < columns; ++t) {
        y0[t] = acc[2 * t];
        y1[t] = acc[2 * t + 1];
        const int32_t *s = sums + 2 * t * units;
        for (ptrdiff_t u = 0; !has_min && u < n; ++u) {
            if (n_scales == 1) start[t][u] = -bias * (s[2 * u] + s[2 * u + 1]);
            else start[t][2 * u] = -bias * s[2 * u], start[t][2 * u + 1] = -bias * s[2 * u + 1];
        }
        for (ptrdiff_t u = 0; has_min && n_scales == 2 && u < n; ++u)
            for (int h = 0; h < 2; ++h)
                half_totals[t][2 * u + h] = (first + t) % in->columns
                    ? 0
                    : rml_half_total(scales + t * units, s, units, in->columns, u, h);
    }
    for (ptrdiff_t u = 0; u < n; ++u) {
        __m512i a0[TILE_COLUMNS], a1[TILE_COLUMNS];
        for (int h = 0; h < n_scales; ++h) { /* one scale: the whole unit at once */
            const ptrdiff_t s = u * n_scales + h;
#pragma GCC unroll 6
            for (int t = 0; t < columns; ++t)
                a0[t] = a1[t] = !has_min ? _mm512_set1_epi32(start[t][s]) : _mm512_setzero_si512();
#pragma GCC unroll 8
            for (int j = h * 4; j < h * 4 + 8 / n_scales; ++j) {
                const __m512i w0 = _mm512_load_si512(panel->codes[0] + u * 512 + j * 64);
                const __m512i w1 = _mm512_load_si512(panel->codes[1] + u * 512 + j * 64);
#pragma GCC unroll 6
                for (int t = 0; t < columns; ++t) {
                    const __m512i x = four_codes(codes + t * in->k + u * RML_UNIT + j * 4);
                    a0[t] = _mm512_dpbusd_epi32(a0[t], w0, x);
                    a1[t] = _mm512_dpbusd_epi32(a1[t], w1, x);
                }
            }
            const __m512 d0 = _mm512_load_ps(panel->scales[0] + s * 16), d1 = _mm512_load_ps(panel->scales[1] + s * 16);
#pragma GCC unroll 6
            for (int t = 0; t < columns; ++t) {
                const __m512 scale = _mm512_set1_ps(scales[t * units + u]);
                y0[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(a0[t]), _mm512_mul_ps(d0, scale), y0[t]);
                y1[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(a1[t]), _mm512_mul_ps(d1, scale), y1[t]);
            }
            if (has_min) {
                const __m512 m0 = _mm512_load_ps(panel->minima[0] + s * 16), m1 = _mm512_load_ps(panel->minima[1] + s * 16);
#pragma GCC unroll 6
                for (int t = 0; t < columns; ++t) {
                    const __m512 total = _mm512_set1_ps(n_scales == 1 ? totals[t * units + u] : half_totals[t][s]);
                    y0[t] = _mm512_fmadd_ps(m0, total, y0[t]);
                    y1[t] = _mm512_fmadd_ps(m1, total, y1[t]);
                }
            }
        }
    }
    for (int t = 0; t < columns; ++t) {
        acc[2 * t] = y0[t];
        acc[2 * t + 1] = y1[t];
    }
}

/* The same for columns [first, first + columns), in tiles of equal width, so that none is a slow narrow
 * one. Formats with the same kind of scales share it. */
#define TILE(N, HAS_MIN, SCALES) \
    case N: tile(panel, u0, n, in, first + c0, N, bias, HAS_MIN, SCALES, acc + 2 * c0); break;
#define TILES(HAS_MIN, SCALES)                                                                                  \
    static __attribute__((noinline)) void tiles_##HAS_MIN##_##SCALES(const rml_panel *panel, ptrdiff_t u0,      \
                                                                     ptrdiff_t n, const rml_inputs *in,         \
                                                                     ptrdiff_t first, ptrdiff_t columns,        \
                                                                     int bias, __m512 *acc) {                   \
        const ptrdiff_t tiles = (columns + TILE_COLUMNS - 1) / TILE_COLUMNS;                                    \
        for (ptrdiff_t i = 0; i < tiles; ++i) {                                                                 \
            const ptrdiff_t c0 = columns * i / tiles, c1 = columns * (i + 1) / tiles;                           \
            switch (c1 - c0) {                                                                                  \
                TILE(1, HAS_MIN, SCALES) TILE(2, HAS_MIN, SCALES) TILE(3, HAS_MIN, SCALES)                      \
                TILE(4, HAS_MIN, SCALES) TILE(5, HAS_MIN, SCALES) TILE(6, HAS_MIN, SCALES)                      \
            }                                                                                                   \
        }                                                                                                       \
    }
TILES(0, 1)
TILES(0, 2)
TILES(1, 1)
TILES(1, 2)
#undef TILE
#undef TILES

/* ---- 32 rows ---- */

/* Lanes of rows first..first+15 into a strip row that begins at `row`; lanes before it are dropped. */
RML_INLINE void place16(float *strip, __m512 v, ptrdiff_t first, ptrdiff_t row) {
    const ptrdiff_t skip = first < row ? row - first : 0;
    const __mmask16 lanes = (__mmask16)(0xffffu << skip);
    _mm512_mask_compressstoreu_ps(strip + (first + skip - row), lanes, v);
}

/* Scratch bytes for `int8_rows32` with n_tokens. */
RML_INLINE ptrdiff_t avx512_scratch(ptrdiff_t n_tokens, int columns) {
    return (ptrdiff_t)sizeof(rml_panel) + n_tokens * columns * 2 * 64;
}

RML_INLINE void int8_rows32(const rml_matrix *w, ptrdiff_t row, int n, const rml_inputs *in, ptrdiff_t t0,
                            ptrdiff_t t1, float *strip, char *scratch, const rml_format f) {
    /* Two groups of sixteen rows; the last rows of a matrix are computed with those before them. */
    const ptrdiff_t last = w->rows - 16;
    const ptrdiff_t first[2] = {row < last ? row : last, row + 16 < last ? row + 16 : last};
    const uint8_t *rows[2] = {w->data + first[0] * w->row_bytes, w->data + first[1] * w->row_bytes};
    if (t1 - t0 == 1) {
        for (int h = 0; h < (n > 16 ? 2 : 1); ++h) {
            const __m512 y = in->columns == 1 ? rows16(rows[h], w->row_bytes, in, t0, 1, f)
                                              : rows16(rows[h], w->row_bytes, in, t0, 2, f);
            place16(strip, y, first[h], row);
        }
        return;
    }
    const ptrdiff_t units = in->k / RML_UNIT, columns = (t1 - t0) * in->columns;
    rml_panel *panel = (rml_panel *)scratch;
    __m512 *acc = (__m512 *)(scratch + sizeof(rml_panel));
    memset(acc, 0, (size_t)columns * 2 * sizeof *acc);
    /* Panels of equal size, in whole blocks. */
    const ptrdiff_t blocks = units / f.units, panels = (units + PANEL_UNITS - 1) / PANEL_UNITS;
    for (ptrdiff_t i_panel = 0; i_panel < panels; ++i_panel) {
        const ptrdiff_t u0 = blocks * i_panel / panels * f.units;
        const ptrdiff_t n_units = blocks * (i_panel + 1) / panels * f.units - u0;
        for (int h = 0; h < 2; ++h)
            pack16(rows[h], w->row_bytes, u0, n_units, panel->codes[h], panel->scales[h], panel->minima[h], f);
        const ptrdiff_t at = t0 * in->columns;
        if (f.has_min)
            (f.n_scales == 1 ? tiles_1_1 : tiles_1_2)(panel, u0, n_units, in, at, columns, 0, acc);
        else
            (f.n_scales == 1 ? tiles_0_1 : tiles_0_2)(panel, u0, n_units, in, at, columns, f.bias, acc);
    }
    for (ptrdiff_t t = 0; t < t1 - t0; ++t)
        for (int h = 0; h < (n > 16 ? 2 : 1); ++h) {
            const __m512 *y = acc + 2 * t * in->columns + h;
            place16(strip + t * RML_ROWS, in->columns == 1 ? y[0] : _mm512_add_ps(y[0], y[2]), first[h], row);
        }
}

#define X(NAME, ID, LENGTH, BYTES, BIAS, HAS_MIN, SCALES)                                                      \
    static __attribute__((noinline)) void int8_rows32_##NAME(const rml_matrix *w, ptrdiff_t row, int n,        \
                                                             const rml_inputs *in, ptrdiff_t t0, ptrdiff_t t1, \
                                                             float *strip, char *scratch) {                    \
        const rml_format f = {stage_##NAME, unit16_##NAME, scales_##NAME, LENGTH / 32,                         \
                              BYTES, BIAS, HAS_MIN, SCALES};                                                   \
        int8_rows32(w, row, n, in, t0, t1, strip, scratch, f);                                                 \
    }
RML_QUANTIZED_FORMATS(X)
#undef X

#endif
#endif
