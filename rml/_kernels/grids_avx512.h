/* Codes and scales of sixteen rows in the formats with grids, AVX-512 (see codes_avx512.h).
 *
 * Points are gathered by the indices of sixteen rows, so they arrive with a lane for each row.
 */
#ifndef RML_GRIDS_AVX512_H
#define RML_GRIDS_AVX512_H

#include "codes_avx512.h"

/* A point of eight codes for each row, its halves in two vectors. */
RML_INLINE void points8(const uint64_t *grid, __m512i index, __m512i *v) {
    const __m512i a = _mm512_i32gather_epi64(_mm512_castsi512_si256(index), (const void *)grid, 8);
    const __m512i b = _mm512_i32gather_epi64(_mm512_extracti64x4_epi64(index, 1), (const void *)grid, 8);
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    v[0] = _mm512_permutex2var_epi32(a, even, b);
    v[1] = _mm512_permutex2var_epi32(a, _mm512_add_epi32(even, _mm512_set1_epi32(1)), b);
}

/* A point of four codes for each row. */
RML_INLINE __m512i point4(const uint32_t *grid, __m512i index) {
    return _mm512_i32gather_epi32(index, (const void *)grid, 4);
}

/* Change the sign of value i where bit i is set: as the bias is 64, code c becomes 128 - c. */
RML_INLINE void with_signs16(__m512i signs, __m512i *v) {
    for (int k = 0; k < 8; ++k) v[k] = _mm512_mask_sub_epi8(v[k], four_bits(signs, k), _mm512_set1_epi8((char)128), v[k]);
}

/* Seven signs in each byte get an eighth such that the number of minus signs is even. */
RML_INLINE __m512i even_signs16(__m512i seven) {
    __m512i odd = _mm512_xor_si512(seven, _mm512_srli_epi32(seven, 4));
    odd = _mm512_xor_si512(odd, _mm512_srli_epi32(odd, 2));
    odd = _mm512_xor_si512(odd, _mm512_srli_epi32(odd, 1));
    return upper_bits(seven, _mm512_and_si512(odd, _mm512_set1_epi8(1)), 7);
}

RML_INLINE __m512i or4(__m512i a, __m512i b, __m512i c, __m512i d) {
    return _mm512_or_si512(_mm512_or_si512(a, b), _mm512_or_si512(c, d));
}

/* v shifted left, and some of its bits. */
RML_INLINE __m512i left_field(__m512i v, int shift, int mask) {
    return _mm512_and_si512(_mm512_slli_epi32(v, (unsigned)shift), _mm512_set1_epi32(mask));
}

/* Four times seven signs in the lower bits of a number. */
RML_INLINE __m512i signs_of_28(__m512i v) {
    return even_signs16(or4(field(v, 0, 0x7f), left_field(v, 1, 0x7f00), left_field(v, 2, 0x7f0000), left_field(v, 3, 0x7f000000)));
}

/* (v + 1/2) scale is scale number k. */
RML_INLINE void store_half_step(float *d, int k, __m512 scale, __m512i v) {
    _mm512_store_ps(d + k * 16, _mm512_mul_ps(scale, _mm512_add_ps(_mm512_cvtepi32_ps(v), _mm512_set1_ps(0.5f))));
}

/* (2 v + 1) scale is scale number k. */
RML_INLINE void store_odd_scale(float *d, int k, __m512 scale, __m512i v) {
    store_scale(d, k, scale, upper_bits(_mm512_set1_epi32(1), v, 1));
}

/* The f16 at the start of a block, times a power of two. */
RML_INLINE __m512 first_half(const uint8_t *rows, __m512i offsets, float factor) {
    return _mm512_mul_ps(halves_to_floats(gather16(rows, offsets, 0)), _mm512_set1_ps(factor));
}

/* Index, then signs and scale, of each unit. */
STAGE(IQ2_XXS) { stage_bytes(rows + 2, row_bytes, 2, stage); }
UNIT16(IQ2_XXS) {
    for (int i = 0; i < 4; ++i) points8(rml_tables.iq2_xxs, field(stage[2 * j], 8 * i, 255), v + 2 * i);
    with_signs16(signs_of_28(stage[2 * j + 1]), v);
}
SCALES(IQ2_XXS) {
    const __m512 scale = first_half(rows, offsets, 0.25f);
    for (int j = 0; j < 8; ++j) store_half_step(d, j, scale, _mm512_srli_epi32(stage[2 * j + 1], 28));
}

/* IQ2_XS and IQ2_S: sixteen nibbles at `at`. */
RML_INLINE void half_steps16(const uint8_t *rows, __m512i offsets, ptrdiff_t at, float *d) {
    const __m512 scale = first_half(rows, offsets, 0.25f);
    const __m512i both[2] = {gather16(rows, offsets, at), gather16(rows, offsets, at + 4)};
    for (int k = 0; k < 16; ++k) store_half_step(d, k, scale, field(both[k / 8], 4 * (k % 8), 15));
}

STAGE(IQ2_XS) { stage_bytes(rows + 2, row_bytes, 2, stage); }
UNIT16(IQ2_XS) {
    const __m512i a = stage[2 * j], b = stage[2 * j + 1]; /* nine bits of index and seven signs, four times */
    for (int i = 0; i < 4; ++i) points8(rml_tables.iq2_xs, field(i < 2 ? a : b, i % 2 * 16, 511), v + 2 * i);
    with_signs16(even_signs16(or4(field(a, 9, 0x7f), field(a, 17, 0x7f00), left_field(b, 7, 0x7f0000), field(b, 1, 0x7f000000))), v);
}
SCALES(IQ2_XS) { half_steps16(rows, offsets, 66, d); }

