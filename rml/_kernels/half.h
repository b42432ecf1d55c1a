/* Sixteen-bit floating point: IEEE half precision (F16) and bfloat16 (BF16).
 *
 * Widening is exact. Narrowing rounds to nearest, ties to even, subnormal results included; what is
 * too large becomes infinite and NaN stays NaN. Levels with F16C, and every AArch64 processor, have
 * instructions for it; the others compute the same function in integer arithmetic.
 */
#ifndef RML_HALF_H
#define RML_HALF_H

#include "lanes.h"

typedef uint16_t u16x16 __attribute__((vector_size(32)));
typedef uint32_t u32x16 __attribute__((vector_size(64)));

/* A register's worth of F16 values at any address. */
RML_INLINE lanes load_half_lanes(const void *p) {
#if defined(__AVX512F__)
    return (lanes)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
#elif defined(__F16C__)
    return (lanes)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
#elif defined(__aarch64__)
    float16x4_t h;
    memcpy(&h, p, sizeof h);
    return (lanes)vcvt_f32_f16(h);
#else
    typedef uint16_t short_lanes __attribute__((vector_size(2 * RML_LANES)));
    typedef uint32_t uint_lanes __attribute__((vector_size(4 * RML_LANES)));
    short_lanes codes;
    memcpy(&codes, p, sizeof codes);
    const uint_lanes h = __builtin_convertvector(codes, uint_lanes);
    const uint_lanes sign = (h & 0x8000) << 16, size = (h & 0x7fff) << 13;
    /* The exponent's bias grows from 15 to 127; infinity and NaN need the largest exponent. */
    const uint_lanes top = (uint_lanes)(size >= 0x7c00u << 13);
    const uint_lanes normal = size + (112u << 23) + (top & (112u << 23));
    /* A subnormal is its code times 2^-24: written behind 2^-14, from which 2^-14 is taken. */
    const lanes subnormal = (lanes)(size + (113u << 23)) - 0x1p-14f;
    const int_lanes is_subnormal = (int_lanes)(size < 1u << 23);
    return (lanes)((uint_lanes)select_lanes(is_subnormal, subnormal, (lanes)normal) | sign);
#endif
}

/* Sixteen F16 values at any address. */
RML_INLINE f32x16 rml_load_half16(const void *p) {
    union { lanes part[16 / RML_LANES]; f32x16 v; } u;
    for (int i = 0; i < 16 / RML_LANES; ++i)
        u.part[i] = load_half_lanes((const uint16_t *)p + i * RML_LANES);
    return u.v;
}

/* A register's worth of BF16 values at any address: the upper halves of float32. */
RML_INLINE lanes load_bf16_lanes(const void *p) {
    typedef uint16_t short_lanes __attribute__((vector_size(2 * RML_LANES)));
    typedef uint32_t uint_lanes __attribute__((vector_size(4 * RML_LANES)));
    short_lanes codes;
    memcpy(&codes, p, sizeof codes);
    return (lanes)(__builtin_convertvector(codes, uint_lanes) << 16);
}

/* Sixteen BF16 values at any address. */
RML_INLINE f32x16 rml_load_bf16_16(const void *p) {
    u16x16 h;
    memcpy(&h, p, sizeof h);
    return (f32x16)(__builtin_convertvector(h, u32x16) << 16);
}

RML_INLINE float rml_half_to_float(uint16_t h) {
#if defined(__F16C__)
    return _cvtsh_ss(h);
#elif defined(__aarch64__)
    __fp16 x;
    memcpy(&x, &h, sizeof x);
    return (float)x;
#else
    const u16x16 v = {h};
    return rml_load_half16(&v)[0];
#endif
}

RML_INLINE uint16_t rml_float_to_half(float x) {
#if defined(__F16C__)
    return _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT);
#elif defined(__aarch64__)
    const __fp16 narrow = (__fp16)x;
    uint16_t h;
    memcpy(&h, &narrow, sizeof h);
    return h;
#else
    uint32_t bits, size;
    memcpy(&bits, &x, sizeof bits);
    const uint32_t sign = bits >> 16 & 0x8000;
    size = bits & 0x7fffffff;
    if (size > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (size >> 13 & 0x3ff)); /* NaN */
    if (size >= 0x477ff000) return (uint16_t)(sign | 0x7c00); /* 65520 and more: infinite */
    if (size < 0x38800000) { /* less than 2^-14: units of 2^-24, as those of a float in [0.5, 1) */
        x = fabsf(x) + 0.5f;
        memcpy(&bits, &x, sizeof bits);
        return (uint16_t)(sign | (bits - 0x3f000000));
    }
    size += 0xfff + (size >> 13 & 1);
    return (uint16_t)(sign | (size - (112u << 23)) >> 13);
#endif
}

/* Sixteen values narrowed to F16, at any address. */
RML_INLINE void rml_store_half16(void *p, f32x16 v) {
#if defined(__AVX512F__)
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
    union { f32x16 v; __m256 h[2]; } u = {v};
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(u.h[0], _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((__m128i *)p + 1, _mm256_cvtps_ph(u.h[1], _MM_FROUND_TO_NEAREST_INT));
#elif defined(__aarch64__)
    union { f32x16 v; float32x4_t q[4]; } u = {v};
    for (int i = 0; i < 4; ++i) {
        const float16x4_t h = vcvt_f16_f32(u.q[i]);
        memcpy((char *)p + sizeof h * i, &h, sizeof h);
    }
#else
    uint16_t h[16];
    for (int i = 0; i < 16; ++i) h[i] = rml_float_to_half(v[i]);
    memcpy(p, h, sizeof h);
#endif
}

#endif
