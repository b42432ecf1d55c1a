/* Codes and scales of several rows in the formats with grids (see codes.h).
 *
 * Points are looked up by the indices of all rows, so they arrive with a lane for each.
 */
#ifndef RML_GRIDS_H
#define RML_GRIDS_H

#include "codes.h"

/* Seven signs in each byte get an eighth such that the number of minus signs is even. */
RML_INLINE row_lanes even_signs_rows(row_lanes seven) {
    row_lanes odd = seven ^ seven >> 4;
    odd ^= odd >> 2;
    odd ^= odd >> 1;
    return upper_bits(seven, odd & in_bytes(1), 7);
}

/* Four times seven signs in the lower bits of a number. */
RML_INLINE row_lanes signs_of_28(row_lanes v) {
    return even_signs_rows(field(v, 0, 0x7f) | left_field(v, 1, 0x7f00) | left_field(v, 2, 0x7f0000) | left_field(v, 3, 0x7f000000));
}

/* (v + 1/2) scale is scale number k. */
RML_INLINE void store_half_step(float *d, int k, lanes scale, row_lanes v) { store_row(d, k, scale * (floats_of(v) + 0.5f)); }

/* (2 v + 1) scale is scale number k. */
RML_INLINE void store_odd_scale(float *d, int k, lanes scale, row_lanes v) { store_scale(d, k, scale, v << 1 | 1); }

/* The f16 at the start of a block, times a power of two. */
RML_INLINE lanes first_half(row_blocks b, float factor) { return low_halves(four_bytes(b, 0)) * factor; }

/* Index, then signs and scale, of each unit. */
STAGE(IQ2_XXS) { stage_bytes(b, 2, 2, stage); }
UNIT(IQ2_XXS) {
    for (int i = 0; i < 4; ++i) points8(rml_tables.iq2_xxs, field(stage[2 * j], 8 * i, 255), v + 2 * i);
    with_signs_rows(signs_of_28(stage[2 * j + 1]), v);
}
SCALES(IQ2_XXS) {
    const lanes scale = first_half(b, 0.25f);
    for (int j = 0; j < 8; ++j) store_half_step(d, j, scale, stage[2 * j + 1] >> 28);
}

/* IQ2_XS and IQ2_S: sixteen nibbles at `at`. */
RML_INLINE void half_steps_rows(row_blocks b, ptrdiff_t at, float *d) {
    const lanes scale = first_half(b, 0.25f);
    const row_lanes both[2] = {four_bytes(b, at), four_bytes(b, at + 4)};
    for (int k = 0; k < 16; ++k) store_half_step(d, k, scale, field(both[k / 8], 4 * (k % 8), 15));
}

STAGE(IQ2_XS) { stage_bytes(b, 2, 2, stage); }
UNIT(IQ2_XS) {
    const row_lanes x = stage[2 * j], y = stage[2 * j + 1]; /* nine bits of index and seven signs, four times */
    for (int i = 0; i < 4; ++i) points8(rml_tables.iq2_xs, field(i < 2 ? x : y, i % 2 * 16, 511), v + 2 * i);
    with_signs_rows(even_signs_rows(field(x, 9, 0x7f) | field(x, 17, 0x7f00) | left_field(y, 7, 0x7f0000) | field(y, 1, 0x7f000000)), v);
}
SCALES(IQ2_XS) { half_steps_rows(b, 66, d); }

/* Indices, signs, upper bits of indices. */
STAGE(IQ2_S) {
    stage_bytes(b, 2, 2, stage);
    for (int i = 0; i < 2; ++i) stage[16 + i] = four_bytes(b, 66 + 4 * i);
}
UNIT(IQ2_S) {
    for (int i = 0; i < 4; ++i) {
        const row_lanes upper = field(stage[16 + j / 4], j % 4 * 8 + 2 * i, 3);
        points8(rml_tables.iq2_s, upper_bits(field(stage[j], 8 * i, 255), upper, 8), v + 2 * i);
    }
    with_signs_rows(stage[8 + j], v);
}
SCALES(IQ2_S) { half_steps_rows(b, 74, d); }

