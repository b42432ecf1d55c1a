/* Weight formats: how the bytes of a row become numbers.
 *
 * RML_QUANTIZED_FORMATS is the one list of quantized formats that the twins know. For each:
 *
 *     X(NAME, id, values in a block, bytes of a block, bias, has a minimum)
 *
 * and `unpack_NAME` gives one unit of 32 values of a row as unsigned codes, a scale and a minimum:
 * value = scale * (code - bias) + minimum. dequant_py.py says what the bytes mean.
 * Adding a format is one entry here and its `unpack_NAME`.
 */
#ifndef RML_FORMATS_H
#define RML_FORMATS_H

#include "half.h"
#include "vec.h"

#define RML_QUANTIZED_FORMATS(X) \
    X(Q4_0, 2, 32, 18, 8, 0)     \
    X(Q4_1, 3, 32, 20, 0, 1)     \
    X(Q5_0, 6, 32, 22, 16, 0)    \
    X(Q5_1, 7, 32, 24, 0, 1)     \
    X(Q8_0, 8, 32, 34, 128, 0)

enum { RML_F32 = 0, RML_F16 = 1, RML_BF16 = 30 };
enum { RML_UNIT = 32 };

#define X(NAME, ID, LENGTH, BYTES, BIAS, HAS_MIN) \
    enum {                                        \
        ID_##NAME = ID,                           \
        LENGTH_##NAME = LENGTH,                   \
        BYTES_##NAME = BYTES,                     \
        BIAS_##NAME = BIAS,                       \
        HAS_MIN_##NAME = HAS_MIN                  \
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

/* Values of one unit, rounded as the definition rounds: multiply, then add. */
RML_INLINE void unit_values(const uint8_t *code, float d, float m, int bias, int has_min, float *out) {
    for (int i = 0; i < RML_UNIT; i += 16) {
        u8x16 c;
        memcpy(&c, code + i, sizeof c);
        const f32x16 v = __builtin_convertvector(__builtin_convertvector(c, i32x16) - bias, f32x16) * d;
        store16(out + i, has_min ? v + m : v);
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
        for (i = 0; i < n; ++i) {
            uint16_t h;
            memcpy(&h, row + i * 2, sizeof h);
            const uint32_t bits = (uint32_t)h << 16;
            memcpy(out + i, &bits, sizeof bits);
        }
        return;
#define X(NAME, ID, LENGTH, BYTES, BIAS, HAS_MIN)                      \
    case ID:                                                           \
        for (i = 0; i < n / RML_UNIT; ++i) {                           \
            uint8_t code[RML_UNIT];                                    \
            float d, m;                                                \
            unpack_##NAME(row, i, code, &d, &m);                       \
            unit_values(code, d, m, BIAS, HAS_MIN, out + i * RML_UNIT); \
        }                                                              \
        return;
        RML_QUANTIZED_FORMATS(X)
#undef X
    }
}

#endif
