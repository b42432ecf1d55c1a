/* Rotary position embedding. Nothing is fused: the bits are those of the definition. */
#ifndef RML_ROPE_H
#define RML_ROPE_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>

static void rml_angles(int64_t position, const double *inv_freq, double factor, ptrdiff_t n,
                       float *cosines, float *sines) {
    for (ptrdiff_t i = 0; i < n; ++i) {
        const double angle = (double)position * inv_freq[i];
        cosines[i] = (float)(cos(angle) * factor);
        sines[i] = (float)(sin(angle) * factor);
    }
}

/* Pairs (x[i * step], x[i * step + distance]). */
static inline __attribute__((always_inline)) void rml_rotate_pairs(
    const float *restrict cosines, const float *restrict sines, float *restrict x, ptrdiff_t n,
    ptrdiff_t step, ptrdiff_t distance) {
    for (ptrdiff_t i = 0; i < n; ++i) {
        const float a = x[i * step], b = x[i * step + distance];
        x[i * step] = a * cosines[i] - b * sines[i];
        x[i * step + distance] = b * cosines[i] + a * sines[i];
    }
}

static void rml_rotate(const float *cosines, const float *sines, float *x, ptrdiff_t n,
                       int interleaved) {
    if (interleaved)
        rml_rotate_pairs(cosines, sines, x, n, 2, 1);
    else
        rml_rotate_pairs(cosines, sines, x, n, 1, n);
}

#endif