/* Indices of all units, then signs and scales. */
STAGE(IQ3_XXS) { stage_bytes(b, 2, 3, stage); }
UNIT(IQ3_XXS) {
    for (int k = 0; k < 8; ++k) v[k] = point4(rml_tables.iq3_xxs, field(stage[2 * j + k / 4], k % 4 * 8, 255));
    with_signs_rows(signs_of_28(stage[16 + j]), v);
}
SCALES(IQ3_XXS) {
    const lanes scale = first_half(b, 0.5f);
    for (int j = 0; j < 8; ++j) store_half_step(d, j, scale, stage[16 + j] >> 28);
}

/* Indices, signs, ninth bits of indices. */
STAGE(IQ3_S) {
    stage_bytes(b, 2, 2, stage);
    thirty_two_bytes(b, 74, stage + 16);
    for (int i = 0; i < 2; ++i) stage[24 + i] = four_bytes(b, 66 + 4 * i);
}
UNIT(IQ3_S) {
    for (int k = 0; k < 8; ++k) {
        const row_lanes ninth = field(stage[24 + j / 4], j % 4 * 8 + k, 1);
        v[k] = point4(rml_tables.iq3_s, upper_bits(field(stage[2 * j + k / 4], k % 4 * 8, 255), ninth, 8));
    }
    with_signs_rows(stage[16 + j], v);
}
SCALES(IQ3_S) {
    const lanes scale = first_half(b, 1);
    const row_lanes nibbles = four_bytes(b, 106);
    for (int j = 0; j < 8; ++j) store_odd_scale(d, j, scale, field(nibbles, 4 * j, 15));
}

/* A point of an IQ1 format, whose values are moved by 1/8 (one in its codes): up, or, where `down`
 * is 1 and not 0, down. */
RML_INLINE void moved_points8(row_lanes index, row_lanes down, row_lanes *v) {
    points8(rml_tables.iq1, index, v);
    const row_lanes move = (down ^ 1) * 0x02020202u; /* no carry */
    for (int i = 0; i < 2; ++i) v[i] += move;
}

/* Indices; upper bits of indices, a scale and a bit for down, of two units in a vector. */
STAGE(IQ1_S) {
    thirty_two_bytes(b, 2, stage);
    sixteen_bytes(b, 34, stage + 8);
}
UNIT(IQ1_S) {
    const row_lanes more = stage[8 + j / 2] >> j % 2 * 16, down = field(more, 15, 1);
    for (int i = 0; i < 4; ++i)
        moved_points8(upper_bits(field(stage[j], 8 * i, 255), field(more, 3 * i, 7), 8), down, v + 2 * i);
}
SCALES(IQ1_S) {
    const lanes scale = first_half(b, 0.125f);
    for (int j = 0; j < 8; ++j) store_odd_scale(d, j, scale, field(stage[8 + j / 2], j % 2 * 16 + 12, 7));
}

/* Indices; nibbles of upper bits and a bit for down, of two units in a vector. */
STAGE(IQ1_M) {
    thirty_two_bytes(b, 0, stage);
    sixteen_bytes(b, 32, stage + 8);
}
UNIT(IQ1_M) {
    for (int i = 0; i < 4; ++i) {
        const row_lanes more = field(stage[8 + j / 2], j % 2 * 16 + 4 * i, 15);
        moved_points8(upper_bits(field(stage[j], 8 * i, 255), more & 7, 8), field(more, 3, 1), v + 2 * i);
    }
}
SCALES(IQ1_M) {
    const row_lanes x = four_bytes(b, 48), y = four_bytes(b, 52);
    const row_lanes bits = field(x, 12, 0xf) | field(x, 24, 0xf0) | field(y, 4, 0xf00) | field(y, 16, 0xf000);
    const lanes scale = low_halves(bits) * 0.125f;
    for (int k = 0; k < 16; ++k) store_odd_scale(d, k, scale, field(k < 8 ? x : y, k / 4 % 2 * 16 + k % 4 * 3, 7));
}

#endif
