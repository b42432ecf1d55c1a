/* Products of quantized weights with quantized inputs, for every level: row by row.
 *
 * A row is unpacked once into codes, scales and minima and meets all tokens. The dot product of a
 * unit is an exact integer, so only the float additions have an order: unit by unit, the scaled dot
 * product first, then the minimum (see product_py). product_avx512.h does the same sums for many
 * rows at a time.
 */
#ifndef RML_PRODUCT_INT8_H
#define RML_PRODUCT_INT8_H

#include "product_f32.h"
#include "quantize.h"

/* Sums of (code - bias) * x over the halves of a unit. */
RML_INLINE void dot_halves(const uint8_t *code, int bias, const int8_t *x, int32_t *dot) {
#if defined(__AVX2__)
    /* |code - bias| as unsigned and x with the sign of it: pairs stay below 2 * 128 * 127 < 2^15. */
    const __m256i w = _mm256_sub_epi8(_mm256_loadu_si256((const __m256i *)code), _mm256_set1_epi8((char)bias));
    const __m256i v = _mm256_loadu_si256((const __m256i *)x);
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(v, w));
    __m256i s = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    s = _mm256_add_epi32(s, _mm256_shuffle_epi32(s, 0x4e));
    s = _mm256_add_epi32(s, _mm256_shuffle_epi32(s, 0xb1));
    dot[0] = _mm_cvtsi128_si32(_mm256_castsi256_si128(s));
    dot[1] = _mm_cvtsi128_si32(_mm256_extracti128_si256(s, 1));
#else
    for (int half = 0; half < 2; ++half) {
        int32_t sum = 0;
        for (int i = 16 * half; i < 16 * half + 16; ++i)
            sum += (int16_t)((int16_t)code[i] - bias) * (int16_t)x[i];
        dot[half] = sum;
    }
#endif
}

/* Scratch bytes for `int8_rows_each`: codes, scales and minima of one row. */
RML_INLINE ptrdiff_t int8_scratch(ptrdiff_t k) { return k + 4 * (k / RML_UNIT) * (ptrdiff_t)sizeof(float) + 64; }

RML_INLINE float int8_dot(const uint8_t *code, const float *d, const float *m, int bias, int has_min, int n_scales,
                          const rml_inputs *in, ptrdiff_t t) {
    const ptrdiff_t units = in->k / RML_UNIT;
    float y[2] = {0, 0};
    for (int c = 0; c < in->columns; ++c) {
        const ptrdiff_t row = t * in->columns + c;
        const int8_t *x = in->codes + row * in->k;
        const float *scale = in->scales + row * units, *total = in->totals + row * units;
        const int32_t *sums = in->sums + 2 * row * units;
        const int min_here = has_min && c == 0;
        float acc = 0;
        for (ptrdiff_t u = 0; u < units; ++u) {
            int32_t dot[2];
            dot_halves(code + u * RML_UNIT, bias, x + u * RML_UNIT, dot);
            if (n_scales == 1) {
                acc = fma1((float)(dot[0] + dot[1]), d[2 * u] * scale[u], acc);
                if (min_here) acc = fma1(m[2 * u], total[u], acc);
                continue;
            }
            for (int half = 0; half < 2; ++half) {
                acc = fma1((float)dot[half], d[2 * u + half] * scale[u], acc);
                if (min_here)
                    acc = fma1(m[2 * u + half], rml_half_total(scale, sums, units, in->columns, u, half), acc);
            }
        }
        y[c] = acc;
    }
    return in->columns == 1 ? y[0] : y[0] + y[1];
}

/* `n` rows from `row` on, with tokens [t0, t1), into strip (t1 - t0, 32). */
static void int8_rows_each(const rml_matrix *w, ptrdiff_t row, int n, const rml_inputs *in,
                           ptrdiff_t t0, ptrdiff_t t1, float *strip, void *scratch) {
    const ptrdiff_t units = w->cols / RML_UNIT;
    float *d = scratch, *m = d + 2 * units;
    uint8_t *code = (uint8_t *)(m + 2 * units);
    const rml_kind kind = rml_kind_of(w->type);
    for (int r = 0; r < n; ++r) {
        rml_unpack(w->data + (row + r) * w->row_bytes, w->type, 0, units, code, d, m);
        for (ptrdiff_t t = t0; t < t1; ++t) {
            float *y = strip + (t - t0) * RML_ROWS + r;
            if (kind.n_scales == 1)
                *y = kind.has_min ? int8_dot(code, d, m, 0, 1, 1, in, t) : int8_dot(code, d, m, kind.bias, 0, 1, in, t);
            else
                *y = kind.has_min ? int8_dot(code, d, m, 0, 1, 2, in, t) : int8_dot(code, d, m, kind.bias, 0, 2, in, t);
        }
    }
}

#endif
