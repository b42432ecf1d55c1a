/* Inputs of a product, rounded to 8-bit codes (see product_py.quantize_inputs).
 *
 * Codes and scales are equal to the definition's bit for bit at every level: only multiplications,
 * subtractions, divisions and comparisons, none fused.
 */
#ifndef RML_QUANTIZE_H
#define RML_QUANTIZE_H

#include <float.h>

#include "formats.h"

typedef struct {
    const float *x;     /* (T, K) */
    ptrdiff_t n_tokens, k;
    int columns;        /* 1: int8, 2: int8x2, 0: not quantized */
    /* columns > 0; U = K / 32 units */
    int8_t *codes;      /* (T, columns, K) */
    float *scales;      /* (T, columns, U) */
    int32_t *sums;      /* (T, columns, U, 2) sums of the codes of each half of a unit */
    float *totals;      /* (T, columns, U) first column: scale * sum over all columns, others: 0 */
} rml_inputs;

RML_INLINE int32_t max_bits16(i32x16 a) {
    int32_t best = 0;
#if defined(__AVX512F__)
    best = _mm512_reduce_max_epi32((__m512i)a);
#else
    for (int i = 0; i < 16; ++i) best = a[i] > best ? a[i] : best;
#endif
    return best;
}

RML_INLINE int32_t sum_i16(i32x16 a) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_epi32((__m512i)a);
#else
    int32_t sum = 0;
    for (int i = 0; i < 16; ++i) sum += a[i];
    return sum;
#endif
}

RML_INLINE f32x16 rml_quantize16(f32x16 x, f32x16 inverse, int8_t *code, int32_t *sum) {
    const f32x16 round = splat16(12582912.0f); /* 1.5 * 2^23: adding it rounds half to even */
    const f32x16 q = (x * inverse + round) - round;
    const i32x16 whole = __builtin_convertvector(q, i32x16);
    typedef int8_t i8x16 __attribute__((vector_size(16)));
    const i8x16 bytes = __builtin_convertvector(whole, i8x16);
    memcpy(code, &bytes, sizeof bytes);
    *sum = sum_i16(whole);
    return q;
}

#if defined(__AVX512VNNI__)

/* Lane i of the result is the largest lane of v[i]. */
RML_INLINE __m512i max_of_each(const __m512i *v) {
    __m512i t[8], u[4];
    for (int i = 0; i < 8; ++i)
        t[i] = _mm512_max_epi32(_mm512_unpacklo_epi32(v[2 * i], v[2 * i + 1]), _mm512_unpackhi_epi32(v[2 * i], v[2 * i + 1]));
    for (int i = 0; i < 4; ++i)
        u[i] = _mm512_max_epi32(_mm512_unpacklo_epi64(t[2 * i], t[2 * i + 1]), _mm512_unpackhi_epi64(t[2 * i], t[2 * i + 1]));
    for (int i = 0; i < 2; ++i)
        t[i] = _mm512_max_epi32(_mm512_shuffle_i32x4(u[2 * i], u[2 * i + 1], 0x88), _mm512_shuffle_i32x4(u[2 * i], u[2 * i + 1], 0xdd));
    return _mm512_max_epi32(_mm512_shuffle_i32x4(t[0], t[1], 0x88), _mm512_shuffle_i32x4(t[0], t[1], 0xdd));
}

/* Sums of the halves of eight units of codes, in order. */
RML_INLINE __m512i half_sums(const int8_t *codes) {
    __m512i v[4];
    for (int i = 0; i < 4; ++i)
        v[i] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), _mm512_loadu_si512(codes + 64 * i));
    const __m512i a = _mm512_add_epi32(_mm512_unpacklo_epi32(v[0], v[1]), _mm512_unpackhi_epi32(v[0], v[1]));
    const __m512i b = _mm512_add_epi32(_mm512_unpacklo_epi32(v[2], v[3]), _mm512_unpackhi_epi32(v[2], v[3]));
    const __m512i c = _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
    /* Half k of vector j is lane 4k + j. */
    return _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), c);
}

