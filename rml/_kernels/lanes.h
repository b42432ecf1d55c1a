/* One machine register of float32 lanes, for loops in which lanes never meet.
 *
 * A compiler vector that is wider than the machine's registers (`f32x16` without AVX-512) lives in
 * memory when it is carried around a loop, and is compared element by element. The innermost
 * loops therefore use `lanes`, as wide as a register of the level: 16, 8 or 4. Where each lane is
 * computed for itself, the width changes no bit.
 */
#ifndef RML_LANES_H
#define RML_LANES_H

#include "vec.h"

#if defined(__AVX512F__)
enum { RML_LANES = 16 };
#elif defined(__AVX2__)
enum { RML_LANES = 8 };
#else
enum { RML_LANES = 4 };
#endif

enum { RML_PARTS = 16 / RML_LANES }; /* registers that hold sixteen lanes */

typedef float lanes __attribute__((vector_size(4 * RML_LANES)));
typedef int32_t int_lanes __attribute__((vector_size(4 * RML_LANES)));

RML_INLINE lanes load_lanes(const float *p) {
    lanes v;
    memcpy(&v, p, sizeof v);
    return v;
}

RML_INLINE void store_lanes(float *p, lanes v) { memcpy(p, &v, sizeof v); }

RML_INLINE lanes splat_lanes(float x) { return x - (lanes){0}; }

/* a * b + c, rounded as by fma1. */
RML_INLINE lanes fma_lanes(lanes a, lanes b, lanes c) {
#if defined(__AVX512F__)
    return (lanes)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
    return (lanes)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return (lanes)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

RML_INLINE lanes select_lanes(int_lanes mask, lanes yes, lanes no) {
    return (lanes)((mask & (int_lanes)yes) | (~mask & (int_lanes)no));
}

/* Sum of sixteen lanes, by the tree of `sum16`. */
RML_INLINE float sum_parts(const lanes part[RML_PARTS]) {
    f32x16 v;
    memcpy(&v, part, sizeof v);
    return sum16(v);
}

/* The larger of both; where one is NaN, b, or NaN with NEON. */
RML_INLINE lanes max_lanes(lanes a, lanes b) {
#if defined(__AVX512F__)
    return (lanes)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (lanes)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__x86_64__)
    return (lanes)_mm_max_ps((__m128)a, (__m128)b);
#elif defined(__aarch64__)
    return (lanes)vmaxq_f32((float32x4_t)a, (float32x4_t)b);
#else
    return select_lanes(a > b, a, b);
#endif
}

/* The smaller of both; where one is NaN, b, or NaN with NEON. */
RML_INLINE lanes min_lanes(lanes a, lanes b) {
#if defined(__AVX512F__)
    return (lanes)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (lanes)_mm256_min_ps((__m256)a, (__m256)b);
#elif defined(__x86_64__)
    return (lanes)_mm_min_ps((__m128)a, (__m128)b);
#elif defined(__aarch64__)
    return (lanes)vminq_f32((float32x4_t)a, (float32x4_t)b);
#else
    return select_lanes(a < b, a, b);
#endif
}

/* e^x within 2 units in the last place for -87.3 < x < 88.3; zero below -87.7, infinite above
 * 88.4; NaN stays.
 *
 * x = n ln 2 + r with |r| <= ln(2)/2, e^r by its Taylor polynomial of degree 7 (remainder below
 * 6e-9), 2^n through the exponent bits; n is -127 (whose bits are those of zero) to 128 (infinity).
 * ln 2 is split in two so that n * ln 2 is exact.
 */
RML_INLINE lanes exp_lanes(lanes x) {
    const lanes round = splat_lanes(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer */
    x = min_lanes(splat_lanes(88.6f), max_lanes(splat_lanes(-88.0f), x));
    const lanes n = fma_lanes(x, splat_lanes(1.44269504f), round) - round;
    lanes r = fma_lanes(n, splat_lanes(-0.693145752f), x);
    r = fma_lanes(n, splat_lanes(-1.42860677e-6f), r);
    lanes p = splat_lanes(1.0f / 5040);
    p = fma_lanes(p, r, splat_lanes(1.0f / 720));
    p = fma_lanes(p, r, splat_lanes(1.0f / 120));
    p = fma_lanes(p, r, splat_lanes(1.0f / 24));
    p = fma_lanes(p, r, splat_lanes(1.0f / 6));
    p = fma_lanes(p, r, splat_lanes(0.5f));
    p = fma_lanes(p, r, splat_lanes(1.0f));
    p = fma_lanes(p, r, splat_lanes(1.0f));
    const int_lanes power = (__builtin_convertvector(n, int_lanes) + 127) << 23;
    return p * (lanes)power;
}

/* The same, but zero below -87.3 and infinite above 88.3. */
RML_INLINE lanes exp_normal_lanes(lanes x) {
    const lanes y = select_lanes(x < -87.3f, splat_lanes(0.0f), exp_lanes(x));
    return select_lanes(x > 88.3f, splat_lanes(INFINITY), y);
}

#endif
