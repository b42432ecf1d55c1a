/* One unit of the formats with blocks of 256 values, but for those with grids (see unpack_k.py). */
#ifndef RML_UNPACK_K_H
#define RML_UNPACK_K_H

#include "formats.h"

RML_INLINE void unpack_Q2_K(const uint8_t *row, ptrdiff_t unit, uint8_t *code, float *d, float *m) {
    const uint8_t *b = row + unit / 8 * BYTES_Q2_K;
    const int j = (int)(unit % 8);
    const float scale = load_half(b + 80), min = load_half(b + 82);
    for (int i = 0; i < 2; ++i) {
        d[i] = scale * (float)(b[2 * j + i] & 15);
        m[i] = -(min * (float)(b[2 * j + i] >> 4));
    }
    pairs(b + 16 + j / 4 * 32, 2 * (j % 4), code);
}

RML_INLINE void unpack_Q3_K(const uint8_t *row, ptrdiff_t unit, uint8_t *code, float *d, float *m) {
    const uint8_t *b = row + unit / 8 * BYTES_Q3_K, *s = b + 96;
    const int j = (int)(unit % 8);
    const float scale = load_half(b + 108);
    for (int i = 0; i < 2; ++i) {
        const int k = 2 * j + i, low = j < 4 ? s[k] & 15 : s[k - 8] >> 4;
        const int upper = s[8 + k % 4] >> 2 * (k / 4) & 3;
        d[i] = scale * (float)((low | upper << 4) - 32);
        m[i] = 0;
    }
    pairs(b + 32 + j / 4 * 32, 2 * (j % 4), code);
    add_bits_of_bytes(b, j, 4, code);
}

/* Scale and minimum of unit j in the twelve bytes of Q4_K and Q5_K: eight of six bits each. */
RML_INLINE void scale_min_k(const uint8_t *p, int j, int *scale, int *min) {
    if (j < 4) {
        *scale = p[j] & 63;
        *min = p[j + 4] & 63;
    } else {
        *scale = (p[j + 4] & 15) | (p[j - 4] >> 6) << 4;
        *min = p[j + 4] >> 4 | (p[j] >> 6) << 4;
    }
}

/* Scale, minimum and low nibbles of unit j of Q4_K and Q5_K, whose nibbles begin at `q`. */
RML_INLINE void unpack_45_k(const uint8_t *b, const uint8_t *q, int j, uint8_t *code, float *d, float *m) {
    int scale, min;
    scale_min_k(b + 4, j, &scale, &min);
    *d = load_half(b) * (float)scale;
    *m = -(load_half(b + 2) * (float)min);
    q += j / 2 * 32; /* two units share 32 bytes: low and high nibbles */
    for (int i = 0; i < RML_UNIT; i += 16)
        store_bytes(code + i, shift_bytes(load_bytes(q + i), j % 2 * 4) & 15);
}

RML_INLINE void unpack_Q4_K(const uint8_t *row, ptrdiff_t unit, uint8_t *code, float *d, float *m) {
    const uint8_t *b = row + unit / 8 * BYTES_Q4_K;
    unpack_45_k(b, b + 16, (int)(unit % 8), code, d, m);
}

RML_INLINE void unpack_Q5_K(const uint8_t *row, ptrdiff_t unit, uint8_t *code, float *d, float *m) {
    const uint8_t *b = row + unit / 8 * BYTES_Q5_K;
    unpack_45_k(b, b + 48, (int)(unit % 8), code, d, m);
    add_bits_of_bytes(b + 16, (int)(unit % 8), 16, code);
}

RML_INLINE void unpack_Q6_K(const uint8_t *row, ptrdiff_t unit, uint8_t *code, float *d, float *m) {
    const uint8_t *b = row + unit / 8 * BYTES_Q6_K;
    const int j = (int)(unit % 8), half = j / 4, part = j % 4;
    const uint8_t *low = b + half * 64 + part % 2 * 32, *high = b + 128 + half * 32;
    const float scale = load_half(b + 208);
    for (int i = 0; i < 2; ++i) {
        d[i] = scale * (float)(int8_t)b[192 + 2 * j + i];
        m[i] = 0;
    }
    pairs(high, 2 * part, code);
    for (int i = 0; i < RML_UNIT; i += 16)
        store_bytes(code + i, (shift_bytes(load_bytes(low + i), part / 2 * 4) & 15) | load_bytes(code + i) << 4);
}

RML_INLINE void unpack_IQ4_XS(const uint8_t *row, ptrdiff_t unit, uint8_t *code, float *d, float *m) {
    const uint8_t *b = row + unit / 8 * BYTES_IQ4_XS;
    const int j = (int)(unit % 8), upper = (b[2] | b[3] << 8) >> 2 * j & 3;
    *d = load_half(b) * (float)(((b[4 + j / 2] >> j % 2 * 4 & 15) | upper << 4) - 32);
    *m = 0;
    nibbles_in_table(b + 8 + 16 * j, rml_tables.nonlinear, code);
}

/* The whole part of 3 x / 256: a digit in base 3 of numbers written as fractions of 256. */
RML_INLINE u8x16 trits(u8x16 x) { return -(u8x16)(x >= 86) - (u8x16)(x >= 171); }

RML_INLINE void unpack_TQ1_0(const uint8_t *row, ptrdiff_t unit, uint8_t *code, float *d, float *m) {
    static const uint8_t power[5] = {1, 3, 9, 27, 81};
    const uint8_t *b = row + unit / 8 * BYTES_TQ1_0;
    const int j = (int)(unit % 8);
    *d = load_half(b + 52);
    *m = 0;
    for (int half = 0; half < 2; ++half) {
        u8x16 v;
        if (j < 5) /* 32 bytes, five digits */
            v = load_bytes(b + 16 * half) * power[j];
        else if (j < 7 || half == 0) /* 16 bytes, five digits */
            v = load_bytes(b + 32) * power[2 * (j - 5) + half];
        else { /* 4 bytes, four digits */
            const uint32_t four = load_u32(b + 48);
            const u8x16 powers = {1, 1, 1, 1, 3, 3, 3, 3, 9, 9, 9, 9, 27, 27, 27, 27};
            typedef uint32_t u32x4 __attribute__((vector_size(16)));
            v = (u8x16)(u32x4){four, four, four, four} * powers;
        }
        store_bytes(code + 16 * half, trits(v));
    }
}

RML_INLINE void unpack_TQ2_0(const uint8_t *row, ptrdiff_t unit, uint8_t *code, float *d, float *m) {
    const uint8_t *b = row + unit / 8 * BYTES_TQ2_0;
    const int j = (int)(unit % 8);
    *d = load_half(b + 64);
    *m = 0;
    pairs(b + j / 4 * 32, 2 * (j % 4), code);
}

#endif
