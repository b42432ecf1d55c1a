/* Bytes of several quantized rows at once: a lane of a register is a row.
 *
 * What codes.h and grids.h need to take a block apart: as many rows as a register has 32-bit lanes
 * (16, 8 or 4, see lanes.h), four bytes of each in a vector. Where an instruction set has a better
 * way than the compiler's vector operations, it is here and nowhere else.
 */
#ifndef RML_ROWS_H
#define RML_ROWS_H

#include "formats.h"
#include "lanes.h"

typedef uint32_t row_lanes __attribute__((vector_size(4 * RML_LANES)));  /* a number, or four bytes, a row */
typedef uint16_t row_shorts __attribute__((vector_size(4 * RML_LANES)));
typedef uint8_t row_bytes_t __attribute__((vector_size(4 * RML_LANES)));

/* The same block of each row. */
typedef struct {
    const uint8_t *p;   /* of the first row */
    ptrdiff_t stride;   /* bytes from row to row */
    row_lanes offsets;  /* of the rows */
} row_blocks;

RML_INLINE row_lanes in_rows(uint32_t x) { return x - (row_lanes){0}; }

/* The same byte everywhere. */
RML_INLINE row_lanes in_bytes(uint32_t x) { return in_rows(x * 0x01010101u); }

RML_INLINE row_blocks blocks_of_rows(const uint8_t *p, ptrdiff_t stride) {
    row_lanes numbers;
    for (int i = 0; i < RML_LANES; ++i) numbers[i] = (uint32_t)i;
    return (row_blocks){p, stride, numbers * (uint32_t)stride};
}

/* Four bytes of each row, `at` bytes from the start of its block. */
RML_INLINE row_lanes four_bytes(row_blocks b, ptrdiff_t at) {
#if defined(__AVX512F__)
    return (row_lanes)_mm512_i32gather_epi32((__m512i)b.offsets, (const void *)(b.p + at), 1);
#elif defined(__AVX2__)
    return (row_lanes)_mm256_i32gather_epi32((const int *)(b.p + at), (__m256i)b.offsets, 1);
#else
    row_lanes v;
    for (int i = 0; i < RML_LANES; ++i) v[i] = load_u32(b.p + at + i * b.stride);
    return v;
#endif
}

/* ---- transposition ---- */