/* Indices, signs, upper bits of indices. */
STAGE(IQ2_S) {
    stage_bytes(rows + 2, row_bytes, 2, stage);
    for (int i = 0; i < 2; ++i) stage[16 + i] = gather16(rows, offsets, 66 + 4 * i);
}
UNIT16(IQ2_S) {
    for (int i = 0; i < 4; ++i) {
        const __m512i upper = field(stage[16 + j / 4], j % 4 * 8 + 2 * i, 3);
        points8(rml_tables.iq2_s, upper_bits(field(stage[j], 8 * i, 255), upper, 8), v + 2 * i);
    }
    with_signs16(stage[8 + j], v);
}
SCALES(IQ2_S) { half_steps16(rows, offsets, 74, d); }

/* Indices of all units, then signs and scales. */
STAGE(IQ3_XXS) { stage_bytes(rows + 2, row_bytes, 3, stage); }
UNIT16(IQ3_XXS) {
    for (int k = 0; k < 8; ++k) v[k] = point4(rml_tables.iq3_xxs, field(stage[2 * j + k / 4], k % 4 * 8, 255));
    with_signs16(signs_of_28(stage[16 + j]), v);
}
SCALES(IQ3_XXS) {
    const __m512 scale = first_half(rows, offsets, 0.5f);
    for (int j = 0; j < 8; ++j) store_half_step(d, j, scale, _mm512_srli_epi32(stage[16 + j], 28));
}

/* Indices, signs, ninth bits of indices. */
STAGE(IQ3_S) {
    stage_bytes(rows + 2, row_bytes, 2, stage);
    transpose32(rows + 74, row_bytes, stage + 16);
    for (int i = 0; i < 2; ++i) stage[24 + i] = gather16(rows, offsets, 66 + 4 * i);
}
UNIT16(IQ3_S) {
    for (int k = 0; k < 8; ++k) {
        const __m512i ninth = field(stage[24 + j / 4], j % 4 * 8 + k, 1);
        v[k] = point4(rml_tables.iq3_s, upper_bits(field(stage[2 * j + k / 4], k % 4 * 8, 255), ninth, 8));
    }
    with_signs16(stage[16 + j], v);
}
SCALES(IQ3_S) {
    const __m512 scale = first_half(rows, offsets, 1);
    const __m512i nibbles = gather16(rows, offsets, 106);
    for (int j = 0; j < 8; ++j) store_odd_scale(d, j, scale, field(nibbles, 4 * j, 15));
}

/* A point of an IQ1 format, whose values are moved by 1/8 (one in its codes): up, or `down`. */
RML_INLINE void moved_points8(__m512i index, __mmask16 down, __m512i *v) {
    points8(rml_tables.iq1, index, v);
    for (int i = 0; i < 2; ++i) v[i] = _mm512_mask_add_epi32(v[i], (__mmask16)~down, v[i], _mm512_set1_epi8(2)); /* no carry */
}

/* Indices; upper bits of indices, a scale and a bit for down, of two units in a vector. */
STAGE(IQ1_S) {
    transpose32(rows + 2, row_bytes, stage);
    transpose16(rows + 34, row_bytes, stage + 8);
}
UNIT16(IQ1_S) {
    const __m512i more = _mm512_srli_epi32(stage[8 + j / 2], j % 2 * 16u);
    const __mmask16 down = _mm512_test_epi32_mask(more, _mm512_set1_epi32(0x8000));
    for (int i = 0; i < 4; ++i)
        moved_points8(upper_bits(field(stage[j], 8 * i, 255), field(more, 3 * i, 7), 8), down, v + 2 * i);
}
SCALES(IQ1_S) {
    const __m512 scale = first_half(rows, offsets, 0.125f);
    for (int j = 0; j < 8; ++j) store_odd_scale(d, j, scale, field(stage[8 + j / 2], j % 2 * 16 + 12, 7));
}

/* Indices; nibbles of upper bits and a bit for down, of two units in a vector. */
STAGE(IQ1_M) {
    transpose32(rows, row_bytes, stage);
    transpose16(rows + 32, row_bytes, stage + 8);
}
UNIT16(IQ1_M) {
    for (int i = 0; i < 4; ++i) {
        const __m512i more = field(stage[8 + j / 2], j % 2 * 16 + 4 * i, 15);
        const __mmask16 down = _mm512_test_epi32_mask(more, _mm512_set1_epi32(8));
        const __m512i upper = _mm512_and_si512(more, _mm512_set1_epi32(7));
        moved_points8(upper_bits(field(stage[j], 8 * i, 255), upper, 8), down, v + 2 * i);
    }
}
SCALES(IQ1_M) {
    const __m512i a = gather16(rows, offsets, 48), b = gather16(rows, offsets, 52);
    const __m512i bits = or4(field(a, 12, 0xf), field(a, 24, 0xf0), field(b, 4, 0xf00), field(b, 16, 0xf000));
    const __m512 scale = _mm512_mul_ps(halves_to_floats(bits), _mm512_set1_ps(0.125f));
    for (int k = 0; k < 16; ++k) store_odd_scale(d, k, scale, field(k < 8 ? a : b, k / 4 % 2 * 16 + k % 4 * 3, 7));
}

#endif
