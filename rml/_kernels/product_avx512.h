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

#include "product_int8.h"

enum {
    PANEL_UNITS = 24, /* 32 rows x 24 units: 24 KB of codes, half the first-level cache */
    TILE_COLUMNS = 6
};

RML_INLINE __m512i row_offsets(ptrdiff_t row_bytes) {
    const __m512i rows = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_mullo_epi32(rows, _mm512_set1_epi32((int)row_bytes));
}

/* ---- codes of one unit of rows a (lower half) and b (upper half) ---- */

RML_INLINE __m512i two_halves(__m256i a, __m256i b) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
}

RML_INLINE __m512i codes2_Q8_0(const uint8_t *a, const uint8_t *b, ptrdiff_t u) {
    const __m256i va = _mm256_loadu_si256((const void *)(a + u * BYTES_Q8_0 + 2));
    const __m256i vb = _mm256_loadu_si256((const void *)(b + u * BYTES_Q8_0 + 2));
    return _mm512_xor_si512(two_halves(va, vb), _mm512_set1_epi8((char)0x80));
}

/* Codes of formats without a loader of their own: one row after the other. */
#define GENERAL_CODES2(NAME)                                                                       \
    RML_INLINE __m512i codes2_##NAME(const uint8_t *a, const uint8_t *b, ptrdiff_t u) {            \
        _Alignas(64) uint8_t code[2 * RML_UNIT];                                                   \
        float d[2], m[2];                                                                          \
        unpack_##NAME(a, u, code, d, m);                                                           \
        unpack_##NAME(b, u, code + RML_UNIT, d, m);                                                \
        return _mm512_load_si512(code);                                                            \
    }

RML_INLINE __m512i codes2_Q4_K(const uint8_t *a, const uint8_t *b, ptrdiff_t u) {
    const ptrdiff_t at = (u >> 3) * BYTES_Q4_K + 16 + ((u & 7) >> 1) * 32;
    const __m512i v = two_halves(_mm256_loadu_si256((const void *)(a + at)), _mm256_loadu_si256((const void *)(b + at)));
    return _mm512_and_si512(u & 1 ? _mm512_srli_epi16(v, 4) : v, _mm512_set1_epi8(15));
}

RML_INLINE __m512i codes2_Q6_K(const uint8_t *a, const uint8_t *b, ptrdiff_t u) {
    const int j = (int)(u & 7), part = j & 3;
    const ptrdiff_t block = (u >> 3) * BYTES_Q6_K, low = block + (j >> 2) * 64 + (part & 1) * 32, high = block + 128 + (j >> 2) * 32;
    const __m512i l = two_halves(_mm256_loadu_si256((const void *)(a + low)), _mm256_loadu_si256((const void *)(b + low)));
    const __m512i h = two_halves(_mm256_loadu_si256((const void *)(a + high)), _mm256_loadu_si256((const void *)(b + high)));
    const __m512i four = _mm512_and_si512(part < 2 ? l : _mm512_srli_epi16(l, 4), _mm512_set1_epi8(15));
    /* Two bits to positions 4 and 5. */
    const __m512i up = part == 0 ? _mm512_slli_epi16(h, 4) : part == 1 ? _mm512_slli_epi16(h, 2) : part == 2 ? h : _mm512_srli_epi16(h, 2);
    return _mm512_or_si512(four, _mm512_and_si512(up, _mm512_set1_epi8(0x30)));
}

/* ---- scales and minima of one block of sixteen rows: d, m are [unit][scale][16 rows] ---- */

RML_INLINE __m512 halves_to_floats(__m512i low_halves) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(low_halves)); }

RML_INLINE __m512i gather16(const uint8_t *rows, __m512i offsets, ptrdiff_t at) {
    return _mm512_i32gather_epi32(offsets, (const void *)(rows + at), 1);
}

/* An f16 scale, and an f16 minimum behind it, at the start of a block. */
RML_INLINE void scales_at_start(const uint8_t *rows, __m512i offsets, ptrdiff_t at, int has_min, float *d, float *m) {
    const __m512i both = gather16(rows, offsets, at);
    _mm512_store_ps(d, halves_to_floats(both));
    if (has_min) _mm512_store_ps(m, halves_to_floats(_mm512_srli_epi32(both, 16)));
}

