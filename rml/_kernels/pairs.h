/* Pairs of 16-bit integers: how product_pairs.h multiplies on a machine without int8 dot products.
 *
 * A register of pairs has a lane for each row of the weights. Of four codes, the first and the third
 * make one pair, the second and the fourth another: that takes one instruction each. The inputs
 * come in the same order.
 */
#ifndef RML_PAIRS_H
#define RML_PAIRS_H

#include "rows.h"

typedef int16_t pair_lanes __attribute__((vector_size(4 * RML_LANES)));

RML_INLINE pair_lanes even_pair(row_lanes four) { return (pair_lanes)(four & 0x00ff00ff); }

RML_INLINE pair_lanes odd_pair(row_lanes four) { return (pair_lanes)((row_shorts)four >> 8); }

/* One pair of inputs, in every lane. */
RML_INLINE pair_lanes splat_pair(const int16_t *x) {
    uint32_t pair;
    memcpy(&pair, x, sizeof pair);
    return (pair_lanes)in_rows(pair);
}

/* acc + the sum of the two products of each lane. */
RML_INLINE int_lanes add_pair_products(int_lanes acc, pair_lanes w, pair_lanes x) {
#if defined(__AVX2__)
    return acc + (int_lanes)_mm256_madd_epi16((__m256i)w, (__m256i)x);
#elif defined(__x86_64__)
    return acc + (int_lanes)_mm_madd_epi16((__m128i)w, (__m128i)x);
#else
    for (int i = 0; i < RML_LANES; ++i) acc[i] += w[2 * i] * x[2 * i] + w[2 * i + 1] * x[2 * i + 1];
    return acc;
#endif
}

#endif