/* The lower (or upper) halves of each sixteen bytes of a and b, taken in turns of 4 (or 8) bytes. */
#if defined(__AVX512F__)
#define ZIP(NAME, INSTRUCTION) \
    RML_INLINE row_lanes NAME(row_lanes a, row_lanes b) { return (row_lanes)_mm512_##INSTRUCTION((__m512i)a, (__m512i)b); }
#elif defined(__AVX2__)
#define ZIP(NAME, INSTRUCTION) \
    RML_INLINE row_lanes NAME(row_lanes a, row_lanes b) { return (row_lanes)_mm256_##INSTRUCTION((__m256i)a, (__m256i)b); }
#elif defined(__x86_64__)
#define ZIP(NAME, INSTRUCTION) \
    RML_INLINE row_lanes NAME(row_lanes a, row_lanes b) { return (row_lanes)_mm_##INSTRUCTION((__m128i)a, (__m128i)b); }
#endif
#if defined(ZIP)
ZIP(zip_low4, unpacklo_epi32)
ZIP(zip_high4, unpackhi_epi32)
ZIP(zip_low8, unpacklo_epi64)
ZIP(zip_high8, unpackhi_epi64)
#undef ZIP
#else
RML_INLINE row_lanes zip_low4(row_lanes a, row_lanes b) { return (row_lanes){a[0], b[0], a[1], b[1]}; }
RML_INLINE row_lanes zip_high4(row_lanes a, row_lanes b) { return (row_lanes){a[2], b[2], a[3], b[3]}; }
RML_INLINE row_lanes zip_low8(row_lanes a, row_lanes b) { return (row_lanes){a[0], a[1], b[0], b[1]}; }
RML_INLINE row_lanes zip_high8(row_lanes a, row_lanes b) { return (row_lanes){a[2], a[3], b[2], b[3]}; }
#endif

/* Sixteen bytes of rows r, r + 4, r + 8 and r + 12, as far as there are lanes. */
RML_INLINE row_lanes every_fourth_row(row_blocks b, ptrdiff_t at, int r) {
    const uint8_t *p = b.p + at + r * b.stride;
#if defined(__AVX512F__)
    __m512i v = _mm512_castsi128_si512(_mm_loadu_si128((const void *)p));
    v = _mm512_inserti32x4(v, _mm_loadu_si128((const void *)(p + 4 * b.stride)), 1);
    v = _mm512_inserti32x4(v, _mm_loadu_si128((const void *)(p + 8 * b.stride)), 2);
    v = _mm512_inserti32x4(v, _mm_loadu_si128((const void *)(p + 12 * b.stride)), 3);
    return (row_lanes)v;
#elif defined(__AVX2__)
    const __m256i v = _mm256_castsi128_si256(_mm_loadu_si128((const void *)p));
    return (row_lanes)_mm256_inserti128_si256(v, _mm_loadu_si128((const void *)(p + 4 * b.stride)), 1);
#else
    row_lanes v;
    memcpy(&v, p, sizeof v);
    return v;
#endif
}

/* Sixteen bytes of each row in four vectors. */
RML_INLINE void sixteen_bytes(row_blocks b, ptrdiff_t at, row_lanes *v) {
    row_lanes r[4];
    for (int i = 0; i < 4; ++i) r[i] = every_fourth_row(b, at, i);
    const row_lanes low = zip_low4(r[0], r[1]), high = zip_high4(r[0], r[1]);
    const row_lanes low2 = zip_low4(r[2], r[3]), high2 = zip_high4(r[2], r[3]);
    v[0] = zip_low8(low, low2);
    v[1] = zip_high8(low, low2);
    v[2] = zip_low8(high, high2);
    v[3] = zip_high8(high, high2);
}

/* 32 bytes of each row in eight vectors. */
RML_INLINE void thirty_two_bytes(row_blocks b, ptrdiff_t at, row_lanes *v) {
#if defined(__AVX512F__)
    const __m512i low = _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13);
    const __m512i high = _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15);
    row_lanes r[8], p[8];
    for (int i = 0; i < 8; ++i) { /* rows i and i + 8 */
        const uint8_t *from = b.p + at + i * b.stride;
        const __m512i one = _mm512_castsi256_si512(_mm256_loadu_si256((const void *)from));
        r[i] = (row_lanes)_mm512_inserti64x4(one, _mm256_loadu_si256((const void *)(from + 8 * b.stride)), 1);
    }
    for (int h = 0; h < 8; h += 4) {
        const row_lanes first = zip_low4(r[h], r[h + 1]), second = zip_high4(r[h], r[h + 1]);
        const row_lanes third = zip_low4(r[h + 2], r[h + 3]), fourth = zip_high4(r[h + 2], r[h + 3]);
        p[h] = zip_low8(first, third);
        p[h + 1] = zip_high8(first, third);
        p[h + 2] = zip_low8(second, fourth);
        p[h + 3] = zip_high8(second, fourth);
    }
    for (int k = 0; k < 4; ++k) {
        v[k] = (row_lanes)_mm512_permutex2var_epi64((__m512i)p[k], low, (__m512i)p[k + 4]);
        v[k + 4] = (row_lanes)_mm512_permutex2var_epi64((__m512i)p[k], high, (__m512i)p[k + 4]);
    }
#else
    sixteen_bytes(b, at, v);
    sixteen_bytes(b, at + 16, v + 4);
#endif
}

/* ---- bits ---- */

/* Bits of each lane. */
RML_INLINE row_lanes field(row_lanes v, int shift, uint32_t mask) { return v >> shift & mask; }

/* The same of v shifted left. */
RML_INLINE row_lanes left_field(row_lanes v, int shift, uint32_t mask) { return v << shift & mask; }

/* Bytes shifted right, or left if negative; what comes from the next byte is masked out. */
RML_INLINE row_lanes bits_of_bytes(row_lanes v, int right, uint32_t mask) {
    const row_shorts s = (row_shorts)v;
    return (row_lanes)(right > 0 ? s >> right : right < 0 ? s << -right : s) & mask * 0x01010101u;
}

/* Bits 4k .. 4k + 3 of each lane, one in each of its bytes. */
RML_INLINE row_lanes one_bit_a_byte(row_lanes bits, int k) {
    const row_lanes four = field(bits, 4 * k, 15);
    return (four | four << 7 | four << 14 | four << 21) & 0x01010101u;
}

#if defined(__AVX512F__)
/* The same as a mask of bytes. */
RML_INLINE __mmask64 four_bits(row_lanes bits, int k) {
    /* Byte k / 2 four times, and in each a bit of its lower or upper half. */
    const __m128i from = _mm_add_epi8(_mm_set1_epi8((char)(k / 2)), _mm_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12));
    const __m512i spread = _mm512_shuffle_epi8((__m512i)bits, _mm512_broadcast_i32x4(from));
    return _mm512_test_epi8_mask(spread, _mm512_set1_epi32(k % 2 ? (int)0x80402010 : 0x08040201));
}
#endif

