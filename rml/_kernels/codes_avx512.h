/* Codes and scales of sixteen quantized rows, AVX-512: what product_avx512.h needs of each format.
 *
 * A lane is a row. `unit16_NAME` gives unit j of a block in eight vectors, v[k] with the codes
 * 4k .. 4k+3 of each row; `scales_NAME` gives the block's scales and minima as [unit][scale][16 rows].
 * Both give the numbers of `unpack_NAME`, whose comments say what the bits mean. Where units of a
 * block share bytes, `stage_NAME` transposes those first: a vector then holds four bytes of each row.
 *
 * `rows` is where the block begins in the first row, `offsets` how far from there in each row.
 */
#ifndef RML_CODES_AVX512_H
#define RML_CODES_AVX512_H

#include "formats.h"

enum { STAGE_VECTORS = 64 };

typedef void stage_fn(const uint8_t *rows, ptrdiff_t row_bytes, __m512i offsets, __m512i *stage);
typedef void unit16_fn(const uint8_t *rows, ptrdiff_t row_bytes, __m512i offsets, const __m512i *stage, int j, __m512i *v);
typedef void scales_fn(const uint8_t *rows, __m512i offsets, const __m512i *stage, float *d, float *m);

#define STAGE(NAME) \
    RML_INLINE void stage_##NAME(const uint8_t *rows, ptrdiff_t row_bytes, __m512i offsets, __m512i *stage)
#define NO_STAGE(NAME) static stage_fn *const stage_##NAME = NULL;
#define UNIT16(NAME) \
    RML_INLINE void unit16_##NAME(const uint8_t *rows, ptrdiff_t row_bytes, __m512i offsets, const __m512i *stage, int j, __m512i *v)
#define SCALES(NAME) \
    RML_INLINE void scales_##NAME(const uint8_t *rows, __m512i offsets, const __m512i *stage, float *d, float *m)

/* ---- bytes of sixteen rows ---- */

RML_INLINE __m512i row_offsets(ptrdiff_t row_bytes) {
    const __m512i rows = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_mullo_epi32(rows, _mm512_set1_epi32((int)row_bytes));
}

/* Four bytes of each row. */
RML_INLINE __m512i gather16(const uint8_t *rows, __m512i offsets, ptrdiff_t at) {
    return _mm512_i32gather_epi32(offsets, (const void *)(rows + at), 1);
}

/* Sixteen bytes of each row in four vectors. */
RML_INLINE void transpose16(const uint8_t *rows, ptrdiff_t row_bytes, __m512i *v) {
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

/* 32 bytes of each row in eight vectors. */
RML_INLINE void transpose32(const uint8_t *rows, ptrdiff_t row_bytes, __m512i *v) {
    const __m512i low = _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13);
    const __m512i high = _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15);
    __m512i r[8], p[8];
    for (int i = 0; i < 8; ++i) { /* rows i and i + 8 */
        const uint8_t *a = rows + i * row_bytes, *b = a + 8 * row_bytes;
        r[i] = _mm512_castsi256_si512(_mm256_loadu_si256((const void *)a));
        r[i] = _mm512_inserti64x4(r[i], _mm256_loadu_si256((const void *)b), 1);
    }
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

/* Bytes shifted right, or left if negative; what comes from the next byte is masked out. */
RML_INLINE __m512i bits_of_bytes(__m512i v, int right, int mask) {
    v = right > 0 ? _mm512_srli_epi16(v, (unsigned)right) : right < 0 ? _mm512_slli_epi16(v, (unsigned)-right) : v;
    return _mm512_and_si512(v, _mm512_set1_epi8((char)mask));
}

/* Bits 4k .. 4k+3 of each row's 32 bits, as a mask of the four bytes of a lane. */
RML_INLINE __mmask64 four_bits(__m512i bits, int k) {
    /* Byte k / 2 four times, and in each a bit of its lower or upper half. */
    const __m128i from = _mm_add_epi8(_mm_set1_epi8((char)(k / 2)), _mm_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12));
    const __m512i spread = _mm512_shuffle_epi8(bits, _mm512_broadcast_i32x4(from));
    return _mm512_test_epi8_mask(spread, _mm512_set1_epi32(k % 2 ? (int)0x80402010 : 0x08040201));
}

