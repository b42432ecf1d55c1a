/* What a machine can do at most: read memory, and multiply and add in registers.
 *
 * Each loop is what the kernels of its level would be if they did nothing else, so their rates are
 * limits to hold kernels against (rml/limits.py). Independent chains hide the latency of an
 * instruction; `RML_OPAQUE` keeps the compiler from taking a product out of a loop or making one of
 * many, and costs no instruction. With factors of one a sum counts its own products.
 */
#ifndef RML_PEAK_RATES_H
#define RML_PEAK_RATES_H

#include "lanes.h"
#if defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__)
#define RML_OPAQUE(v) __asm__ volatile("" : "+v"(v))
#elif defined(__x86_64__)
#define RML_OPAQUE(v) __asm__ volatile("" : "+x"(v))
#elif defined(__aarch64__)
#define RML_OPAQUE(v) __asm__ volatile("" : "+w"(v))
#else
#define RML_OPAQUE(v) __asm__ volatile("" : "+m"(v))
#endif

/* Chains, as many as the registers hold beside two factors and a product. They are variables of
 * their own: an array of them would be kept in memory. */
#define RML_TWELVE(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
#if defined(__AVX512F__) || defined(__aarch64__)
#define RML_EACH_CHAIN(X) RML_TWELVE(X) X(12) X(13) X(14) X(15)
#else
#define RML_EACH_CHAIN(X) RML_TWELVE(X)
#endif

enum { RML_ROUNDS = 1000 }; /* after which the chains are added up: f32 sums of ones stay exact */

/* ---- reading ---- */

/* Sum of `n` 32-bit words, modulo 2^32, in eight chains.
 *
 * Each chain has a page of 4 KB to itself: a processor fetches ahead within pages, so eight pages
 * side by side keep more requests under way than one after the other. (So do kernels, which read
 * many rows at a time.)
 */
static uint32_t rml_read_words(const uint8_t *p, ptrdiff_t n) {
    enum { STREAMS = 8, WORDS = 1024 };
    int_lanes sum[STREAMS] = {0};
    ptrdiff_t i = 0;
    for (; i + STREAMS * WORDS <= n; i += STREAMS * WORDS) {
        for (ptrdiff_t j = i; j < i + WORDS; j += RML_LANES) {
#pragma GCC unroll 8
            for (int s = 0; s < STREAMS; ++s) {
                int_lanes words;
                memcpy(&words, p + 4 * (j + s * WORDS), sizeof words);
                sum[s] += words;
            }
        }
    }
#pragma GCC unroll 8
    for (int s = 1; s < STREAMS; ++s) sum[0] += sum[s];
    uint32_t total = 0;
    for (int lane = 0; lane < RML_LANES; ++lane) total += (uint32_t)sum[0][lane];
    for (; i < n; ++i) {
        uint32_t word;
        memcpy(&word, p + 4 * i, sizeof word);
        total += word;
    }
    return total;
}

/* ---- small integers ---- */

/* What a product of inputs rounded to 16 bits needs: two of bytes, or one of 16-bit integers.
 *
 * Sums are of their own element type, so that gcc adds to them in place. */
#if defined(__AVX512VNNI__)
enum { RML_INT8X2_PRODUCTS = 2 };
typedef int8_t rml_codes __attribute__((vector_size(64)));
typedef int32_t rml_code_sums __attribute__((vector_size(64)));
RML_INLINE rml_code_sums rml_add_products(rml_code_sums sums, rml_codes a, rml_codes b) {
    return (rml_code_sums)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)a, (__m512i)b);
}
#elif defined(__ARM_FEATURE_DOTPROD)
enum { RML_INT8X2_PRODUCTS = 2 };
typedef int8x16_t rml_codes;
typedef int32x4_t rml_code_sums;
RML_INLINE rml_code_sums rml_add_products(rml_code_sums sums, rml_codes a, rml_codes b) {
    return vdotq_s32(sums, a, b);
}
#elif defined(__aarch64__)
enum { RML_INT8X2_PRODUCTS = 1 };
typedef int16x8_t rml_codes;
typedef int32x4_t rml_code_sums;
RML_INLINE rml_code_sums rml_add_products(rml_code_sums sums, rml_codes a, rml_codes b) {
    return vmlal_high_s16(vmlal_s16(sums, vget_low_s16(a), vget_low_s16(b)), a, b);
}
#else
enum { RML_INT8X2_PRODUCTS = 1 };
typedef int16_t rml_codes __attribute__((vector_size(4 * RML_LANES)));
typedef int_lanes rml_code_sums;
RML_INLINE rml_code_sums rml_add_products(rml_code_sums sums, rml_codes a, rml_codes b) {
#if defined(__AVX2__)
    return sums + (rml_code_sums)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__x86_64__)
    return sums + (rml_code_sums)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
    for (int i = 0; i < RML_LANES; ++i) sums[i] += a[2 * i] * b[2 * i] + a[2 * i + 1] * b[2 * i + 1];
    return sums;
#endif
}
#endif

/* Products of one and one, added up: how many there were in `rounds` rounds of all chains. */
static int64_t rml_multiply_int8(int64_t rounds) {
    rml_codes a = 1 - (rml_codes){0}, b = a;
    RML_OPAQUE(b);
    int64_t total = 0;
    while (rounds > 0) {
        const int64_t now = rounds < RML_ROUNDS ? rounds : RML_ROUNDS;
#define BEGIN(c) rml_code_sums sum##c = {0};
#define MULTIPLY(c) RML_OPAQUE(a); RML_OPAQUE(sum##c); sum##c = rml_add_products(sum##c, a, b);
#define END(c) sum += sum##c;
        RML_EACH_CHAIN(BEGIN)
        for (int64_t i = 0; i < now; ++i) { RML_EACH_CHAIN(MULTIPLY) }
        rml_code_sums sum = {0};
        RML_EACH_CHAIN(END)
#undef BEGIN
#undef MULTIPLY
#undef END
        for (int i = 0; i < (int)(sizeof sum / sizeof sum[0]); ++i) total += sum[i];
        rounds -= now;
    }
    return total;
}

/* ---- float32 ---- */

/* Products of one and one, added up: how many there were in `rounds` rounds of all chains. */
static int64_t rml_multiply_f32(int64_t rounds) {
    lanes a = splat_lanes(1.0f), b = a;
    RML_OPAQUE(b);
    int64_t total = 0;
    while (rounds > 0) {
        const int64_t now = rounds < RML_ROUNDS ? rounds : RML_ROUNDS;
#define BEGIN(c) lanes sum##c = {0};
#define MULTIPLY(c) RML_OPAQUE(a); RML_OPAQUE(sum##c); sum##c = fma_lanes(a, b, sum##c);
#define END(c) sum += sum##c;
        RML_EACH_CHAIN(BEGIN)
        for (int64_t i = 0; i < now; ++i) { RML_EACH_CHAIN(MULTIPLY) }
        lanes sum = {0};
        RML_EACH_CHAIN(END)
#undef BEGIN
#undef MULTIPLY
#undef END
        for (int i = 0; i < RML_LANES; ++i) total += (int64_t)sum[i];
        rounds -= now;
    }
    return total;
}

#endif