/* Add a power of two to code i where bit i of a row's 32 bits is set; the codes lack that bit. */
RML_INLINE void add_bits_rows(row_lanes bits, uint32_t value, row_lanes *v) {
    for (int k = 0; k < 8; ++k)
#if defined(__AVX512F__)
        v[k] = (row_lanes)_mm512_mask_add_epi8((__m512i)v[k], four_bits(bits, k), (__m512i)v[k], (__m512i)in_bytes(value));
#else
        v[k] |= one_bit_a_byte(bits, k) * value;
#endif
}

/* Add a power of two to code i where bit j of byte i is set; the codes lack that bit. */
RML_INLINE void add_bits_of_bytes_rows(const row_lanes *bytes, int j, int log_value, row_lanes *v) {
    for (int k = 0; k < 8; ++k)
#if defined(__AVX512F__)
        v[k] = (row_lanes)_mm512_mask_add_epi8((__m512i)v[k], _mm512_test_epi8_mask((__m512i)bytes[k], (__m512i)in_bytes(1u << j)),
                                               (__m512i)v[k], (__m512i)in_bytes(1u << log_value));
#else
        v[k] |= bits_of_bytes(bytes[k], j - log_value, 1u << log_value);
#endif
}

/* 1 in each byte that is `least` or more, 0 elsewhere. */
RML_INLINE row_lanes at_least(row_lanes v, uint32_t least) {
#if defined(__AVX512F__)
    return (row_lanes)_mm512_maskz_mov_epi8(_mm512_cmpge_epu8_mask((__m512i)v, (__m512i)in_bytes(least)), (__m512i)in_bytes(1));
#else
    return (row_lanes)((row_bytes_t)v >= (row_bytes_t)in_bytes(least)) & 0x01010101u;
#endif
}

/* Change the sign of value i where bit i of a row's 32 bits is set: as the bias is 64, code c
 * becomes 128 - c. */
RML_INLINE void with_signs_rows(row_lanes signs, row_lanes *v) {
    for (int k = 0; k < 8; ++k) {
        const row_bytes_t opposite = (row_bytes_t)in_bytes(128) - (row_bytes_t)v[k];
#if defined(__AVX512F__)
        v[k] = (row_lanes)_mm512_mask_mov_epi8((__m512i)v[k], four_bits(signs, k), (__m512i)opposite);
#else
        const row_lanes bit = one_bit_a_byte(signs, k), mask = (bit << 8) - bit;
        v[k] = (mask & (row_lanes)opposite) | (~mask & v[k]);
#endif
    }
}

/* The lowest byte of each row in all of its bytes. */
RML_INLINE row_lanes repeat_byte(row_lanes v) {
    const row_lanes one = v & 255, two = one | one << 8;
    return two | two << 16;
}