/* Add `value` to code i where bit i of a row's 32 bits is set. */
RML_INLINE void add_bits16(__m512i bits, int value, __m512i *v) {
    for (int k = 0; k < 8; ++k) v[k] = _mm512_mask_add_epi8(v[k], four_bits(bits, k), v[k], _mm512_set1_epi8((char)value));
}

/* Add `value` to code i where bit j of byte i is set. */
RML_INLINE void add_bits_of_bytes16(const __m512i *bytes, int j, int value, __m512i *v) {
    const __m512i bit = _mm512_set1_epi8((char)(1 << j));
    for (int k = 0; k < 8; ++k)
        v[k] = _mm512_mask_add_epi8(v[k], _mm512_test_epi8_mask(bytes[k], bit), v[k], _mm512_set1_epi8((char)value));
}

/* Nibbles of sixteen bytes of each row: the low ones are the first half of the unit. */
RML_INLINE void nibbles16(const uint8_t *rows, ptrdiff_t row_bytes, __m512i *v) {
    __m512i packed[4];
    transpose16(rows, row_bytes, packed);
    for (int k = 0; k < 4; ++k) {
        v[k] = bits_of_bytes(packed[k], 0, 15);
        v[k + 4] = bits_of_bytes(packed[k], 4, 15);
    }
}

/* Replace nibbles by their entries in a table. */
RML_INLINE void look_up16(const uint8_t *table, __m512i *v) {
    const __m512i entries = _mm512_broadcast_i32x4(_mm_load_si128((const void *)table));
    for (int k = 0; k < 8; ++k) v[k] = _mm512_shuffle_epi8(entries, v[k]);
}

/* ---- scales ---- */

RML_INLINE __m512 halves_to_floats(__m512i low_halves) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(low_halves)); }

/* The f16 in the last two bytes of a block; the two before it are read as well, and none beyond. */
RML_INLINE __m512 last_half(const uint8_t *rows, __m512i offsets, int n_bytes) {
    return halves_to_floats(_mm512_srli_epi32(gather16(rows, offsets, n_bytes - 4), 16));
}

RML_INLINE __m512i field(__m512i v, int shift, int mask) {
    return _mm512_and_si512(_mm512_srli_epi32(v, (unsigned)shift), _mm512_set1_epi32(mask));
}

RML_INLINE __m512i upper_bits(__m512i low, __m512i high, int shift) {
    return _mm512_or_si512(low, _mm512_slli_epi32(high, (unsigned)shift));
}

/* scale * v is scale number k. */
RML_INLINE void store_scale(float *d, int k, __m512 scale, __m512i v) {
    _mm512_store_ps(d + k * 16, _mm512_mul_ps(scale, _mm512_cvtepi32_ps(v)));
}

/* The same for v - 32. */
RML_INLINE void store_signed_scale(float *d, int k, __m512 scale, __m512i v) {
    store_scale(d, k, scale, _mm512_sub_epi32(v, _mm512_set1_epi32(32)));
}

RML_INLINE __m512 negative(__m512 v) { return _mm512_sub_ps(_mm512_setzero_ps(), v); }

