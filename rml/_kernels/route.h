/* The experts of one token (see route_py). */
#ifndef RML_ROUTE_H
#define RML_ROUTE_H

#include "lanes.h"

/* Whether expert e with score a is chosen before expert f with score b; NaN comes last. */
RML_INLINE int ranks_before(float a, ptrdiff_t e, float b, ptrdiff_t f) {
    if (isnan(a) || isnan(b)) return isnan(a) && isnan(b) ? e < f : isnan(b);
    return a > b || (a == b && e < f);
}

/* Sum of e^(score - largest) in sixteen lanes; largest is the score of the first choice. */
static float rml_exp_sum(const float *scores, ptrdiff_t n, float largest) {
    lanes sum[RML_PARTS] = {0};
    for (ptrdiff_t i = 0; i < n; i += 16) {
        float some[16];
        for (int j = 0; j < 16; ++j) some[j] = i + j < n ? scores[i + j] : -INFINITY;
        for (int p = 0; p < RML_PARTS; ++p)
            sum[p] += exp_normal_lanes(load_lanes(some + p * RML_LANES) - splat_lanes(largest));
    }
    return sum_parts(sum);
}

/* Each choice is the best of the experts that rank behind the choice before, so nothing has to be
 * marked and the number of experts has no limit. */
static void rml_route_row(const float *scores, ptrdiff_t n, ptrdiff_t k, int normalize, int32_t *ids,
                          float *weights) {
    for (ptrdiff_t j = 0; j < k; ++j) {
        ptrdiff_t best = -1;
        for (ptrdiff_t e = 0; e < n; ++e)
            if ((j == 0 || ranks_before(scores[ids[j - 1]], ids[j - 1], scores[e], e)) &&
                (best < 0 || ranks_before(scores[e], e, scores[best], best)))
                best = e;
        ids[j] = (int32_t)best;
    }
    const float largest = scores[ids[0]], sum = rml_exp_sum(scores, n, largest);
    float total = 0;
    for (ptrdiff_t j = 0; j < k; ++j) {
        weights[j] = exp_normal_lanes(splat_lanes(scores[ids[j]] - largest))[0] / sum;
        total += weights[j];
    }
    if (normalize)
        for (ptrdiff_t j = 0; j < k; ++j) weights[j] /= total;
}

#endif
