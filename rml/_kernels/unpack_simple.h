/* One unit of the formats whose blocks hold their scales as they are (see unpack_simple.py). */
#ifndef RML_UNPACK_SIMPLE_H
#define RML_UNPACK_SIMPLE_H

#include "formats.h"

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
    add_bits(load_u32(b + 2), 16, code);
}

RML_INLINE void unpack_Q5_1(const uint8_t *row, ptrdiff_t unit, uint8_t *code, float *d, float *m) {
    const uint8_t *b = row + unit * BYTES_Q5_1;
    *d = load_half(b);
    *m = load_half(b + 2);
    nibbles(b + 8, code);
    add_bits(load_u32(b + 4), 16, code);
}

RML_INLINE void unpack_Q8_0(const uint8_t *row, ptrdiff_t unit, uint8_t *code, float *d, float *m) {
    const uint8_t *b = row + unit * BYTES_Q8_0;
    *d = load_half(b);
    *m = 0;
    for (int i = 0; i < 32; ++i) code[i] = b[2 + i] ^ 0x80;
}

RML_INLINE void unpack_Q1_0(const uint8_t *row, ptrdiff_t unit, uint8_t *code, float *d, float *m) {
    const uint8_t *b = row + unit / UNITS_Q1_0 * BYTES_Q1_0;
    *d = load_half(b);
    *m = 0;
    memset(code, 0, RML_UNIT);
    add_bits(load_u32(b + 2 + unit % UNITS_Q1_0 * 4), 2, code);
}

RML_INLINE void unpack_Q2_0(const uint8_t *row, ptrdiff_t unit, uint8_t *code, float *d, float *m) {
    const uint8_t *b = row + unit / UNITS_Q2_0 * BYTES_Q2_0, *q = b + 2 + unit % UNITS_Q2_0 * 8;
    *d = load_half(b);
    *m = 0;
    for (int i = 0; i < 8; ++i) {
        /* The four pairs of a byte to bits 0, 8, 16 and 24. */
        const uint32_t two = q[i] | (uint32_t)q[i] << 12, four = (two | two << 6) & 0x03030303;
        memcpy(code + 4 * i, &four, sizeof four);
    }
}

RML_INLINE void unpack_IQ4_NL(const uint8_t *row, ptrdiff_t unit, uint8_t *code, float *d, float *m) {
    const uint8_t *b = row + unit * BYTES_IQ4_NL;
    *d = load_half(b);
    *m = 0;
    nibbles_in_table(b + 2, rml_tables.nonlinear, code);
}

RML_INLINE void unpack_MXFP4(const uint8_t *row, ptrdiff_t unit, uint8_t *code, float *d, float *m) {
    const uint8_t *b = row + unit * BYTES_MXFP4;
    /* 2^(e - 128); the two smallest are subnormal. */
    const uint32_t bits = b[0] < 2 ? 0x00200000u << b[0] : (uint32_t)(b[0] - 1) << 23;
    memcpy(d, &bits, sizeof bits);
    *m = 0;
    nibbles_in_table(b + 1, rml_tables.e2m1, code);
}

/* Half the value of an unsigned E4M3 float; 0x7f stands for zero. */
RML_INLINE float half_e4m3(uint8_t x) {
    const uint32_t bits = ((uint32_t)(x & 127) << 20) + (119u << 23); /* the exponent's bias grows */
    float normal;
    memcpy(&normal, &bits, sizeof bits);
    return x == 127 ? 0 : x & 0x78 ? normal : (float)(x & 7) * 0x1p-10f;
}

RML_INLINE void unpack_NVFP4(const uint8_t *row, ptrdiff_t unit, uint8_t *code, float *d, float *m) {
    const uint8_t *b = row + unit / UNITS_NVFP4 * BYTES_NVFP4;
    const int j = (int)(unit % UNITS_NVFP4);
    for (int i = 0; i < 2; ++i) {
        d[i] = half_e4m3(b[2 * j + i]);
        m[i] = 0;
        /* Eight bytes for each half: low nibbles, then high ones. */
        const uint64_t v = load_u64(b + 4 + 16 * j + 8 * i);
        store_bytes(code + 16 * i, look_up(rml_tables.e2m1, (u8x16)(u64x2){v, v >> 4} & 15));
    }
}

#endif
