/* The two innermost loops of attention: scores, and weighted values. */
#ifndef RML_ATTENTION_LOOPS_H
#define RML_ATTENTION_LOOPS_H

#include "attention_pages.h"

/* What the registers of a level hold: rows, and vectors of keys or dimensions. */
#if defined(__AVX512F__) || defined(__aarch64__)
enum { RML_SCORE_ROWS = 12, RML_SCORE_VECS = 2, RML_VALUE_ROWS = 6, RML_VALUE_VECS = 4 };
#elif defined(__AVX2__)
enum { RML_SCORE_ROWS = 6, RML_SCORE_VECS = 2, RML_VALUE_ROWS = 6, RML_VALUE_VECS = 2 };
#else
enum { RML_SCORE_ROWS = 6, RML_SCORE_VECS = 2, RML_VALUE_ROWS = 3, RML_VALUE_VECS = 4 };
#endif

/* Scores of n rows, q being (D, n), against two vectors of keys, those at k0 and k1. */
RML_INLINE void rml_score_block(int n, const float *q, ptrdiff_t d, const rml_pages *keys,
                                const float *k0, const float *k1, float scale, float *scores) {
    lanes sum[RML_SCORE_ROWS][RML_SCORE_VECS];
    const char *next0 = keys->next[0], *next1 = keys->next[1];
    const ptrdiff_t step = RML_PAGE * keys->size;
#pragma GCC unroll 12
    for (int r = 0; r < n; ++r) sum[r][0] = sum[r][1] = splat_lanes(0);
    for (ptrdiff_t i = 0; i < d; ++i) {
        const lanes key0 = load_lanes(k0 + RML_PAGE * i), key1 = load_lanes(k1 + RML_PAGE * i);
        rml_fetch(next0 + step * i);
        rml_fetch(next1 + step * i);
#pragma GCC unroll 12
        for (int r = 0; r < n; ++r) {
            const lanes x = splat_lanes(q[i * n + r]);
            sum[r][0] = fma_lanes(x, key0, sum[r][0]);
            sum[r][1] = fma_lanes(x, key1, sum[r][1]);
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < n; ++r) {
        store_lanes(scores + r * RML_BLOCK, sum[r][0] * scale);
        store_lanes(scores + r * RML_BLOCK + RML_LANES, sum[r][1] * scale);
    }
}

/* Scores of n <= SCORE_ROWS rows against a block of keys, (n, 32). */
static void rml_scores(int n, const float *q, ptrdiff_t d, const rml_pages *keys, float scale,
                       float *scores) {
    for (int j = 0; j < RML_BLOCK; j += RML_SCORE_VECS * RML_LANES) {
        /* With sixteen lanes a vector is a page; else both come from the same page. */
        const float *k0 = keys->now[j / RML_PAGE] + j % RML_PAGE;
        const float *k1 = RML_LANES == 16 ? keys->now[1] : k0 + RML_LANES;
        switch (n) {
#define RML_CASE(N)                                                                              \
    case N:                                                                                      \
        if (N <= (int)RML_SCORE_ROWS) rml_score_block(N, q, d, keys, k0, k1, scale, scores + j); \
        break;
            RML_CASE(1) RML_CASE(2) RML_CASE(3) RML_CASE(4) RML_CASE(5) RML_CASE(6)
            RML_CASE(7) RML_CASE(8) RML_CASE(9) RML_CASE(10) RML_CASE(11) RML_CASE(12)
#undef RML_CASE
        }
    }
}

/* acc = acc * factor + p V: n rows, some vectors of dimensions, the keys start <= k < stop. */
RML_INLINE void rml_value_block(int n, int vecs, const float *p, const float *factor,
                                const rml_pages *values, ptrdiff_t column, ptrdiff_t wide,
                                int start, int stop, float *acc, ptrdiff_t row) {
    lanes sum[RML_VALUE_ROWS][RML_VALUE_VECS];
    const ptrdiff_t size = values->size;
#pragma GCC unroll 8
    for (int r = 0; r < n; ++r)
#pragma GCC unroll 4
        for (int j = 0; j < vecs; ++j)
            sum[r][j] = load_lanes(acc + r * row + RML_LANES * j) * factor[r];
    for (int k = start; k < stop;) {
        const ptrdiff_t first = k % RML_PAGE * wide + column;
        const float *v = values->now[k / RML_PAGE] + first;
        const char *next = values->next[k / RML_PAGE] + first * size;
        const int end = k < RML_PAGE && stop > RML_PAGE ? RML_PAGE : stop;
        for (; k < end; ++k, v += wide, next += wide * size) {
            lanes value[RML_VALUE_VECS];
#pragma GCC unroll 4
            for (int j = 0; j < vecs; ++j) {
                value[j] = load_lanes(v + RML_LANES * j);
                rml_fetch(next + RML_LANES * size * j);
            }
#pragma GCC unroll 8
            for (int r = 0; r < n; ++r) {
                const lanes x = splat_lanes(p[r * RML_BLOCK + k]);
#pragma GCC unroll 4
                for (int j = 0; j < vecs; ++j) sum[r][j] = fma_lanes(x, value[j], sum[r][j]);
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < n; ++r)
#pragma GCC unroll 4
        for (int j = 0; j < vecs; ++j) store_lanes(acc + r * row + RML_LANES * j, sum[r][j]);
}

/* The same for any number of rows and all dimensions; rows of acc are `row` apart. */
static void rml_values(ptrdiff_t rows, const float *p, const float *factor,
                       const rml_pages *values, ptrdiff_t wide, int start, int stop, float *acc,
                       ptrdiff_t row) {
    enum { FULL = RML_VALUE_VECS * RML_LANES, PART = 16 / RML_LANES };
    for (ptrdiff_t i = 0; i < wide;) {
        const int full = wide - i >= FULL;
        for (ptrdiff_t r = 0; r < rows; r += RML_VALUE_ROWS) {
            const ptrdiff_t left = rows - r;
            const float *weights = p + r * RML_BLOCK, *factors = factor + r;
            float *to = acc + r * row + i;
            switch (left < RML_VALUE_ROWS ? left : RML_VALUE_ROWS) {
#define RML_CASE(N)                                                                             \
    case N:                                                                                     \
        if (N > (int)RML_VALUE_ROWS) break;                                                     \
        if (full)                                                                               \
            rml_value_block(N, RML_VALUE_VECS, weights, factors, values, i, wide, start, stop,  \
                            to, row);                                                           \
        else                                                                                    \
            rml_value_block(N, PART, weights, factors, values, i, wide, start, stop, to, row);  \
        break;
                RML_CASE(1) RML_CASE(2) RML_CASE(3) RML_CASE(4) RML_CASE(5) RML_CASE(6)
#undef RML_CASE
            }
        }
        i += full ? FULL : 16;
    }
}

#endif
