/* Sixteen float32 lanes, whatever the machine's registers hold.
 *
 * Every f32 sum in the kernels runs in sixteen lanes and ends in one fixed tree, at every
 * instruction-set level. The type is a compiler vector (gcc and clang), which becomes one register
 * with AVX-512, two with AVX2 and four with SSE2. Fused multiply-add is by name only: `fma16` is
 * fused where the level has FMA and rounds twice at the base level.
 */
#ifndef RML_VEC_H
#define RML_VEC_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

typedef float f32x16 __attribute__((vector_size(64)));
typedef int32_t i32x16 __attribute__((vector_size(64)));

#define RML_INLINE static inline __attribute__((always_inline))

RML_INLINE f32x16 load16(const float *p) {
    f32x16 v;
    memcpy(&v, p, sizeof v);
    return v;
}

RML_INLINE void store16(float *p, f32x16 v) { memcpy(p, &v, sizeof v); }

/* The first n < 16 values, zeros behind them. */
RML_INLINE f32x16 load_part(const float *p, ptrdiff_t n) {
    f32x16 v = {0};
    memcpy(&v, p, (size_t)n * sizeof *p);
    return v;
}

RML_INLINE void store_part(float *p, f32x16 v, ptrdiff_t n) {
    memcpy(p, &v, (size_t)n * sizeof *p);
}

RML_INLINE f32x16 splat16(float x) { return x - (f32x16){0}; }

RML_INLINE f32x16 fma16(f32x16 a, f32x16 b, f32x16 c) {
#if defined(__AVX512F__)
    return (f32x16)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    union { f32x16 v; __m256 h[2]; } x = {a}, y = {b}, z = {c};
    z.h[0] = _mm256_fmadd_ps(x.h[0], y.h[0], z.h[0]);
    z.h[1] = _mm256_fmadd_ps(x.h[1], y.h[1], z.h[1]);
    return z.v;
#else
    return a * b + c;
#endif
}

/* One lane of fma16. */
RML_INLINE float fma1(float a, float b, float c) {
#if defined(__FMA__)
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

/* Sum of the lanes: lanes i and i+8, then i and i+4, i+2, i+1. */
RML_INLINE float sum16(f32x16 v) {
    typedef float f32x8 __attribute__((vector_size(32)));
    typedef float f32x4 __attribute__((vector_size(16)));
    union { f32x16 v; f32x8 h[2]; } a = {v};
    union { f32x8 v; f32x4 h[2]; } b = {a.h[0] + a.h[1]};
    f32x4 c = b.h[0] + b.h[1];
    return (c[0] + c[2]) + (c[1] + c[3]);
}

RML_INLINE f32x16 select16(i32x16 mask, f32x16 yes, f32x16 no) {
    return (f32x16)((mask & (i32x16)yes) | (~mask & (i32x16)no));
}

/* e^x within 2 units in the last place for -87.3 < x < 88.3; zero below, infinite above; NaN stays.
 *
 * x = n ln 2 + r with |r| <= ln(2)/2, e^r by its Taylor polynomial of degree 7 (remainder below
 * 5e-9), 2^n through the exponent bits. ln 2 is split in two so that n * ln 2 is exact.
 */
RML_INLINE f32x16 exp16(f32x16 x) {
    const f32x16 round = splat16(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer */
    const i32x16 small = x < -87.3f, large = x > 88.3f;
    x = select16(small, splat16(-87.3f), x);
    x = select16(large, splat16(88.3f), x);
    const f32x16 n = fma16(x, splat16(1.44269504f), round) - round;
    f32x16 r = fma16(n, splat16(-0.693145752f), x);
    r = fma16(n, splat16(-1.42860677e-6f), r);
    f32x16 p = splat16(1.0f / 5040);
    p = fma16(p, r, splat16(1.0f / 720));
    p = fma16(p, r, splat16(1.0f / 120));
    p = fma16(p, r, splat16(1.0f / 24));
    p = fma16(p, r, splat16(1.0f / 6));
    p = fma16(p, r, splat16(0.5f));
    p = fma16(p, r, splat16(1.0f));
    p = fma16(p, r, splat16(1.0f));
    const i32x16 power = (__builtin_convertvector(n, i32x16) + 127) << 23;
    p = p * (f32x16)power;
    p = select16(small, splat16(0.0f), p);
    return select16(large, splat16(INFINITY), p);
}

#endif
