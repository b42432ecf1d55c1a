/* One unit of the formats that name points of a grid (see unpack_grid.py). */
#ifndef RML_UNPACK_GRID_H
#define RML_UNPACK_GRID_H

#include "formats.h"

/* Negate the values of eight codes whose bit is set. The bias is 64, so the opposite of a code c
 * is 128 - c, which is the complement of its seven bits, and one: no byte carries into the next. */
RML_INLINE uint64_t with_signs(uint64_t codes, uint64_t bits) {
    const uint64_t ones = 0x0101010101010101u;
    const uint64_t negative = ((bits * ones & 0x8040201008040201u) + 0x7f * ones) >> 7 & ones;
    return (codes ^ negative * 0x7f) + negative;
}

/* Seven signs, and an eighth such that the number of minus signs is even. */
RML_INLINE uint64_t even_signs(uint32_t bits) {
    bits &= 127;
    return bits | (uint32_t)__builtin_parity(bits) << 7;
}

RML_INLINE void store_point(uint8_t *code, uint64_t point) { memcpy(code, &point, sizeof point); }

RML_INLINE void unpack_IQ2_XXS(const uint8_t *row, ptrdiff_t unit, uint8_t *code, float *d, float *m) {
    const uint8_t *b = row + unit / 8 * BYTES_IQ2_XXS, *q = b + 2 + unit % 8 * 8;
    const uint32_t signs = load_u32(q + 4);
    *d = load_half(b) * (((float)(signs >> 28) + 0.5f) / 4);
    *m = 0;
    for (int i = 0; i < 4; ++i)
        store_point(code + 8 * i, with_signs(rml_tables.iq2_xxs[q[i]], even_signs(signs >> 7 * i)));
}

/* Scales of the halves of unit j: nibbles of byte j at `s`. */
RML_INLINE void half_steps(const uint8_t *b, const uint8_t *s, int j, float *d, float *m) {
    const float scale = load_half(b);
    for (int i = 0; i < 2; ++i) {
        d[i] = scale * (((float)(s[j] >> 4 * i & 15) + 0.5f) / 4);
        m[i] = 0;
    }
}

RML_INLINE void unpack_IQ2_XS(const uint8_t *row, ptrdiff_t unit, uint8_t *code, float *d, float *m) {
    const uint8_t *b = row + unit / 8 * BYTES_IQ2_XS, *q = b + 2 + unit % 8 * 8;
    half_steps(b, b + 66, (int)(unit % 8), d, m);
    for (int i = 0; i < 4; ++i) {
        const uint32_t point = (uint32_t)q[2 * i] | (uint32_t)q[2 * i + 1] << 8;
        store_point(code + 8 * i, with_signs(rml_tables.iq2_xs[point & 511], even_signs(point >> 9)));
    }
}

RML_INLINE void unpack_IQ2_S(const uint8_t *row, ptrdiff_t unit, uint8_t *code, float *d, float *m) {
    const uint8_t *b = row + unit / 8 * BYTES_IQ2_S;
    const int j = (int)(unit % 8);
    half_steps(b, b + 74, j, d, m);
    for (int i = 0; i < 4; ++i) {
        const int point = b[2 + 4 * j + i] | (b[66 + j] >> 2 * i & 3) << 8;
        store_point(code + 8 * i, with_signs(rml_tables.iq2_s[point], b[34 + 4 * j + i]));
    }
}

RML_INLINE void unpack_IQ3_XXS(const uint8_t *row, ptrdiff_t unit, uint8_t *code, float *d, float *m) {
    const uint8_t *b = row + unit / 8 * BYTES_IQ3_XXS, *q = b + 2 + unit % 8 * 8;
    const uint32_t signs = load_u32(b + 66 + unit % 8 * 4);
    *d = load_half(b) * (((float)(signs >> 28) + 0.5f) / 2);
    *m = 0;
    for (int i = 0; i < 4; ++i) {
        const uint64_t two = rml_tables.iq3_xxs[q[2 * i]] | (uint64_t)rml_tables.iq3_xxs[q[2 * i + 1]] << 32;
        store_point(code + 8 * i, with_signs(two, even_signs(signs >> 7 * i)));
    }
}

RML_INLINE void unpack_IQ3_S(const uint8_t *row, ptrdiff_t unit, uint8_t *code, float *d, float *m) {
    const uint8_t *b = row + unit / 8 * BYTES_IQ3_S, *q = b + 2 + unit % 8 * 8;
    const int j = (int)(unit % 8), ninth = b[66 + j];
    *d = load_half(b) * (float)(2 * (b[106 + j / 2] >> j % 2 * 4 & 15) + 1);
    *m = 0;
    for (int i = 0; i < 4; ++i) {
        const int first = q[2 * i] | (ninth >> 2 * i & 1) << 8, second = q[2 * i + 1] | (ninth >> (2 * i + 1) & 1) << 8;
        const uint64_t two = rml_tables.iq3_s[first] | (uint64_t)rml_tables.iq3_s[second] << 32;
        store_point(code + 8 * i, with_signs(two, b[74 + 4 * j + i]));
    }
}

/* Eight codes of the IQ1 formats: 8 times the value, moved up by 1 or `down`, with a bias of 9. */
RML_INLINE uint64_t moved(uint64_t point, int down) { return point + (down ? 0 : 0x0202020202020202u); }

RML_INLINE void unpack_IQ1_S(const uint8_t *row, ptrdiff_t unit, uint8_t *code, float *d, float *m) {
    const uint8_t *b = row + unit / 8 * BYTES_IQ1_S;
    const int j = (int)(unit % 8), more = b[34 + 2 * j] | b[35 + 2 * j] << 8;
    *d = load_half(b) * ((float)(2 * (more >> 12 & 7) + 1) / 8);
    *m = 0;
    for (int i = 0; i < 4; ++i)
        store_point(code + 8 * i, moved(rml_tables.iq1[b[2 + 4 * j + i] | (more >> 3 * i & 7) << 8], more >> 15));
}

/* The scale of an IQ1_M block: the upper four bits of the four 16-bit numbers at `s`. */
RML_INLINE float iq1_m_scale(const uint8_t *s) {
    return rml_half_to_float((uint16_t)(s[1] >> 4 | (s[3] & 0xf0) | (s[5] & 0xf0) << 4 | (s[7] & 0xf0) << 8));
}

RML_INLINE void unpack_IQ1_M(const uint8_t *row, ptrdiff_t unit, uint8_t *code, float *d, float *m) {
    const uint8_t *b = row + unit / 8 * BYTES_IQ1_M, *s = b + 48;
    const int j = (int)(unit % 8), four = s[j / 2 * 2] | s[j / 2 * 2 + 1] << 8;
    const float scale = iq1_m_scale(s);
    for (int i = 0; i < 2; ++i) {
        d[i] = scale * ((float)(2 * (four >> 3 * (2 * (j % 2) + i) & 7) + 1) / 8);
        m[i] = 0;
    }
    for (int i = 0; i < 4; ++i) {
        const int more = b[32 + 2 * j + i / 2] >> i % 2 * 4 & 15;
        store_point(code + 8 * i, moved(rml_tables.iq1[b[4 * j + i] | (more & 7) << 8], more >> 3));
    }
}

#endif
