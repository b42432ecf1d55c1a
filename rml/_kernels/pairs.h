/* Pairs of 16-bit integers: how product_pairs.h multiplies on a machine without int8 dot products.
 *
 * A register of pairs has a lane for each row of the weights. Of four codes, the first and the third
 * make one pair, the second and the fourth another: that takes one instruction each. The inputs
 * come in the same order. NEON multiplies halves of registers: there the first codes of all rows
 * come before the second ones, and an input is a lane of its register.
 */
#ifndef RML_PAIRS_H
#define RML_PAIRS_H

#include "rows.h"

typedef int16_t pair_lanes __attribute__((vector_size(4 * RML_LANES)));

#if defined(__aarch64__)
/* Bytes `first` and `first` + 2 of each lane; an index outside the register gives zero. */
RML_INLINE pair_lanes pair_from(row_lanes four, uint8_t first) {
    const uint8x16_t even = {0, 255, 4, 255, 8, 255, 12, 255, 2, 255, 6, 255, 10, 255, 14, 255};
    return (pair_lanes)vqtbl1q_u8((uint8x16_t)four, even | first);
}

RML_INLINE pair_lanes even_pair(row_lanes four) { return pair_from(four, 0); }

RML_INLINE pair_lanes odd_pair(row_lanes four) { return pair_from(four, 1); }
#else
RML_INLINE pair_lanes even_pair(row_lanes four) { return (pair_lanes)(four & 0x00ff00ff); }

RML_INLINE pair_lanes odd_pair(row_lanes four) { return (pair_lanes)((row_shorts)four >> 8); }
#endif

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

#endif
