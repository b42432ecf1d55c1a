/* Pairs of 16-bit integers: what product_pairs.h needs of a machine without int8 dot products.
 *
 * A register of pairs has a lane for each row of the weights: two consecutive codes of it.
 */
#ifndef RML_PAIRS_H
#define RML_PAIRS_H

#include "formats.h"
#include "lanes.h"

enum { UNIT_PAIRS = RML_UNIT / 2 };

typedef int16_t pair_lanes __attribute__((vector_size(4 * RML_LANES)));

/* One pair of inputs, in every lane. */
RML_INLINE pair_lanes splat_pair(const int16_t *x) {
    int32_t pair;
    memcpy(&pair, x, sizeof pair);
    return (pair_lanes)(pair - (int_lanes){0});
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

/* Codes of a unit of RML_LANES rows, less a bias, as UNIT_PAIRS registers. */
RML_INLINE void pairs_of_rows(const uint8_t code[RML_LANES][RML_UNIT], int bias, pair_lanes *v) {
#if defined(__AVX2__)
    for (int h = 0; h < 2; ++h) { /* sixteen columns: a transposition of 8 x 8 pairs of bytes */
        __m128i a[8], b[8];
        for (int r = 0; r < 8; ++r) a[r] = _mm_loadu_si128((const __m128i *)(code[r] + 16 * h));
        for (int i = 0; i < 4; ++i) { /* pairs 0-3 and 4-7 of rows 2i and 2i + 1 */
            b[i] = _mm_unpacklo_epi16(a[2 * i], a[2 * i + 1]);
            b[i + 4] = _mm_unpackhi_epi16(a[2 * i], a[2 * i + 1]);
        }
        for (int i = 0; i < 8; i += 2) { /* two pairs of rows 0-3 and of rows 4-7 */
            a[i] = _mm_unpacklo_epi32(b[i], b[i + 1]);
            a[i + 1] = _mm_unpackhi_epi32(b[i], b[i + 1]);
        }
        for (int i = 0; i < 8; ++i) {
            const __m128i low = a[i / 4 * 4 + i / 2 % 2], high = a[i / 4 * 4 + i / 2 % 2 + 2];
            const __m128i bytes = i % 2 ? _mm_unpackhi_epi64(low, high) : _mm_unpacklo_epi64(low, high);
            v[8 * h + i] = (pair_lanes)_mm256_sub_epi16(_mm256_cvtepu8_epi16(bytes), _mm256_set1_epi16((int16_t)bias));
        }
    }
#elif defined(__x86_64__)
    const __m128i zero = _mm_setzero_si128(), less = _mm_set1_epi16((int16_t)bias);
    for (int h = 0; h < 2; ++h) {
        __m128i a[4];
        for (int r = 0; r < 4; ++r) a[r] = _mm_loadu_si128((const __m128i *)(code[r] + 16 * h));
        for (int q = 0; q < 2; ++q) { /* four pairs of bytes of each row */
            const __m128i b = q ? _mm_unpackhi_epi16(a[0], a[1]) : _mm_unpacklo_epi16(a[0], a[1]);
            const __m128i c = q ? _mm_unpackhi_epi16(a[2], a[3]) : _mm_unpacklo_epi16(a[2], a[3]);
            const __m128i two[2] = {_mm_unpacklo_epi32(b, c), _mm_unpackhi_epi32(b, c)};
            for (int i = 0; i < 2; ++i) {
                pair_lanes *to = v + 8 * h + 4 * q + 2 * i;
                to[0] = (pair_lanes)_mm_sub_epi16(_mm_unpacklo_epi8(two[i], zero), less);
                to[1] = (pair_lanes)_mm_sub_epi16(_mm_unpackhi_epi8(two[i], zero), less);
            }
        }
    }
#else
    for (int p = 0; p < UNIT_PAIRS; ++p)
        for (int i = 0; i < 2 * RML_LANES; ++i) v[p][i] = (int16_t)(code[i / 2][2 * p + i % 2] - bias);
#endif
}

#endif