#define SCALES_AT_START(NAME)                                                                                    \
    RML_INLINE void scales_##NAME(const uint8_t *rows, ptrdiff_t row_bytes, __m512i offsets, ptrdiff_t block,    \
                                  float *d, float *m) {                                                          \
        (void)row_bytes;                                                                                         \
        scales_at_start(rows, offsets, block * BYTES_##NAME, HAS_MIN_##NAME, d, m);                              \
    }
SCALES_AT_START(Q4_0)
SCALES_AT_START(Q4_1)
SCALES_AT_START(Q5_0)
SCALES_AT_START(Q5_1)
SCALES_AT_START(Q8_0)

/* Formats without a reader of their own: row by row. */
#define GENERAL_SCALES(NAME)                                                                                     \
    RML_INLINE void scales_##NAME(const uint8_t *rows, ptrdiff_t row_bytes, __m512i offsets, ptrdiff_t block,    \
                                  float *d, float *m) {                                                          \
        (void)offsets;                                                                                           \
        for (int r = 0; r < 16; ++r)                                                                             \
            for (int u = 0; u < UNITS_##NAME; ++u) {                                                             \
                uint8_t code[RML_UNIT];                                                                          \
                float dd[2], mm[2];                                                                              \
                unpack_##NAME(rows + r * row_bytes, block * UNITS_##NAME + u, code, dd, mm);                     \
                for (int s = 0; s < SCALES_##NAME; ++s) {                                                        \
                    d[(u * SCALES_##NAME + s) * 16 + r] = dd[s];                                                 \
                    if (HAS_MIN_##NAME) m[(u * SCALES_##NAME + s) * 16 + r] = mm[s];                             \
                }                                                                                                \
            }                                                                                                    \
    }

/* Q4_K and Q5_K: two f16, then twelve bytes with eight scales and eight minima of six bits. */
RML_INLINE void scales_k(const uint8_t *rows, __m512i offsets, ptrdiff_t at, float *d, float *m) {
    const __m512i both = gather16(rows, offsets, at);
    const __m512 scale = halves_to_floats(both);
    const __m512 min = _mm512_sub_ps(_mm512_setzero_ps(), halves_to_floats(_mm512_srli_epi32(both, 16)));
    const __m512i a = gather16(rows, offsets, at + 4), b = gather16(rows, offsets, at + 8), c = gather16(rows, offsets, at + 12);
    const __m512i six = _mm512_set1_epi32(63), four = _mm512_set1_epi32(15), upper = _mm512_set1_epi32(48);
    for (int j = 0; j < 4; ++j) {
        const __m512i s = _mm512_srlv_epi32(a, _mm512_set1_epi32(8 * j)), t = _mm512_srlv_epi32(b, _mm512_set1_epi32(8 * j));
        const __m512i both_low = _mm512_srlv_epi32(c, _mm512_set1_epi32(8 * j));
        const __m512i s_high = _mm512_or_si512(_mm512_and_si512(both_low, four), _mm512_and_si512(_mm512_srli_epi32(s, 2), upper));
        const __m512i t_high = _mm512_or_si512(_mm512_and_si512(_mm512_srli_epi32(both_low, 4), four), _mm512_and_si512(_mm512_srli_epi32(t, 2), upper));
        _mm512_store_ps(d + j * 16, _mm512_mul_ps(scale, _mm512_cvtepi32_ps(_mm512_and_si512(s, six))));
        _mm512_store_ps(m + j * 16, _mm512_mul_ps(min, _mm512_cvtepi32_ps(_mm512_and_si512(t, six))));
        _mm512_store_ps(d + (j + 4) * 16, _mm512_mul_ps(scale, _mm512_cvtepi32_ps(s_high)));
        _mm512_store_ps(m + (j + 4) * 16, _mm512_mul_ps(min, _mm512_cvtepi32_ps(t_high)));
    }
}

RML_INLINE void scales_Q4_K(const uint8_t *rows, ptrdiff_t row_bytes, __m512i offsets, ptrdiff_t block, float *d, float *m) {
    (void)row_bytes;
    scales_k(rows, offsets, block * BYTES_Q4_K, d, m);
}

/* Q6_K: sixteen signed bytes and one f16 at the end of a block. */
RML_INLINE void scales_Q6_K(const uint8_t *rows, ptrdiff_t row_bytes, __m512i offsets, ptrdiff_t block, float *d, float *m) {
    (void)row_bytes, (void)m;
    const ptrdiff_t at = block * BYTES_Q6_K;
    /* Read the two bytes before as well, so as not to read beyond the last block. */
    const __m512 scale = halves_to_floats(_mm512_srli_epi32(gather16(rows, offsets, at + 206), 16));
    for (int j = 0; j < 4; ++j) {
        const __m512i bytes = gather16(rows, offsets, at + 192 + 4 * j);
        for (int i = 0; i < 4; ++i) {
            const __m512i s = _mm512_srai_epi32(_mm512_sllv_epi32(bytes, _mm512_set1_epi32(24 - 8 * i)), 24);
            _mm512_store_ps(d + (4 * j + i) * 16, _mm512_mul_ps(scale, _mm512_cvtepi32_ps(s)));
        }
    }
}

/* ---- one unit of sixteen rows: v[j] holds codes 4j .. 4j+3 of each row ---- */

/* From vectors of rows r and r + 8: transpose 8 x 8 dwords in both halves at once. */
RML_INLINE void transpose_unit(const __m512i *r, __m512i *v) {
    const __m512i low = _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13);
    const __m512i high = _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15);
    __m512i p[8];
    for (int h = 0; h < 8; h += 4) {
        const __m512i a = _mm512_unpacklo_epi32(r[h], r[h + 1]), b = _mm512_unpackhi_epi32(r[h], r[h + 1]);
        const __m512i c = _mm512_unpacklo_epi32(r[h + 2], r[h + 3]), d = _mm512_unpackhi_epi32(r[h + 2], r[h + 3]);
        p[h] = _mm512_unpacklo_epi64(a, c);
        p[h + 1] = _mm512_unpackhi_epi64(a, c);
        p[h + 2] = _mm512_unpacklo_epi64(b, d);
        p[h + 3] = _mm512_unpackhi_epi64(b, d);
    }
    for (int k = 0; k < 4; ++k) {
        v[k] = _mm512_permutex2var_epi64(p[k], low, p[k + 4]);
        v[k + 4] = _mm512_permutex2var_epi64(p[k], high, p[k + 4]);
    }
}

#define UNIT16_BY_ROWS(NAME)                                                                             \
    RML_INLINE void unit16_##NAME(const uint8_t *rows, ptrdiff_t row_bytes, ptrdiff_t u, __m512i *v) {   \
        __m512i r[8];                                                                                    \
        for (int i = 0; i < 8; ++i)                                                                      \
            r[i] = codes2_##NAME(rows + i * row_bytes, rows + (i + 8) * row_bytes, u);                   \
        transpose_unit(r, v);                                                                            \
    }

