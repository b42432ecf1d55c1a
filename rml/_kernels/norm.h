/* RMSNorm of one row. */
#ifndef RML_NORM_H
#define RML_NORM_H

#include "lanes.h"

static void rml_rms_norm_row(const float *x, const float *weight, float *out, ptrdiff_t n, float eps) {
    lanes sum[RML_PARTS] = {0};
    ptrdiff_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int p = 0; p < RML_PARTS; ++p) {
            const lanes v = load_lanes(x + i + p * RML_LANES);
            sum[p] = fma_lanes(v, v, sum[p]);
        }
    if (i < n) {
        float rest[16] = {0};
        memcpy(rest, x + i, (size_t)(n - i) * sizeof *x);
        for (int p = 0; p < RML_PARTS; ++p) {
            const lanes v = load_lanes(rest + p * RML_LANES);
            sum[p] = fma_lanes(v, v, sum[p]);
        }
    }
    const float scale = 1.0f / sqrtf(sum_parts(sum) / (float)n + eps);
    for (i = 0; i < n; ++i) out[i] = x[i] * scale * weight[i];
}

#endif
