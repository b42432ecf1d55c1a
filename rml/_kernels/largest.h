/* The k largest of n values: a heap of the best so far, whose smallest is what others must exceed.
 *
 * An entry of the heap is one number: the value's bits, turned so that they order like the value
 * (NaN above all, -0 like 0), above the complement of the index, so that of equals the smaller
 * index is the larger entry. Most values of a long array do not exceed the bound; sixteen of them
 * are compared at a time.
 */
#ifndef RML_LARGEST_H
#define RML_LARGEST_H

#include "vec.h"

RML_INLINE uint64_t largest_entry(float value, ptrdiff_t index) {
    uint32_t bits;
    value += 0.0f; /* -0 becomes 0 */
    memcpy(&bits, &value, sizeof bits);
    bits = value != value ? UINT32_MAX : bits ^ (bits >> 31 ? UINT32_MAX : UINT32_C(1) << 31);
    return (uint64_t)bits << 32 | (UINT32_MAX - (uint32_t)index);
}

RML_INLINE ptrdiff_t largest_index(uint64_t entry) { return UINT32_MAX - (uint32_t)entry; }

/* Bits of the lanes that are not <= bound: larger ones and NaN. */
RML_INLINE unsigned above16(const float *p, float bound) {
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask(_mm512_loadu_ps(p), _mm512_set1_ps(bound), _CMP_NLE_UQ);
#elif defined(__AVX__)
    const __m256 b = _mm256_set1_ps(bound);
    const __m256 low = _mm256_cmp_ps(_mm256_loadu_ps(p), b, _CMP_NLE_UQ);
    const __m256 high = _mm256_cmp_ps(_mm256_loadu_ps(p + 8), b, _CMP_NLE_UQ);
    return (unsigned)_mm256_movemask_ps(low) | (unsigned)_mm256_movemask_ps(high) << 8;
#elif defined(__SSE__)
    const __m128 b = _mm_set1_ps(bound);
    unsigned bits = 0;
    for (int i = 0; i < 4; ++i) {
        bits |= (unsigned)_mm_movemask_ps(_mm_cmpnle_ps(_mm_loadu_ps(p + 4 * i), b)) << 4 * i;
    }
    return bits;
#elif defined(__aarch64__)
    const float32x4_t b = vdupq_n_f32(bound);
    uint16x4_t within[4];
    for (int i = 0; i < 4; ++i) within[i] = vmovn_u32(vcleq_f32(vld1q_f32(p + 4 * i), b));
    const uint8x8_t weight = {1, 2, 4, 8, 16, 32, 64, 128};
    const uint8x8_t low = vbic_u8(weight, vmovn_u16(vcombine_u16(within[0], within[1])));
    const uint8x8_t high = vbic_u8(weight, vmovn_u16(vcombine_u16(within[2], within[3])));
    return (unsigned)vaddv_u8(low) | (unsigned)vaddv_u8(high) << 8;
#else
    unsigned bits = 0;
    for (int i = 0; i < 16; ++i) bits |= (unsigned)!(p[i] <= bound) << i;
    return bits;
#endif
}

/* Let the entry at `at` of a heap (smallest first) sink to its place. */
RML_INLINE void largest_sink(uint64_t *heap, ptrdiff_t n, ptrdiff_t at) {
    const uint64_t entry = heap[at];
    for (ptrdiff_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && heap[child + 1] < heap[child]) ++child;
        if (heap[child] >= entry) break;
        heap[at] = heap[child];
    }
    heap[at] = entry;
}

/* Take an entry into the heap in place of the smallest one, if it is larger. */
RML_INLINE void largest_offer(uint64_t *heap, ptrdiff_t k, uint64_t entry) {
    if (entry > heap[0]) {
        heap[0] = entry;
        largest_sink(heap, k, 0);
    }
}

static void rml_largest_values(const float *values, ptrdiff_t n, ptrdiff_t k, int64_t *ids,
                               float *out) {
    uint64_t *heap = (uint64_t *)ids;
    for (ptrdiff_t i = 0; i < k; ++i) heap[i] = largest_entry(values[i], i);
    for (ptrdiff_t i = k / 2; i-- > 0;) largest_sink(heap, k, i);
    ptrdiff_t i = k;
    for (; i + 16 <= n; i += 16) {
        unsigned bits = above16(values + i, values[largest_index(heap[0])]);
        for (; bits; bits &= bits - 1) {
            const ptrdiff_t at = i + __builtin_ctz(bits);
            largest_offer(heap, k, largest_entry(values[at], at));
        }
    }
    for (; i < n; ++i) largest_offer(heap, k, largest_entry(values[i], i));
    for (ptrdiff_t left = k - 1; left > 0; --left) { /* the smallest goes last */
        const uint64_t entry = heap[0];
        heap[0] = heap[left];
        heap[left] = entry;
        largest_sink(heap, left, 0);
    }
    for (i = 0; i < k; ++i) {
        ids[i] = largest_index(heap[i]);
        out[i] = values[ids[i]];
    }
}

#endif
