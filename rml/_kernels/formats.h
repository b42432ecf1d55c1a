/* Weight formats: how the bytes of a row become numbers.
 *
 * RML_QUANTIZED_FORMATS is the one list of quantized formats that the twins know. For each:
 *
 *     X(NAME, id, values in a block, bytes of a block, bias, has a minimum, scales per 32 values)
 *
 * A block is one or more units of 32 values. `unpack_NAME` gives one unit of a row as unsigned
 * codes and one or two scales and minima (two: one for each half of the unit):
 *
 *     value = scale * (code - bias) + minimum
 *
 * dequant_py.py says what the bytes mean. Adding a format is one entry here and its `unpack_NAME`.
 */
#ifndef RML_FORMATS_H
#define RML_FORMATS_H

#include "half.h"
#include "vec.h"

#define RML_QUANTIZED_FORMATS(X)      \
    X(Q4_0, 2, 32, 18, 8, 0, 1)       \
    X(Q4_1, 3, 32, 20, 0, 1, 1)       \
    X(Q5_0, 6, 32, 22, 16, 0, 1)      \
    X(Q5_1, 7, 32, 24, 0, 1, 1)       \
    X(Q8_0, 8, 32, 34, 128, 0, 1)     \
    X(Q4_K, 12, 256, 144, 0, 1, 1)    \
    X(Q6_K, 14, 256, 210, 32, 0, 2)

enum { RML_F32 = 0, RML_F16 = 1, RML_BF16 = 30 };
enum { RML_UNIT = 32 };

#define X(NAME, ID, LENGTH, BYTES, BIAS, HAS_MIN, SCALES) \
    enum {                                                \
        ID_##NAME = ID,                                   \
        UNITS_##NAME = LENGTH / 32, /* of a block */      \
        BYTES_##NAME = BYTES,                             \
        BIAS_##NAME = BIAS,                               \
        HAS_MIN_##NAME = HAS_MIN,                         \
        SCALES_##NAME = SCALES /* of a unit */            \
    };
RML_QUANTIZED_FORMATS(X)
#undef X

typedef struct {
    const uint8_t *data; /* rows one after another */
    ptrdiff_t rows, cols;
    ptrdiff_t row_bytes;
    int type; /* GGUF id */
} rml_matrix;

RML_INLINE float load_half(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return rml_half_to_float(h);
}

RML_INLINE uint32_t load_u32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

typedef uint8_t u8x16 __attribute__((vector_size(16)));

RML_INLINE void nibbles(const uint8_t *p, uint8_t *code) {
    u8x16 v, low, high;
    memcpy(&v, p, sizeof v);
    low = v & 15;
    high = v >> 4;
    memcpy(code, &low, sizeof low);
    memcpy(code + 16, &high, sizeof high);
}

/* Bit i of `bits` becomes bit 4 of code i. */
RML_INLINE void fifth_bits(uint32_t bits, uint8_t *code) {
    const u8x16 bit = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    const u8x16 sixteen = (u8x16){0} + 16;
    for (int half = 0; half < 2; ++half) {
        const uint8_t b0 = (uint8_t)(bits >> (16 * half)), b1 = (uint8_t)(bits >> (16 * half + 8));
        const u8x16 spread = {b0, b0, b0, b0, b0, b0, b0, b0, b1, b1, b1, b1, b1, b1, b1, b1};
        u8x16 v;
        memcpy(&v, code + 16 * half, sizeof v);
        v |= (u8x16)((spread & bit) == bit) & sixteen;
        memcpy(code + 16 * half, &v, sizeof v);
    }
}

RML_INLINE void unpack_Q4_0(const uint8_t *row, ptrdiff_t unit, uint8_t *code, float *d, float *m) {
    const uint8_t *b = row + unit * BYTES_Q4_0;
    *d = load_half(b);
    *m = 0;
    nibbles(b + 2, code);
}

RML_INLINE void unpack_Q4_1(const uint8_t *row, ptrdiff_t unit, uint8_t *code, float *d, float *m) {
    const uint8_t *b = row + unit * BYTES_Q4_1;
    *d = load_half(b);
    *m = load_half(b + 2);
    nibbles(b + 4, code);
}

