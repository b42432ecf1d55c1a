/* Sixteen float32 lanes, whatever the machine's registers hold.
 *
 * Every f32 sum in the kernels runs in sixteen lanes and ends in one fixed tree, at every
 * instruction-set level. The type is a compiler vector (gcc and clang), which becomes one register
 * with AVX-512, two with AVX2 and four with SSE2 and NEON; loops use `lanes` (lanes.h). Nothing is
 * fused but by name.
 */
#ifndef RML_VEC_H
#define RML_VEC_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
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

RML_INLINE f32x16 splat16(float x) { return x - (f32x16){0}; }

/* a * b + c, rounded once where the level has fused multiply-add and twice at the base level. */
RML_INLINE float fma1(float a, float b, float c) {
#if defined(__FMA__) || defined(__aarch64__)
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

#endif
