/* Four columns of several rows, multiplied with four inputs: the step of product_rows.h.
 *
 * A lane is a row. How the step is done is the level's choice; sums are exact in every way.
 *
 * Pairs: codes and inputs become 16-bit integers. Of four codes, the first and the third make one
 * pair, the second and the fourth another: that takes one instruction each, and the inputs come in
 * the same order. NEON multiplies halves of registers: there the first codes of all rows come before
 * the second ones, and an input is a lane of its register.
 *
 * Dot products of signed bytes (AArch64): of four inputs come the low bytes, then the high bytes,
 * which have sums of their own: sum = 256 * high + low. Codes that need eight bits lose their bias.
 */
#ifndef RML_FOUR_COLUMNS_H
#define RML_FOUR_COLUMNS_H

#include "rows.h"

#if defined(__ARM_FEATURE_DOTPROD)

enum { BYTES_MATTER = 1 }; /* inputs of one byte take fewer steps than those of two */

typedef int8x16_t four_codes;
typedef int8x8_t four_inputs;
typedef struct {
    int32x4_t low, high;
} four_sums;

/* Codes with a bias of 128 as signed bytes, without it. */
RML_INLINE four_codes codes_of(row_lanes code, int bias) { return (four_codes)(bias == 128 ? code ^ in_bytes(128) : code); }

/* What is left of a bias, for sums to begin with. */
RML_INLINE int32_t start_of(int bias, int32_t sum_of_inputs) { return bias == 128 ? 0 : -bias * sum_of_inputs; }

RML_INLINE four_inputs inputs_of(const int16_t *x) { return vld1_s8((const int8_t *)x); }

RML_INLINE four_sums sums_from(int32_t start) { return (four_sums){vdupq_n_s32(start), vdupq_n_s32(0)}; }

RML_INLINE four_sums add_products(four_sums sums, four_codes w, four_inputs x, int bytes) {
    sums.low = vdotq_lane_s32(sums.low, w, x, 0);
    if (bytes == 2) sums.high = vdotq_lane_s32(sums.high, w, x, 1);
    return sums;
}

RML_INLINE int_lanes total_of(four_sums sums, int bytes) {
    return (int_lanes)(bytes == 2 ? vaddq_s32(sums.low, vshlq_n_s32(sums.high, 8)) : sums.low);
}

/* Put the codes of a unit's inputs into the order of `inputs_of`. */
RML_INLINE void arrange_inputs(int16_t *x) {
    int8_t bytes[2 * RML_UNIT];
    for (int i = 0; i < RML_UNIT; ++i) { /* the lowest byte, taken as a signed one, is the low part */
        bytes[i / 4 * 8 + i % 4] = (int8_t)x[i];
        bytes[i / 4 * 8 + i % 4 + 4] = (int8_t)((x[i] + 128) >> 8);
    }
    memcpy(x, bytes, sizeof bytes);
}

#else

enum { BYTES_MATTER = 0 };

typedef int16_t pair_lanes __attribute__((vector_size(4 * RML_LANES)));

typedef struct {
    pair_lanes even, odd;
} four_codes;
typedef four_codes four_inputs;
typedef int_lanes four_sums;

#if defined(__aarch64__)
/* Bytes `first` and `first` + 2 of each lane; an index outside the register gives zero. */
RML_INLINE pair_lanes pair_from(row_lanes four, uint8_t first) {
    const uint8x16_t even = {0, 255, 4, 255, 8, 255, 12, 255, 2, 255, 6, 255, 10, 255, 14, 255};
    return (pair_lanes)vqtbl1q_u8((uint8x16_t)four, even | first);
}

RML_INLINE four_codes codes_of(row_lanes code, int bias) { return (four_codes){pair_from(code, 0), pair_from(code, 1)}; }
#else
RML_INLINE four_codes codes_of(row_lanes code, int bias) {
    return (four_codes){(pair_lanes)(code & 0x00ff00ff), (pair_lanes)((row_shorts)code >> 8)};
}
#endif

RML_INLINE int32_t start_of(int bias, int32_t sum_of_inputs) { return -bias * sum_of_inputs; }

/* One pair of inputs, in every lane; with NEON in the first, which is enough. */
RML_INLINE pair_lanes splat_pair(const int16_t *x) {
    uint32_t pair;
    memcpy(&pair, x, sizeof pair);
#if defined(__aarch64__)
    return (pair_lanes)(row_lanes){pair};
#else
    return (pair_lanes)in_rows(pair);
#endif
}

RML_INLINE four_inputs inputs_of(const int16_t *x) { return (four_inputs){splat_pair(x), splat_pair(x + 2)}; }

RML_INLINE four_sums sums_from(int32_t start) { return (int_lanes)in_rows((uint32_t)start); }

/* acc + the sum of the two products of each lane. */
RML_INLINE int_lanes add_pair_products(int_lanes acc, pair_lanes w, pair_lanes x) {
#if defined(__AVX2__)
    return acc + (int_lanes)_mm256_madd_epi16((__m256i)w, (__m256i)x);
#elif defined(__x86_64__)
    return acc + (int_lanes)_mm_madd_epi16((__m128i)w, (__m128i)x);
#elif defined(__aarch64__)
    const int32x4_t first = vmlal_laneq_s16((int32x4_t)acc, vget_low_s16((int16x8_t)w), (int16x8_t)x, 0);
    return (int_lanes)vmlal_high_laneq_s16(first, (int16x8_t)w, (int16x8_t)x, 1);
#else
    for (int i = 0; i < RML_LANES; ++i) acc[i] += w[2 * i] * x[2 * i] + w[2 * i + 1] * x[2 * i + 1];
    return acc;
#endif
}

RML_INLINE four_sums add_products(four_sums sums, four_codes w, four_inputs x, int bytes) {
    return add_pair_products(add_pair_products(sums, w.even, x.even), w.odd, x.odd);
}

RML_INLINE int_lanes total_of(four_sums sums, int bytes) { return sums; }

/* Exchange the second and the third of each four inputs of a unit. */
RML_INLINE void arrange_inputs(int16_t *x) {
    uint64_t v[RML_UNIT / 4];
    memcpy(v, x, sizeof v);
    for (int i = 0; i < RML_UNIT / 4; ++i)
        v[i] = (v[i] & 0xffff00000000ffffu) | (v[i] & 0xffff0000u) << 16 | (v[i] >> 16 & 0xffff0000u);
    memcpy(x, v, sizeof v);
}

#endif
#endif