/* One f16 scale for the whole block, at its start, and an f16 minimum behind it. */
#define SCALES_AT_START(NAME)                                                                              \
    SCALES(NAME) {                                                                                         \
        const __m512i both = gather16(rows, offsets, 0);                                                   \
        for (int j = 0; j < UNITS_##NAME; ++j) _mm512_store_ps(d + j * 16, halves_to_floats(both));        \
        if (MINIMA_##NAME) _mm512_store_ps(m, halves_to_floats(_mm512_srli_epi32(both, 16)));             \
    }

/* The same at its end. */
#define SCALES_AT_END(NAME)                                                                                \
    SCALES(NAME) {                                                                                         \
        const __m512 scale = last_half(rows, offsets, BYTES_##NAME);                                       \
        for (int j = 0; j < UNITS_##NAME; ++j) _mm512_store_ps(d + j * 16, scale);                         \
    }

/* ---- formats whose blocks hold their scales as they are ---- */

NO_STAGE(Q4_0)
SCALES_AT_START(Q4_0)
UNIT16(Q4_0) { nibbles16(rows + 2, row_bytes, v); }

NO_STAGE(Q4_1)
SCALES_AT_START(Q4_1)
UNIT16(Q4_1) { nibbles16(rows + 4, row_bytes, v); }

NO_STAGE(Q5_0)
SCALES_AT_START(Q5_0)
UNIT16(Q5_0) {
    nibbles16(rows + 6, row_bytes, v);
    add_bits16(gather16(rows, offsets, 2), 16, v);
}

NO_STAGE(Q5_1)
SCALES_AT_START(Q5_1)
UNIT16(Q5_1) {
    nibbles16(rows + 8, row_bytes, v);
    add_bits16(gather16(rows, offsets, 4), 16, v);
}

NO_STAGE(Q8_0)
SCALES_AT_START(Q8_0)
UNIT16(Q8_0) {
    transpose32(rows + 2, row_bytes, v);
    for (int k = 0; k < 8; ++k) v[k] = _mm512_xor_si512(v[k], _mm512_set1_epi8((char)0x80));
}

NO_STAGE(Q1_0)
SCALES_AT_START(Q1_0)
UNIT16(Q1_0) {
    const __m512i bits = gather16(rows, offsets, 2 + 4 * j);
    for (int k = 0; k < 8; ++k) v[k] = _mm512_maskz_mov_epi8(four_bits(bits, k), _mm512_set1_epi8(2));
}

NO_STAGE(Q2_0)
SCALES_AT_START(Q2_0)
UNIT16(Q2_0) {
    for (int k = 0; k < 8; k += 4) {
        const __m512i bytes = gather16(rows, offsets, 2 + 8 * j + k);
        for (int i = 0; i < 4; ++i) { /* the four pairs of a byte to bits 0, 8, 16 and 24 */
            const __m512i one = field(bytes, 8 * i, 255), two = upper_bits(one, one, 12);
            v[k + i] = _mm512_and_si512(upper_bits(two, two, 6), _mm512_set1_epi8(3));
        }
    }
}

NO_STAGE(IQ4_NL)
SCALES_AT_START(IQ4_NL)
UNIT16(IQ4_NL) {
    nibbles16(rows + 2, row_bytes, v);
    look_up16(rml_tables.nonlinear, v);
}

NO_STAGE(MXFP4)
UNIT16(MXFP4) {
    nibbles16(rows + 1, row_bytes, v);
    look_up16(rml_tables.e2m1, v);
}
SCALES(MXFP4) {
    const __m512i e = field(gather16(rows, offsets, 0), 0, 255);
    const __mmask16 subnormal = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
    const __m512i bits = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
    _mm512_store_si512(d, _mm512_mask_sllv_epi32(bits, subnormal, _mm512_set1_epi32(0x00200000), e));
}

NO_STAGE(NVFP4)
UNIT16(NVFP4) {
    __m512i packed[4];
    transpose16(rows + 4 + 16 * j, row_bytes, packed);
    for (int k = 0; k < 8; ++k) v[k] = bits_of_bytes(packed[k / 4 * 2 + k % 2], k / 2 % 2 * 4, 15);
    look_up16(rml_tables.e2m1, v);
}
SCALES(NVFP4) {
    const __m512i four = gather16(rows, offsets, 0);
    for (int k = 0; k < 4; ++k) { /* see half_e4m3 */
        const __m512i x = field(four, 8 * k, 255), seven = _mm512_and_si512(x, _mm512_set1_epi32(127));
        const __mmask16 subnormal = _mm512_cmplt_epi32_mask(seven, _mm512_set1_epi32(8));
        __m512 scale = _mm512_castsi512_ps(_mm512_add_epi32(_mm512_slli_epi32(seven, 20), _mm512_set1_epi32(119 << 23)));
        scale = _mm512_mask_mul_ps(scale, subnormal, _mm512_cvtepi32_ps(seven), _mm512_set1_ps(0x1p-10f));
        _mm512_store_ps(d + k * 16, _mm512_maskz_mov_ps(_mm512_cmpneq_epi32_mask(x, _mm512_set1_epi32(127)), scale));
    }
}

/* ---- formats with blocks of 256 values, but for those with grids ---- */

/* 32 n bytes of each row, for the units to share. */
RML_INLINE void stage_bytes(const uint8_t *rows, ptrdiff_t row_bytes, int n, __m512i *stage) {
    for (int i = 0; i < n; ++i) transpose32(rows + 32 * i, row_bytes, stage + 8 * i);
}

/* Bits of 32 staged bytes. */
RML_INLINE void staged_bits(const __m512i *bytes, int right, int mask, __m512i *v) {
    for (int k = 0; k < 8; ++k) v[k] = bits_of_bytes(bytes[k], right, mask);
}

enum { SCALES_Q2_K_AT = 16 }; /* in the stage, behind the pairs */

STAGE(Q2_K) {
    stage_bytes(rows + 16, row_bytes, 2, stage);
    transpose16(rows, row_bytes, stage + SCALES_Q2_K_AT);
}
UNIT16(Q2_K) {
    /* Two codes of two bits are multiplied at once: 3 * 15 stays in its byte. */
    const __m512i two = field(stage[SCALES_Q2_K_AT + j / 2], j % 2 * 16, 0x0f0f);
    const __m512i first = _mm512_and_si512(two, _mm512_set1_epi32(15)), second = _mm512_srli_epi32(two, 8);
    const __m512i scale[2] = {upper_bits(first, first, 16), upper_bits(second, second, 16)};
    staged_bits(stage + j / 4 * 8, 2 * (j % 4), 3, v);
    for (int k = 0; k < 8; ++k) v[k] = _mm512_mullo_epi16(v[k], scale[k / 4]);
}
SCALES(Q2_K) {
    const __m512i both = gather16(rows, offsets, 80);
    const __m512 scale = halves_to_floats(both), min = negative(halves_to_floats(_mm512_srli_epi32(both, 16)));
    for (int j = 0; j < 8; ++j) _mm512_store_ps(d + j * 16, scale);
    for (int k = 0; k < 16; ++k) store_scale(m, k, min, field(stage[SCALES_Q2_K_AT + k / 4], k % 4 * 8 + 4, 15));
}

STAGE(Q3_K) { stage_bytes(rows, row_bytes, 3, stage); }
UNIT16(Q3_K) {
    staged_bits(stage + 8 + j / 4 * 8, 2 * (j % 4), 3, v);
    add_bits_of_bytes16(stage, j, 4, v);
}
SCALES(Q3_K) {
    const __m512 scale = last_half(rows, offsets, BYTES_Q3_K);
    const __m512i low[2] = {gather16(rows, offsets, 96), gather16(rows, offsets, 100)}, high = gather16(rows, offsets, 104);
    for (int k = 0; k < 16; ++k) {
        const __m512i four = field(low[k / 4 % 2], 8 * (k % 4) + k / 8 * 4, 15);
        store_signed_scale(d, k, scale, upper_bits(four, field(high, 8 * (k % 4) + k / 4 * 2, 3), 4));
    }
}

/* Q4_K and Q5_K: two f16, then twelve bytes with eight scales and eight minima of six bits. */
RML_INLINE void scales_k(const uint8_t *rows, __m512i offsets, float *d, float *m) {
    const __m512i both = gather16(rows, offsets, 0);
    const __m512 scale = halves_to_floats(both), min = negative(halves_to_floats(_mm512_srli_epi32(both, 16)));
    const __m512i a = gather16(rows, offsets, 4), b = gather16(rows, offsets, 8), c = gather16(rows, offsets, 12);
    for (int i = 0; i < 4; ++i) {
        store_scale(d, i, scale, field(a, 8 * i, 63));
        store_scale(m, i, min, field(b, 8 * i, 63));
        store_scale(d, i + 4, scale, upper_bits(field(c, 8 * i, 15), field(a, 8 * i + 6, 3), 4));
        store_scale(m, i + 4, min, upper_bits(field(c, 8 * i + 4, 15), field(b, 8 * i + 6, 3), 4));
    }
}

STAGE(Q4_K) { stage_bytes(rows + 16, row_bytes, 4, stage); }
UNIT16(Q4_K) { staged_bits(stage + j / 2 * 8, j % 2 * 4, 15, v); }
SCALES(Q4_K) { scales_k(rows, offsets, d, m); }

STAGE(Q5_K) { stage_bytes(rows + 16, row_bytes, 5, stage); }
UNIT16(Q5_K) {
    staged_bits(stage + 8 + j / 2 * 8, j % 2 * 4, 15, v);
    add_bits_of_bytes16(stage, j, 16, v);
}
SCALES(Q5_K) { scales_k(rows, offsets, d, m); }

STAGE(Q6_K) { stage_bytes(rows, row_bytes, 6, stage); }
UNIT16(Q6_K) {
    const __m512i *low = stage + (j / 4 * 2 + j % 2) * 8, *high = stage + (4 + j / 4) * 8;
    staged_bits(low, j / 2 % 2 * 4, 15, v);
    for (int k = 0; k < 8; ++k) v[k] = _mm512_or_si512(v[k], bits_of_bytes(high[k], 2 * (j % 4) - 4, 0x30));
}
SCALES(Q6_K) {
    const __m512 scale = last_half(rows, offsets, BYTES_Q6_K);
    for (int k = 0; k < 16; k += 4) {
        const __m512i bytes = gather16(rows, offsets, 192 + k);
        for (int i = 0; i < 4; ++i)
            store_scale(d, k + i, scale, _mm512_srai_epi32(_mm512_slli_epi32(bytes, (unsigned)(24 - 8 * i)), 24));
    }
}

NO_STAGE(IQ4_XS)
UNIT16(IQ4_XS) {
    nibbles16(rows + 8 + 16 * j, row_bytes, v);
    look_up16(rml_tables.nonlinear, v);
}
SCALES(IQ4_XS) {
    const __m512i both = gather16(rows, offsets, 0), low = gather16(rows, offsets, 4);
    const __m512 scale = halves_to_floats(both);
    for (int j = 0; j < 8; ++j)
        store_signed_scale(d, j, scale, upper_bits(field(low, 4 * j, 15), field(both, 16 + 2 * j, 3), 4));
}

/* The whole part of 3 x / 256, a digit in base 3, and what is left of x, for the next. */
RML_INLINE __m512i trit(__m512i *x) {
    const __m512i one = _mm512_set1_epi8(1), v = *x;
    const __m512i digit = _mm512_maskz_mov_epi8(_mm512_cmpge_epu8_mask(v, _mm512_set1_epi8(86)), one);
    *x = _mm512_add_epi8(v, _mm512_add_epi8(v, v));
    return _mm512_mask_add_epi8(digit, _mm512_cmpge_epu8_mask(v, _mm512_set1_epi8((char)171)), digit, one);
}

STAGE(TQ1_0) { /* all codes of the block */
    __m512i wide[8], narrow[4], last = gather16(rows, offsets, 48);
    transpose32(rows, row_bytes, wide);
    transpose16(rows + 32, row_bytes, narrow);
    for (int digit = 0; digit < 5; ++digit) {
        for (int k = 0; k < 8; ++k) stage[8 * digit + k] = trit(&wide[k]);
        for (int k = 0; k < 4; ++k) stage[40 + 4 * digit + k] = trit(&narrow[k]);
        if (digit < 4) stage[60 + digit] = trit(&last);
    }
}
UNIT16(TQ1_0) { memcpy(v, stage + 8 * j, 8 * sizeof *v); }
SCALES_AT_END(TQ1_0)

STAGE(TQ2_0) { stage_bytes(rows, row_bytes, 2, stage); }
UNIT16(TQ2_0) { staged_bits(stage + j / 4 * 8, 2 * (j % 4), 3, v); }
SCALES_AT_END(TQ2_0)

#endif
