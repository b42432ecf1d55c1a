/* Codes and scales of several quantized rows, a lane each: what the products need of a format.
 *
 * `unit_rows_NAME` gives unit j of a block in eight vectors, v[k] with the codes 4k .. 4k+3 of each
 * row; `scales_rows_NAME` gives the block's scales and minima as [unit][one or two][row]. Both give
 * the numbers of `unpack_NAME`, whose comments say what the bits mean; of a factored format the
 * scales are [unit][row], that of the block, and the factors are [unit][two]. Where units of a block share
 * bytes, `stage_rows_NAME` transposes those first: a vector then holds four bytes of each row.
 *
 * The formats with grids are in grids.h; the operations on rows in rows.h.
 */
#ifndef RML_CODES_H
#define RML_CODES_H

#include "rows.h"

enum { STAGE_VECTORS = 64 };

typedef void stage_fn(row_blocks b, row_lanes *stage);
typedef void unit_fn(row_blocks b, const row_lanes *stage, int j, row_lanes *v);
typedef void scales_fn(row_blocks b, const row_lanes *stage, float *d, float *m, row_lanes *factors);

#define STAGE(NAME) RML_INLINE void stage_rows_##NAME(row_blocks b, row_lanes *stage)
#define NO_STAGE(NAME) static stage_fn *const stage_rows_##NAME = NULL;
#define UNIT(NAME) RML_INLINE void unit_rows_##NAME(row_blocks b, const row_lanes *stage, int j, row_lanes *v)
#define SCALES(NAME) \
    RML_INLINE void scales_rows_##NAME(row_blocks b, const row_lanes *stage, float *d, float *m, row_lanes *factors)

/* Nibbles of sixteen bytes of each row: the low ones are the first half of the unit. */
RML_INLINE void nibbles_rows(row_blocks b, ptrdiff_t at, row_lanes *v) {
    row_lanes packed[4];
    sixteen_bytes(b, at, packed);
    for (int k = 0; k < 4; ++k) {
        v[k] = bits_of_bytes(packed[k], 0, 15);
        v[k + 4] = bits_of_bytes(packed[k], 4, 15);
    }
}

RML_INLINE void store_row(float *d, int k, lanes v) { store_lanes(d + k * RML_LANES, v); }

/* scale * v is scale number k. */
RML_INLINE void store_scale(float *d, int k, lanes scale, row_lanes v) { store_row(d, k, scale * floats_of(v)); }

/* The same for v - 32. */
RML_INLINE void store_signed_scale(float *d, int k, lanes scale, row_lanes v) { store_scale(d, k, scale, v - 32); }

/* The f16 in the last two bytes of a block; the two before it are read as well, and none beyond. */
RML_INLINE lanes last_half(row_blocks b, int n_bytes) { return high_halves(four_bytes(b, n_bytes - 4)); }

