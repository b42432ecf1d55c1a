/* Storing one head's key and value of one position in a page. */
#ifndef RML_KV_STORE_H
#define RML_KV_STORE_H

#include "half.h"

/* Numbers of one head, stored `step` apart. */
static void rml_store_f32(const float *x, ptrdiff_t d, float *to, ptrdiff_t step) {
    for (ptrdiff_t i = 0; i < d; ++i) to[i * step] = x[i];
}

static void rml_store_f16(const float *x, ptrdiff_t d, uint16_t *to, ptrdiff_t step) {
    uint16_t h[16];
    ptrdiff_t i = 0;
    for (; i + 16 <= d; i += 16) {
        rml_store_half16(h, load16(x + i));
        for (int j = 0; j < 16; ++j) to[(i + j) * step] = h[j];
    }
    for (; i < d; ++i) to[i * step] = rml_float_to_half(x[i]);
}

static void rml_store_int8(const float *x, ptrdiff_t d, int8_t *to, float *scales, ptrdiff_t step,
                           ptrdiff_t group) {
    for (ptrdiff_t first = 0; first < d; first += group, scales += step) {
        /* As integers, the magnitudes of floats have the order of the floats, NaN above all. */
        uint32_t largest = 0;
        for (ptrdiff_t i = first; i < first + group; ++i) {
            uint32_t bits;
            memcpy(&bits, x + i, sizeof bits);
            bits &= 0x7fffffff;
            largest = bits > largest ? bits : largest;
        }
        float scale;
        memcpy(&scale, &largest, sizeof scale);
        scale /= 127.0f;
        const int usable = scale > 0 && scale < INFINITY;
        for (ptrdiff_t i = first; i < first + group; ++i) {
            const float code = usable ? rintf(x[i] / scale) : 0;
            to[i * step] = (int8_t)(code > 127 ? 127 : code < -127 ? -127 : code);
        }
        *scales = scale;
    }
}

#endif