/* Sixteen units at a time: what is one number for a unit is one vector for all of them. */
static void rml_quantize_row(const rml_inputs *in, ptrdiff_t t) {
    const ptrdiff_t units = in->k / RML_UNIT;
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    for (ptrdiff_t u0 = 0; u0 < units; u0 += 16) {
        const int n = units - u0 < 16 ? (int)(units - u0) : 16;
        const __mmask16 lanes = (__mmask16)((1u << n) - 1);
        const float *x = in->x + t * in->k + u0 * RML_UNIT;
        float rest[16 * RML_UNIT];
        _Alignas(64) int8_t codes[16 * RML_UNIT] = {0};
        __m512 total = _mm512_setzero_ps();
        for (int c = 0; c < in->columns; ++c) {
            const ptrdiff_t at = (t * in->columns + c) * units + u0;
            const float *from = c == 0 ? x : rest;
            __m512i largest[16];
            for (int i = 0; i < 16; ++i) {
                if (i >= n) {
                    largest[i] = _mm512_setzero_si512();
                    continue;
                }
                const __m512i a = _mm512_and_si512(_mm512_loadu_si512(from + i * RML_UNIT), magnitude);
                const __m512i b = _mm512_and_si512(_mm512_loadu_si512(from + i * RML_UNIT + 16), magnitude);
                largest[i] = _mm512_max_epi32(a, b);
            }
            const __m512 scale = _mm512_div_ps(_mm512_castsi512_ps(max_of_each(largest)), _mm512_set1_ps(127.0f));
            const __mmask16 usable = _mm512_cmp_ps_mask(scale, _mm512_set1_ps(FLT_MIN), _CMP_GE_OQ);
            const __m512 inverse = _mm512_maskz_div_ps(usable, _mm512_set1_ps(1.0f), scale);
            _Alignas(64) float scales[16], inverses[16];
            _mm512_store_ps(scales, scale);
            _mm512_store_ps(inverses, inverse);
            _mm512_mask_storeu_ps(in->scales + at, lanes, scale);
            for (int i = 0; i < 2 * n; ++i) {
                const __m512 v = _mm512_loadu_ps(from + 16 * i);
                const __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(v, _mm512_set1_ps(inverses[i / 2])));
                _mm_store_si128((__m128i *)(codes + 16 * i), _mm512_cvtepi32_epi8(q));
                const __m512 back = _mm512_mul_ps(_mm512_set1_ps(scales[i / 2]), _mm512_cvtepi32_ps(q));
                if (c + 1 < in->columns) _mm512_storeu_ps(rest + 16 * i, _mm512_sub_ps(v, back));
            }
            memcpy(in->codes + (t * in->columns + c) * in->k + u0 * RML_UNIT, codes, (size_t)n * RML_UNIT);
            const __m512i first = half_sums(codes), second = half_sums(codes + 8 * RML_UNIT);
            const __mmask32 both = (__mmask32)(n == 16 ? ~0u : (1u << 2 * n) - 1);
            _mm512_mask_storeu_epi32(in->sums + 2 * at, (__mmask16)both, first);
            _mm512_mask_storeu_epi32(in->sums + 2 * at + 16, (__mmask16)(both >> 16), second);
            const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
            const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
            const __m512i sum = _mm512_add_epi32(_mm512_permutex2var_epi32(first, even, second), _mm512_permutex2var_epi32(first, odd, second));
            const __m512 part = _mm512_mul_ps(scale, _mm512_cvtepi32_ps(sum));
            total = c == 0 ? part : _mm512_add_ps(total, part);
            _mm512_mask_storeu_ps(in->totals + at, lanes, _mm512_setzero_ps());
        }
        _mm512_mask_storeu_ps(in->totals + t * in->columns * units + u0, lanes, total);
    }
}

#else

static void rml_quantize_row(const rml_inputs *in, ptrdiff_t t) {
    const ptrdiff_t units = in->k / RML_UNIT;
    const i32x16 magnitude = (i32x16){0} + 0x7fffffff;
    for (ptrdiff_t u = 0; u < units; ++u) {
        const float *x = in->x + t * in->k + u * RML_UNIT;
        f32x16 a = load16(x), b = load16(x + 16);
        float total = 0;
        for (int c = 0; c < in->columns; ++c) {
            const ptrdiff_t row = t * in->columns + c;
            /* The bits of |x| order like the numbers, with infinity and NaN above all. */
            i32x16 ma = (i32x16)a & magnitude, mb = (i32x16)b & magnitude;
            ma = (i32x16)select16(ma > mb, (f32x16)ma, (f32x16)mb);
            const int32_t bits = max_bits16(ma);
            float largest;
            memcpy(&largest, &bits, sizeof bits);
            const float scale = largest / 127.0f;
            const float inverse = scale >= FLT_MIN ? 1.0f / scale : 0.0f;
            int32_t *sums = in->sums + 2 * (row * units + u);
            int8_t *code = in->codes + row * in->k + u * RML_UNIT;
            const f32x16 qa = rml_quantize16(a, splat16(inverse), code, sums);
            const f32x16 qb = rml_quantize16(b, splat16(inverse), code + 16, sums + 1);
            a = a - splat16(scale) * qa;
            b = b - splat16(scale) * qb;
            in->scales[row * units + u] = scale;
            const float part = scale * (float)(sums[0] + sums[1]);
            total = c == 0 ? part : total + part;
            in->totals[row * units + u] = 0;
        }
        in->totals[t * in->columns * units + u] = total;
    }
}

#endif

/* Total of half a unit over all columns of a token, for minima that belong to a half; scales and
 * sums are those of the token's first column. */
RML_INLINE float rml_half_total(const float *scales, const int32_t *sums, ptrdiff_t units, int columns,
                                ptrdiff_t u, int half) {
    const float total = scales[u] * (float)sums[2 * u + half];
    if (columns == 1) return total;
    return total + scales[units + u] * (float)sums[2 * (units + u) + half];
}

#endif