/* One f16 scale for the whole block, at its start, and an f16 minimum behind it. */
#define SCALES_AT_START(NAME)                                                    \
    SCALES(NAME) {                                                               \
        const row_lanes both = four_bytes(b, 0);                                 \
        for (int j = 0; j < UNITS_##NAME; ++j) store_row(d, j, low_halves(both)); \
        if (MINIMA_##NAME) store_row(m, 0, high_halves(both));                   \
    }

/* The same at its end. */
#define SCALES_AT_END(NAME)                                                  \
    SCALES(NAME) {                                                           \
        const lanes scale = last_half(b, BYTES_##NAME);                      \
        for (int j = 0; j < UNITS_##NAME; ++j) store_row(d, j, scale);       \
    }

/* ---- formats whose blocks hold their scales as they are ---- */

NO_STAGE(Q4_0)
SCALES_AT_START(Q4_0)
UNIT(Q4_0) { nibbles_rows(b, 2, v); }

NO_STAGE(Q4_1)
SCALES_AT_START(Q4_1)
UNIT(Q4_1) { nibbles_rows(b, 4, v); }

NO_STAGE(Q5_0)
SCALES_AT_START(Q5_0)
UNIT(Q5_0) {
    nibbles_rows(b, 6, v);
    add_bits_rows(four_bytes(b, 2), 16, v);
}

NO_STAGE(Q5_1)
SCALES_AT_START(Q5_1)
UNIT(Q5_1) {
    nibbles_rows(b, 8, v);
    add_bits_rows(four_bytes(b, 4), 16, v);
}

NO_STAGE(Q8_0)
SCALES_AT_START(Q8_0)
UNIT(Q8_0) {
    thirty_two_bytes(b, 2, v);
    for (int k = 0; k < 8; ++k) v[k] ^= in_bytes(0x80);
}

NO_STAGE(Q1_0)
SCALES_AT_START(Q1_0)
UNIT(Q1_0) {
    for (int k = 0; k < 8; ++k) v[k] = in_rows(0);
    add_bits_rows(four_bytes(b, 2 + 4 * j), 2, v);
}

NO_STAGE(Q2_0)
SCALES_AT_START(Q2_0)
UNIT(Q2_0) {
    for (int k = 0; k < 8; k += 4) {
        const row_lanes bytes = four_bytes(b, 2 + 8 * j + k);
        for (int i = 0; i < 4; ++i) { /* the four pairs of a byte to bits 0, 8, 16 and 24 */
            const row_lanes one = field(bytes, 8 * i, 255), two = upper_bits(one, one, 12);
            v[k + i] = upper_bits(two, two, 6) & in_bytes(3);
        }
    }
}

NO_STAGE(IQ4_NL)
SCALES_AT_START(IQ4_NL)
UNIT(IQ4_NL) {
    nibbles_rows(b, 2, v);
    look_up_rows(rml_tables.nonlinear, v);
}

NO_STAGE(MXFP4)
UNIT(MXFP4) {
    nibbles_rows(b, 1, v);
    look_up_rows(rml_tables.e2m1, v);
}
SCALES(MXFP4) {
    const row_lanes e = field(four_bytes(b, 0), 0, 255);
    const row_lanes subnormal = (row_lanes)(e < 2), small = 0x00200000u << (e & 1);
    const row_lanes bits = (subnormal & small) | (~subnormal & (e - 1) << 23);
    memcpy(d, &bits, sizeof bits);
}

NO_STAGE(NVFP4)
UNIT(NVFP4) {
    row_lanes packed[4];
    sixteen_bytes(b, 4 + 16 * j, packed);
    for (int k = 0; k < 8; ++k) v[k] = bits_of_bytes(packed[k / 4 * 2 + k % 2], k / 2 % 2 * 4, 15);
    look_up_rows(rml_tables.e2m1, v);
}
SCALES(NVFP4) {
    const row_lanes four = four_bytes(b, 0);
    for (int k = 0; k < 4; ++k) { /* see half_e4m3 */
        const row_lanes x = field(four, 8 * k, 255), seven = x & 127;
        const row_lanes subnormal = (row_lanes)(seven < 8), zero = (row_lanes)(x == 127);
        const row_lanes normal = (seven << 20) + (119u << 23), small = (row_lanes)(floats_of(seven) * 0x1p-10f);
        store_row(d, k, (lanes)(((subnormal & small) | (~subnormal & normal)) & ~zero));
    }
}

/* ---- formats with blocks of 256 values, but for those with grids ---- */

/* 32 n bytes of each row, for the units to share. */
RML_INLINE void stage_bytes(row_blocks b, ptrdiff_t at, int n, row_lanes *stage) {
    for (int i = 0; i < n; ++i) thirty_two_bytes(b, at + 32 * i, stage + 8 * i);
}

/* Bits of 32 staged bytes. */
RML_INLINE void staged_bits(const row_lanes *bytes, int right, uint32_t mask, row_lanes *v) {
    for (int k = 0; k < 8; ++k) v[k] = bits_of_bytes(bytes[k], right, mask);
}

enum { SCALES_Q2_K_AT = 16 }; /* in the stage, behind the pairs */

STAGE(Q2_K) {
    stage_bytes(b, 16, 2, stage);
    sixteen_bytes(b, 0, stage + SCALES_Q2_K_AT);
}
UNIT(Q2_K) { staged_bits(stage + j / 4 * 8, 2 * (j % 4), 3, v); }
SCALES(Q2_K) {
    const row_lanes both = four_bytes(b, 80);
    const lanes min = -high_halves(both);
    for (int j = 0; j < 8; ++j) store_row(d, j, low_halves(both));
    for (int k = 0; k < 16; ++k) {
        const row_lanes byte = stage[SCALES_Q2_K_AT + k / 4] >> k % 4 * 8;
        factors[k] = byte & 15;
        store_scale(m, k, min, field(byte, 4, 15));
    }
}

STAGE(Q3_K) { stage_bytes(b, 0, 3, stage); }
UNIT(Q3_K) {
    staged_bits(stage + 8 + j / 4 * 8, 2 * (j % 4), 3, v);
    add_bits_of_bytes_rows(stage, j, 2, v);
}
SCALES(Q3_K) { /* the opposite of all factors: -32 times the code -4 would be one more than a byte holds */
    const lanes scale = -last_half(b, BYTES_Q3_K);
    const row_lanes low[2] = {four_bytes(b, 96), four_bytes(b, 100)}, high = four_bytes(b, 104);
    for (int j = 0; j < 8; ++j) store_row(d, j, scale);
    for (int k = 0; k < 16; ++k) {
        const row_lanes four = field(low[k / 4 % 2], 8 * (k % 4) + k / 8 * 4, 15);
        factors[k] = 32 - upper_bits(four, field(high, 8 * (k % 4) + k / 4 * 2, 3), 4);
    }
}

/* Q4_K and Q5_K: two f16, then twelve bytes with eight scales and eight minima of six bits. */
RML_INLINE void scales_k(row_blocks b, float *d, float *m) {
    const row_lanes both = four_bytes(b, 0), x = four_bytes(b, 4), y = four_bytes(b, 8), z = four_bytes(b, 12);
    const lanes scale = low_halves(both), min = -high_halves(both);
    for (int i = 0; i < 4; ++i) {
        store_scale(d, i, scale, field(x, 8 * i, 63));
        store_scale(m, i, min, field(y, 8 * i, 63));
        store_scale(d, i + 4, scale, upper_bits(field(z, 8 * i, 15), field(x, 8 * i + 6, 3), 4));
        store_scale(m, i + 4, min, upper_bits(field(z, 8 * i + 4, 15), field(y, 8 * i + 6, 3), 4));
    }
}

STAGE(Q4_K) { stage_bytes(b, 16, 4, stage); }
UNIT(Q4_K) { staged_bits(stage + j / 2 * 8, j % 2 * 4, 15, v); }
SCALES(Q4_K) { scales_k(b, d, m); }

STAGE(Q5_K) { stage_bytes(b, 16, 5, stage); }
UNIT(Q5_K) {
    staged_bits(stage + 8 + j / 2 * 8, j % 2 * 4, 15, v);
    add_bits_of_bytes_rows(stage, j, 4, v);
}
SCALES(Q5_K) { scales_k(b, d, m); }

STAGE(Q6_K) { stage_bytes(b, 0, 6, stage); }
UNIT(Q6_K) {
    const row_lanes *low = stage + (j / 4 * 2 + j % 2) * 8, *high = stage + (4 + j / 4) * 8;
    staged_bits(low, j / 2 % 2 * 4, 15, v);
    for (int k = 0; k < 8; ++k) v[k] |= bits_of_bytes(high[k], 2 * (j % 4) - 4, 0x30);
}
SCALES(Q6_K) {
    const lanes scale = last_half(b, BYTES_Q6_K);
    for (int k = 0; k < 16; ++k) {
        const row_lanes bytes = four_bytes(b, 192 + k / 4 * 4);
        store_scale(d, k, scale, (row_lanes)((int_lanes)(bytes << (24 - k % 4 * 8)) >> 24));
    }
}

NO_STAGE(IQ4_XS)
UNIT(IQ4_XS) {
    nibbles_rows(b, 8 + 16 * j, v);
    look_up_rows(rml_tables.nonlinear, v);
}
SCALES(IQ4_XS) {
    const row_lanes both = four_bytes(b, 0), low = four_bytes(b, 4);
    const lanes scale = low_halves(both);
    for (int j = 0; j < 8; ++j)
        store_signed_scale(d, j, scale, upper_bits(field(low, 4 * j, 15), field(both, 16 + 2 * j, 3), 4));
}

/* The whole part of 3 x / 256, a digit in base 3, and what is left of x, for the next. */
RML_INLINE row_lanes trit(row_lanes *x) {
    const row_bytes_t v = (row_bytes_t)*x;
    const row_lanes digit = at_least(*x, 86) + at_least(*x, 171);
    *x = (row_lanes)(v + v + v);
    return digit;
}

STAGE(TQ1_0) { /* all codes of the block */
    row_lanes wide[8], narrow[4], last = four_bytes(b, 48);
    thirty_two_bytes(b, 0, wide);
    sixteen_bytes(b, 32, narrow);
    for (int digit = 0; digit < 5; ++digit) {
        for (int k = 0; k < 8; ++k) stage[8 * digit + k] = trit(&wide[k]);
        for (int k = 0; k < 4; ++k) stage[40 + 4 * digit + k] = trit(&narrow[k]);
        if (digit < 4) stage[60 + digit] = trit(&last);
    }
}
UNIT(TQ1_0) { memcpy(v, stage + 8 * j, 8 * sizeof *v); }
SCALES_AT_END(TQ1_0)

STAGE(TQ2_0) { stage_bytes(b, 0, 2, stage); }
UNIT(TQ2_0) { staged_bits(stage + j / 4 * 8, 2 * (j % 4), 3, v); }
SCALES_AT_END(TQ2_0)

#endif