/* start + factor * v for all bytes of a row, modulo 256. */
RML_INLINE row_lanes multiply_bytes(row_lanes v, row_lanes factor, row_lanes start) {
    const row_shorts f = (row_shorts)((factor & 0xffff) | factor << 16);
    const row_shorts low = (row_shorts)(v & 0x00ff00ff) * f, high = (row_shorts)(v & 0xff00ff00) * f;
    const row_lanes products = ((row_lanes)low & 0x00ff00ff) | (row_lanes)high;
    return (row_lanes)((row_bytes_t)products + (row_bytes_t)repeat_byte(start));
}

/* ---- tables ---- */

/* Replace numbers below 16 by their entries in a table. */
RML_INLINE void look_up_rows(const uint8_t *table, row_lanes *v) {
#if defined(__AVX512F__)
    const __m512i entries = _mm512_broadcast_i32x4(_mm_load_si128((const void *)table));
    for (int k = 0; k < 8; ++k) v[k] = (row_lanes)_mm512_shuffle_epi8(entries, (__m512i)v[k]);
#elif defined(__AVX2__)
    const __m256i entries = _mm256_broadcastsi128_si256(_mm_load_si128((const void *)table));
    for (int k = 0; k < 8; ++k) v[k] = (row_lanes)_mm256_shuffle_epi8(entries, (__m256i)v[k]);
#else
    for (int k = 0; k < 8; ++k) v[k] = (row_lanes)look_up(table, (u8x16)v[k]);
#endif
}

/* A point of four codes for each row. */
RML_INLINE row_lanes point4(const uint32_t *grid, row_lanes index) {
#if defined(__AVX512F__)
    return (row_lanes)_mm512_i32gather_epi32((__m512i)index, (const void *)grid, 4);
#elif defined(__AVX2__)
    return (row_lanes)_mm256_i32gather_epi32((const int *)grid, (__m256i)index, 4);
#else
    row_lanes v;
    for (int i = 0; i < RML_LANES; ++i) v[i] = grid[index[i]];
    return v;
#endif
}

/* A point of eight codes for each row, its halves in two vectors. */
RML_INLINE void points8(const uint64_t *grid, row_lanes index, row_lanes *v) {
#if defined(__AVX512F__)
    const __m512i a = _mm512_i32gather_epi64(_mm512_castsi512_si256((__m512i)index), (const void *)grid, 8);
    const __m512i b = _mm512_i32gather_epi64(_mm512_extracti64x4_epi64((__m512i)index, 1), (const void *)grid, 8);
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    v[0] = (row_lanes)_mm512_permutex2var_epi32(a, even, b);
    v[1] = (row_lanes)_mm512_permutex2var_epi32(a, _mm512_add_epi32(even, _mm512_set1_epi32(1)), b);
#elif defined(__AVX2__)
    v[0] = (row_lanes)_mm256_i32gather_epi32((const int *)grid, (__m256i)index, 8);
    v[1] = (row_lanes)_mm256_i32gather_epi32((const int *)grid + 1, (__m256i)index, 8);
#else
    for (int i = 0; i < RML_LANES; ++i) {
        const uint64_t point = grid[index[i]];
        v[0][i] = (uint32_t)point;
        v[1][i] = (uint32_t)(point >> 32);
    }
#endif
}

/* ---- scales ---- */

RML_INLINE lanes floats_of(row_lanes v) { return __builtin_convertvector((int_lanes)v, lanes); }

/* F16 numbers in the lower halves of the lanes; the upper halves may hold anything. */
RML_INLINE lanes low_halves(row_lanes v) {
#if defined(__AVX512F__)
    return (lanes)_mm512_cvtph_ps(_mm512_cvtepi32_epi16((__m512i)v));
#elif defined(__AVX2__)
    const __m256i packed = _mm256_packus_epi32((__m256i)(v & 0xffff), _mm256_setzero_si256());
    return (lanes)_mm256_cvtph_ps(_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08)));
#else
    uint16_t half[RML_LANES];
    for (int i = 0; i < RML_LANES; ++i) half[i] = (uint16_t)v[i];
    return load_half_lanes(half);
#endif
}

RML_INLINE lanes high_halves(row_lanes v) { return low_halves(v >> 16); }

RML_INLINE row_lanes upper_bits(row_lanes low, row_lanes high, int shift) { return low | high << shift; }

#endif
