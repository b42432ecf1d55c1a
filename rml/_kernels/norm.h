/* RMSNorm of one row. */
#ifndef RML_NORM_H
#define RML_NORM_H

#include "vec.h"

static void rml_rms_norm_row(const float *x, const float *weight, float *out, ptrdiff_t n, float eps) {
    f32x16 sum = {0};
    ptrdiff_t i = 0;
    for (; i + 16 <= n; i += 16) {
        f32x16 v = load16(x + i);
        sum = fma16(v, v, sum);
    }
    if (i < n) {
        f32x16 v = load_part(x + i, n - i);
        sum = fma16(v, v, sum);
    }
    const float scale = 1.0f / sqrtf(sum16(sum) / (float)n + eps);
    for (i = 0; i < n; ++i) out[i] = x[i] * scale * weight[i];
}

#endif
