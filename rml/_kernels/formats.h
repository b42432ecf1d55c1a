/* Weight formats: how the bytes of a row become numbers.
 *
 * RML_QUANTIZED_FORMATS is the one list of quantized formats that the twins know. For each:
 *
 *     X(NAME, id, values in a block, bytes of a block, bias, minima, scales, factored)
 *
 * A block is one or more units of 32 values. `unpack_NAME` gives one unit of a row as unsigned
 * codes, one or two scales, and none, one or two minima (two: one for each half of the unit):
 *
 *     value = scale * (code - bias) + minimum
 *
 * Factored: two scales are small integers times that of the block (`Units.factor` of the definition),
 * which products multiply with integers.
 *
 * The definitions (dequant_py.py) say what the bytes mean. Adding a format is one entry here, its
 * `unpack_NAME` (unpack_simple.h, unpack_k.h, unpack_grid.h) and its part of codes.h or grids.h.
 */
#ifndef RML_FORMATS_H
#define RML_FORMATS_H

#include "half.h"
#include "vec.h"

#define RML_QUANTIZED_FORMATS(X)          \
    X(Q4_0, 2, 32, 18, 8, 0, 1, 0)        \
    X(Q4_1, 3, 32, 20, 0, 1, 1, 0)        \
    X(Q5_0, 6, 32, 22, 16, 0, 1, 0)       \
    X(Q5_1, 7, 32, 24, 0, 1, 1, 0)        \
    X(Q8_0, 8, 32, 34, 128, 0, 1, 0)      \
    X(Q1_0, 41, 128, 18, 1, 0, 1, 0)      \
    X(Q2_0, 42, 64, 18, 1, 0, 1, 0)       \
    X(IQ4_NL, 20, 32, 18, 128, 0, 1, 0)   \
    X(MXFP4, 39, 32, 17, 12, 0, 1, 0)     \
    X(NVFP4, 40, 64, 36, 12, 0, 2, 0)     \
    X(Q2_K, 10, 256, 84, 0, 2, 2, 1)      \
    X(Q3_K, 11, 256, 110, 4, 0, 2, 1)     \
    X(Q4_K, 12, 256, 144, 0, 1, 1, 0)     \
    X(Q5_K, 13, 256, 176, 0, 1, 1, 0)     \
    X(Q6_K, 14, 256, 210, 32, 0, 2, 0)    \
    X(IQ4_XS, 23, 256, 136, 128, 0, 1, 0) \
    X(TQ1_0, 34, 256, 54, 1, 0, 1, 0)     \
    X(TQ2_0, 35, 256, 66, 1, 0, 1, 0)     \
    X(IQ2_XXS, 16, 256, 66, 64, 0, 1, 0)  \
    X(IQ2_XS, 17, 256, 74, 64, 0, 2, 0)   \
    X(IQ2_S, 22, 256, 82, 64, 0, 2, 0)    \
    X(IQ3_XXS, 18, 256, 98, 64, 0, 1, 0)  \
    X(IQ3_S, 21, 256, 110, 64, 0, 1, 0)   \
    X(IQ1_S, 19, 256, 50, 9, 0, 1, 0)     \
    X(IQ1_M, 29, 256, 56, 9, 0, 2, 0)

enum { RML_F32 = 0, RML_F16 = 1, RML_F64 = 28, RML_BF16 = 30 };
enum { RML_UNIT = 32 };

#define X(NAME, ID, LENGTH, BYTES, BIAS, MINIMA, SCALES, FACTORED) \
    enum {                                                         \
        ID_##NAME = ID,                                            \
        UNITS_##NAME = LENGTH / 32, /* of a block */               \
        BYTES_##NAME = BYTES,                                      \
        BIAS_##NAME = BIAS,                                        \
        MINIMA_##NAME = MINIMA, /* of a unit */                    \
        SCALES_##NAME = SCALES, /* of a unit */                    \
        FACTORED_##NAME = FACTORED                                 \
    };
RML_QUANTIZED_FORMATS(X)
#undef X

/* The list, to be compared with that of block_formats.py. */
typedef struct {
    const char *name;
    int id, length, n_bytes;
} rml_format_entry;