/* Sixteen bytes of each row, transposed: v[k] holds bytes 4k .. 4k+3 of each row. */
RML_INLINE void transpose16x16(const uint8_t *rows, ptrdiff_t row_bytes, __m512i *v) {
    __m512i r[4];
    for (int i = 0; i < 4; ++i) { /* rows i, i + 4, i + 8, i + 12 */
        const uint8_t *p = rows + i * row_bytes;
        r[i] = _mm512_castsi128_si512(_mm_loadu_si128((const void *)p));
        r[i] = _mm512_inserti32x4(r[i], _mm_loadu_si128((const void *)(p + 4 * row_bytes)), 1);
        r[i] = _mm512_inserti32x4(r[i], _mm_loadu_si128((const void *)(p + 8 * row_bytes)), 2);
        r[i] = _mm512_inserti32x4(r[i], _mm_loadu_si128((const void *)(p + 12 * row_bytes)), 3);
    }
    const __m512i a = _mm512_unpacklo_epi32(r[0], r[1]), b = _mm512_unpackhi_epi32(r[0], r[1]);
    const __m512i c = _mm512_unpacklo_epi32(r[2], r[3]), d = _mm512_unpackhi_epi32(r[2], r[3]);
    v[0] = _mm512_unpacklo_epi64(a, c);
    v[1] = _mm512_unpackhi_epi64(a, c);
    v[2] = _mm512_unpacklo_epi64(b, d);
    v[3] = _mm512_unpackhi_epi64(b, d);
}

