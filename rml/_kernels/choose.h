/* A draw from sorted candidates (see choose_py). */
#ifndef RML_CHOOSE_H
#define RML_CHOOSE_H

#include "lanes.h"

/* `weights` holds k + 16 values. A `top_p` above 1 and a `log_min_p` of minus infinity keep all. */
static ptrdiff_t rml_choose(const float *logits, ptrdiff_t k, float temperature, double top_p,
                            float log_min_p, double chance, float *weights) {
    /* Out of float32's range differences count. */
    const float shift = isfinite(logits[0] / temperature) ? 0.0f : logits[0];
    const float top = (logits[0] - shift) / temperature;
    double total = 0.0;
    for (ptrdiff_t i = 0; i < k; i += RML_LANES) {
        lanes v = {0};
        memcpy(&v, logits + i, (size_t)(k - i < RML_LANES ? k - i : RML_LANES) * sizeof *logits);
        store_lanes(weights + i, exp_normal_lanes((v - shift) / temperature - top));
    }
    for (ptrdiff_t i = 0; i < k; ++i) total += (double)weights[i];
    const double enough = top_p * total;
    const float least = top + log_min_p;
    double sum = 0.0;
    ptrdiff_t n = 0;
    for (; n < k; ++n) { /* the first one is always kept */
        if (n > 0 && (sum >= enough || (logits[n] - shift) / temperature < least)) break;
        sum += (double)weights[n];
    }
    const double goal = chance * sum;
    double reached = 0.0;
    ptrdiff_t last = 0; /* that added anything */
    for (ptrdiff_t i = 0; i < n; ++i) {
        const double before = reached;
        reached += (double)weights[i];
        if (reached > before) last = i;
        if (reached > goal) return i;
    }
    return last;
}

#endif