#define X(NAME, ID, LENGTH, BYTES, ...) {#NAME, ID, LENGTH, BYTES},
static const rml_format_entry rml_formats[] = {RML_QUANTIZED_FORMATS(X)};
#undef X
enum { RML_N_FORMATS = sizeof rml_formats / sizeof rml_formats[0] };

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

RML_INLINE uint64_t load_u64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* Tables of the formats that look their values up, with the format's bias added; copied from
 * format_tables.py when the twins are imported. A point of a grid is one number of 8 or 4 bytes. */
typedef struct {
    _Alignas(64) uint8_t nonlinear[16];
    uint8_t e2m1[16];
    uint64_t iq1[2048]; /* 8 times the values, and 8 */
    uint64_t iq2_xxs[256], iq2_xs[512], iq2_s[1024];
    uint32_t iq3_xxs[256], iq3_s[512];
} rml_tables_t;

static rml_tables_t rml_tables;

/* ---- packed bits ---- */

typedef uint8_t u8x16 __attribute__((vector_size(16)));
typedef uint64_t u64x2 __attribute__((vector_size(16)));

RML_INLINE u8x16 load_bytes(const uint8_t *p) {
    u8x16 v;
    memcpy(&v, p, sizeof v);
    return v;
}

RML_INLINE void store_bytes(uint8_t *p, u8x16 v) { memcpy(p, &v, sizeof v); }

RML_INLINE u8x16 splat_bytes(uint8_t x) { return x - (u8x16){0}; }

RML_INLINE u8x16 shift_bytes(u8x16 v, int shift) { /* what comes from the next byte is left to a mask */
    typedef uint16_t u16x8 __attribute__((vector_size(16)));
    return (u8x16)((u16x8)v >> shift);
}

/* Low halves of 16 bytes, then the high ones. */
RML_INLINE void nibbles(const uint8_t *p, uint8_t *code) {
    const u8x16 v = load_bytes(p);
    store_bytes(code, v & 15);
    store_bytes(code + 16, v >> 4);
}

/* Two bits of each of 32 bytes, from bit `shift` on. */
RML_INLINE void pairs(const uint8_t *p, int shift, uint8_t *code) {
    for (int i = 0; i < RML_UNIT; i += 16) store_bytes(code + i, shift_bytes(load_bytes(p + i), shift) & 3);
}

/* Add `value` to code i where bit `bit` of byte i is set; the codes lack that bit. */
RML_INLINE void add_bits_of_bytes(const uint8_t *p, int bit, uint8_t value, uint8_t *code) {
    const u8x16 mask = splat_bytes((uint8_t)(1 << bit));
    for (int i = 0; i < RML_UNIT; i += 16)
        store_bytes(code + i, load_bytes(code + i) | ((u8x16)((load_bytes(p + i) & mask) == mask) & splat_bytes(value)));
}

/* Add `value` to code i where bit i is set; the codes lack that bit. */
RML_INLINE void add_bits(uint32_t bits, uint8_t value, uint8_t *code) {
    const u8x16 bit = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    for (int half = 0; half < 2; ++half) {
        const uint64_t low = bits >> 16 * half & 255, high = bits >> (16 * half + 8) & 255;
        const u8x16 spread = (u8x16)(u64x2){low * 0x0101010101010101u, high * 0x0101010101010101u};
        store_bytes(code + 16 * half, load_bytes(code + 16 * half) | ((u8x16)((spread & bit) == bit) & splat_bytes(value)));
    }
}

/* Replace numbers below 16 by their entries in a table. */
RML_INLINE u8x16 look_up(const uint8_t *table, u8x16 v) {
#if defined(__AVX2__)
    return (u8x16)_mm_shuffle_epi8((__m128i)load_bytes(table), (__m128i)v);
#elif defined(__aarch64__)
    return (u8x16)vqtbl1q_u8((uint8x16_t)load_bytes(table), (uint8x16_t)v);
#else
    uint8_t entry[16];
    store_bytes(entry, v);
    for (int i = 0; i < 16; ++i) entry[i] = table[entry[i]];
    return load_bytes(entry);
#endif
}

RML_INLINE void nibbles_in_table(const uint8_t *p, const uint8_t *table, uint8_t *code) {
    const u8x16 v = load_bytes(p);
    store_bytes(code, look_up(table, v & 15));
    store_bytes(code + 16, look_up(table, v >> 4));
}

#endif
