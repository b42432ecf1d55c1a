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

/* Total of half a unit over all columns of a token, for minima that belong to a half; scales and
 * sums are those of the token's first column. */
RML_INLINE float rml_half_total(const float *scales, const int32_t *sums, ptrdiff_t units, int columns,
                                ptrdiff_t u, int half) {
    const float total = scales[u] * (float)sums[2 * u + half];
    if (columns == 1) return total;
    return total + scales[units + u] * (float)sums[2 * (units + u) + half];
}

#endif