/* Nibbles of sixteen bytes of each row: the low ones are the first half of the unit. */
RML_INLINE void nibbles16(const uint8_t *rows, ptrdiff_t row_bytes, __m512i *v) {
    const __m512i four = _mm512_set1_epi8(15);
    __m512i packed[4];
    transpose16x16(rows, row_bytes, packed);
    for (int k = 0; k < 4; ++k) {
        v[k] = _mm512_and_si512(packed[k], four);
        v[k + 4] = _mm512_and_si512(_mm512_srli_epi16(packed[k], 4), four);
    }
}

/* Fifth bits, four bytes of each row: bit i becomes bit 4 of code i. */
RML_INLINE void fifth16(const uint8_t *rows, __m512i offsets, __m512i *v) {
    const __m512i bits = _mm512_i32gather_epi32(offsets, (const void *)rows, 1), sixteen = _mm512_set1_epi8(16);
    for (int j = 0; j < 8; ++j) {
        /* Byte j / 2 of a row four times, and in each a bit of the lower or upper half. */
        const __m512i spread = _mm512_shuffle_epi8(bits, _mm512_broadcast_i32x4(_mm_add_epi8(
            _mm_set1_epi8((char)(j / 2)), _mm_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12))));
        const __mmask64 set = _mm512_test_epi8_mask(spread, _mm512_set1_epi32(j % 2 ? (int)0x80402010 : 0x08040201));
        v[j] = _mm512_mask_add_epi8(v[j], set, v[j], sixteen);
    }
}

RML_INLINE void unit16_Q4_0(const uint8_t *rows, ptrdiff_t row_bytes, ptrdiff_t u, __m512i *v) {
    nibbles16(rows + u * BYTES_Q4_0 + 2, row_bytes, v);
}

RML_INLINE void unit16_Q4_1(const uint8_t *rows, ptrdiff_t row_bytes, ptrdiff_t u, __m512i *v) {
    nibbles16(rows + u * BYTES_Q4_1 + 4, row_bytes, v);
}

RML_INLINE void unit16_Q5_0(const uint8_t *rows, ptrdiff_t row_bytes, ptrdiff_t u, __m512i *v) {
    nibbles16(rows + u * BYTES_Q5_0 + 6, row_bytes, v);
    fifth16(rows + u * BYTES_Q5_0 + 2, row_offsets(row_bytes), v);
}

RML_INLINE void unit16_Q5_1(const uint8_t *rows, ptrdiff_t row_bytes, ptrdiff_t u, __m512i *v) {
    nibbles16(rows + u * BYTES_Q5_1 + 8, row_bytes, v);
    fifth16(rows + u * BYTES_Q5_1 + 4, row_offsets(row_bytes), v);
}

UNIT16_BY_ROWS(Q8_0)
UNIT16_BY_ROWS(Q4_K)
UNIT16_BY_ROWS(Q6_K)

/* ---- one token ---- */

typedef void unit16_fn(const uint8_t *, ptrdiff_t, ptrdiff_t, __m512i *);
typedef void scales_fn(const uint8_t *, ptrdiff_t, __m512i, ptrdiff_t, float *, float *);