RML_INLINE void unpack_Q5_0(const uint8_t *row, ptrdiff_t unit, uint8_t *code, float *d, float *m) {
    const uint8_t *b = row + unit * BYTES_Q5_0;
    *d = load_half(b);
    *m = 0;
    nibbles(b + 6, code);
    fifth_bits(load_u32(b + 2), code);
}

RML_INLINE void unpack_Q5_1(const uint8_t *row, ptrdiff_t unit, uint8_t *code, float *d, float *m) {
    const uint8_t *b = row + unit * BYTES_Q5_1;
    *d = load_half(b);
    *m = load_half(b + 2);
    nibbles(b + 8, code);
    fifth_bits(load_u32(b + 4), code);
}

RML_INLINE void unpack_Q8_0(const uint8_t *row, ptrdiff_t unit, uint8_t *code, float *d, float *m) {
    const uint8_t *b = row + unit * BYTES_Q8_0;
    *d = load_half(b);
    *m = 0;
    for (int i = 0; i < 32; ++i) code[i] = b[2 + i] ^ 0x80;
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

RML_INLINE void unpack_Q4_K(const uint8_t *row, ptrdiff_t unit, uint8_t *code, float *d, float *m) {
    const uint8_t *b = row + unit / 8 * BYTES_Q4_K;
    const int j = (int)(unit % 8);
    int scale, min;
    scale_min_k(b + 4, j, &scale, &min);
    *d = load_half(b) * (float)scale;
    *m = -(load_half(b + 2) * (float)min);
    const uint8_t *q = b + 16 + j / 2 * 32; /* two units share 32 bytes: low and high nibbles */
    for (int i = 0; i < 32; ++i) code[i] = j % 2 ? q[i] >> 4 : q[i] & 15;
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
    for (int i = 0; i < 32; ++i) {
        const int four = part < 2 ? low[i] & 15 : low[i] >> 4;
        code[i] = (uint8_t)(four | (high[i] >> 2 * part & 3) << 4);
    }
}

/* Values of one unit, rounded as the definition rounds: multiply, then add. */
RML_INLINE void unit_values(const uint8_t *code, const float *d, const float *m, int bias, int has_min,
                            int scales, float *out) {
    for (int half = 0; half < 2; ++half) {
        u8x16 c;
        memcpy(&c, code + 16 * half, sizeof c);
        const int s = scales == 2 ? half : 0;
        const f32x16 v = __builtin_convertvector(__builtin_convertvector(c, i32x16) - bias, f32x16) * d[s];
        store16(out + 16 * half, has_min ? v + m[s] : v);
    }
}

/* Expand `n` values of a row from its start; a whole number of blocks. */
static void rml_expand(const uint8_t *row, int type, ptrdiff_t n, float *out) {
    ptrdiff_t i;
    switch (type) {
    case RML_F32:
        memcpy(out, row, (size_t)n * sizeof *out);
        return;
    case RML_F16:
        for (i = 0; i + 16 <= n; i += 16) store16(out + i, rml_load_half16(row + i * 2));
        for (; i < n; ++i) out[i] = load_half(row + i * 2);
        return;
    case RML_BF16:
        for (i = 0; i + 16 <= n; i += 16) store16(out + i, rml_load_bf16_16(row + i * 2));
        for (; i < n; ++i) {
            uint16_t h;
            memcpy(&h, row + i * 2, sizeof h);
            const uint32_t bits = (uint32_t)h << 16;
            memcpy(out + i, &bits, sizeof bits);
        }
        return;
#define X(NAME, ID, LENGTH, BYTES, BIAS, HAS_MIN, SCALES)                         \
    case ID:                                                                      \
        for (i = 0; i < n / RML_UNIT; ++i) {                                      \
            uint8_t code[RML_UNIT];                                               \
            float d[2], m[2];                                                     \
            unpack_##NAME(row, i, code, d, m);                                    \
            unit_values(code, d, m, BIAS, HAS_MIN, SCALES, out + i * RML_UNIT);   \
        }                                                                         \
        return;
        RML_QUANTIZED_FORMATS(X)
#undef X
    }
}

#endif
