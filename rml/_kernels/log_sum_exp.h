/* The largest of n values, and the logarithm of the sum of their exponentials beside it. */
#ifndef RML_LOG_SUM_EXP_H
#define RML_LOG_SUM_EXP_H

#include "vec.h"

typedef double f64x8 __attribute__((vector_size(64)));
typedef int64_t i64x8 __attribute__((vector_size(64)));
typedef float f32x8 __attribute__((vector_size(32)));

RML_INLINE f64x8 splat8(double x) { return x - (f64x8){0}; }

/* e^x within 2 units in the last place for -708 < x <= 0; zero below; NaN stays.
 *
 * As exp_lanes in lanes.h; the polynomial of degree 13 leaves a remainder below 5e-18.
 */
RML_INLINE f64x8 exp8(f64x8 x) {
    static const double inverse[] = {
        1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880,
        1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1.0, 1.0};
    const f64x8 round = splat8(6755399441055744.0); /* 1.5 * 2^52: adding it rounds to an integer */
    const i64x8 small = x < -708.0;
    x = (f64x8)((small & (i64x8)splat8(-708.0)) | (~small & (i64x8)x));
    const f64x8 shifted = x * 1.4426950408889634 + round, n = shifted - round;
    f64x8 r = x - n * 0.693147180369123816490; /* its last 32 bits are zero: the product is exact */
    r = r - n * 1.90821492927058770002e-10;
    f64x8 p = splat8(inverse[0]);
    for (int i = 1; i < 14; ++i) p = p * r + inverse[i];
    const i64x8 power = ((i64x8)shifted - (i64x8)round + 1023) << 52;
    return (f64x8)(~small & (i64x8)(p * (f64x8)power));
}

/* The first n <= 8 values, minus infinity behind them. */
RML_INLINE f64x8 load_wide(const float *p, ptrdiff_t n) {
    f32x8 v = (f32x8){0} - INFINITY;
    memcpy(&v, p, (size_t)n * sizeof *p);
    return __builtin_convertvector(v, f64x8);
}

/* The largest value; NaN if there is one. */
RML_INLINE float largest_or_nan(const float *values, ptrdiff_t n) {
    f32x16 lanes = splat16(-INFINITY);
    i32x16 nan = {0};
    ptrdiff_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const f32x16 v = load16(values + i);
        nan |= v != v;
        lanes = select16(v > lanes, v, lanes);
    }
    float largest = -INFINITY;
    for (int j = 0; j < 16; ++j) {
        if (nan[j]) return NAN;
        if (lanes[j] > largest) largest = lanes[j];
    }
    for (; i < n; ++i) {
        if (values[i] != values[i]) return NAN;
        if (values[i] > largest) largest = values[i];
    }
    return largest;
}

static void rml_log_sum_exp(const float *values, ptrdiff_t n, double *out) {
    const double largest = (double)largest_or_nan(values, n);
    f64x8 sum = {0};
    ptrdiff_t i = 0;
    for (; i + 8 <= n; i += 8) sum += exp8(load_wide(values + i, 8) - largest);
    if (i < n) sum += exp8(load_wide(values + i, n - i) - largest);
    out[0] = largest;
    out[1] = log(((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7])));
}

#endif