/* What the loops below need to know of a format; constants, once inlined. */
typedef struct {
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
        f.scales(w, row_bytes, offsets, block, d, m);
#pragma GCC unroll 8
        for (int i = 0; i < f.units; ++i) {
            const ptrdiff_t u = block * f.units + i;
            for (int line = 0; line < f.bytes * 16 / f.units; line += 64)
                _mm_prefetch((const char *)next + u * (f.bytes * 16 / f.units) + line, _MM_HINT_T0);
            __m512i code[8];
            f.unit16(w, row_bytes, u, code);
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
    for (ptrdiff_t u = 0; u < n; ++u) {
        if (u % f.units == 0)
            f.scales(w, row_bytes, offsets, (u0 + u) / f.units, scales + u * f.n_scales * 16, minima + u * f.n_scales * 16);
        f.unit16(w, row_bytes, u0 + u, (__m512i *)(panel + u * 512));
    }
}

typedef struct {
    uint8_t codes[2][PANEL_UNITS * 512];
    float scales[2][PANEL_UNITS * 2 * 16];
    float minima[2][PANEL_UNITS * 2 * 16];
} rml_panel;

/* Units [u0, u0 + n) of 32 rows with columns first, first + 1, ..., added to acc[column][2 halves]. */
RML_INLINE void tile(const rml_panel *panel, ptrdiff_t u0, ptrdiff_t n, const rml_inputs *in, ptrdiff_t first,
                     int columns, const rml_format f, __m512 *acc) {
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
        for (ptrdiff_t u = 0; f.bias && u < n; ++u) {
            if (f.n_scales == 1) start[t][u] = -f.bias * (s[2 * u] + s[2 * u + 1]);
            else start[t][2 * u] = -f.bias * s[2 * u], start[t][2 * u + 1] = -f.bias * s[2 * u + 1];
        }
        for (ptrdiff_t u = 0; f.has_min && f.n_scales == 2 && u < n; ++u)
            for (int h = 0; h < 2; ++h)
                half_totals[t][2 * u + h] = (first + t) % in->columns
                    ? 0
                    : rml_half_total(scales + t * units, s, units, in->columns, u, h);
    }
    for (ptrdiff_t u = 0; u < n; ++u) {
        __m512i a0[TILE_COLUMNS], a1[TILE_COLUMNS];
        for (int h = 0; h < f.n_scales; ++h) { /* one scale: the whole unit at once */
            const ptrdiff_t s = u * f.n_scales + h;
#pragma GCC unroll 6
            for (int t = 0; t < columns; ++t)
                a0[t] = a1[t] = f.bias ? _mm512_set1_epi32(start[t][s]) : _mm512_setzero_si512();
#pragma GCC unroll 8
            for (int j = h * 4; j < (f.n_scales == 1 ? 8 : h * 4 + 4); ++j) {
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
            if (f.has_min) {
                const __m512 m0 = _mm512_load_ps(panel->minima[0] + s * 16), m1 = _mm512_load_ps(panel->minima[1] + s * 16);
#pragma GCC unroll 6
                for (int t = 0; t < columns; ++t) {
                    const __m512 total = _mm512_set1_ps(f.n_scales == 1 ? totals[t * units + u] : half_totals[t][s]);
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
    const ptrdiff_t tiles = (columns + TILE_COLUMNS - 1) / TILE_COLUMNS;
    /* Panels of equal size, in whole blocks. */
    const ptrdiff_t blocks = units / f.units, panels = (units + PANEL_UNITS - 1) / PANEL_UNITS;
    for (ptrdiff_t i_panel = 0; i_panel < panels; ++i_panel) {
        const ptrdiff_t u0 = blocks * i_panel / panels * f.units;
        const ptrdiff_t n_units = blocks * (i_panel + 1) / panels * f.units - u0;
        for (int h = 0; h < 2; ++h)
            pack16(rows[h], w->row_bytes, u0, n_units, panel->codes[h], panel->scales[h], panel->minima[h], f);
        for (ptrdiff_t i = 0; i < tiles; ++i) {
            /* Tiles of equal width, so that none is a slow narrow one. */
            const ptrdiff_t c0 = columns * i / tiles, c1 = columns * (i + 1) / tiles, at = t0 * in->columns + c0;
#define TILE(N) \
    case N: tile(panel, u0, n_units, in, at, N, f, acc + 2 * c0); break;
            switch (c1 - c0) { TILE(1) TILE(2) TILE(3) TILE(4) TILE(5) TILE(6) }
#undef TILE
        }
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
        const rml_format f = {unit16_##NAME, scales_##NAME, LENGTH / 32, BYTES, BIAS, HAS_MIN, SCALES};        \
        int8_rows32(w, row, n, in, t0, t1, strip, scratch, f);                                                 \
    }
RML_QUANTIZED_FORMATS(X)
#undef X

#endif
#endif
