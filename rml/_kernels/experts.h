/* Tokens grouped by expert, and the ends of a mixture's products (see experts_py).
 *
 * A slot is one (token, choice) pair, t * k + j. Grouped, the slots of an expert are consecutive
 * positions, in the order of the slots.
 */
#ifndef RML_EXPERTS_H
#define RML_EXPERTS_H

#include "product.h"

typedef struct {
    ptrdiff_t *n_active; /* experts with slots */
    ptrdiff_t *active;   /* (E,) which these are */
    ptrdiff_t *first;    /* (E + 1,) first position of each expert; the last is their end */
    ptrdiff_t *slot;     /* (S,) slot of each position */
} rml_groups;

RML_INLINE ptrdiff_t rml_groups_bytes(ptrdiff_t n_experts, ptrdiff_t n_slots) {
    return (1 + n_experts + n_experts + 1 + n_slots) * (ptrdiff_t)sizeof(ptrdiff_t);
}

RML_INLINE rml_groups rml_groups_at(char *memory, ptrdiff_t n_experts) {
    ptrdiff_t *p = (ptrdiff_t *)memory;
    return (rml_groups){p, p + 1, p + 1 + n_experts, p + 1 + n_experts + n_experts + 1};
}

RML_INLINE int rml_is_expert(int32_t id, ptrdiff_t n_experts) { return id >= 0 && id < n_experts; }

/* Counting sort of the slots by expert. An id that is no expert's gets no position. */
static void rml_group(const int32_t *ids, ptrdiff_t n_slots, ptrdiff_t n_experts, rml_groups g) {
    ptrdiff_t *end = g.first + 1, n_active = 0, position = 0;
    memset(g.first, 0, (size_t)(n_experts + 1) * sizeof *g.first);
    for (ptrdiff_t s = 0; s < n_slots; ++s)
        if (rml_is_expert(ids[s], n_experts)) ++end[ids[s]];
    for (ptrdiff_t e = 0; e < n_experts; ++e) {
        const ptrdiff_t count = end[e];
        if (count) g.active[n_active++] = e;
        end[e] = position; /* grows to the end while the slots are placed */
        position += count;
    }
    *g.n_active = n_active;
    for (ptrdiff_t s = 0; s < n_slots; ++s)
        if (rml_is_expert(ids[s], n_experts)) g.slot[end[ids[s]]++] = s;
}

/* Items [*start, *stop) of a stage with `nominal` items become the same share of the row groups of
 * all active experts, in an order in which the experts take turns: every thread gets the same part
 * of each expert's rows, however many tokens it has. */
RML_INLINE void rml_share_active(ptrdiff_t n_active, ptrdiff_t row_groups, ptrdiff_t nominal, ptrdiff_t *start,
                                 ptrdiff_t *stop) {
    *start = *start * (n_active * row_groups) / nominal;
    *stop = *stop * (n_active * row_groups) / nominal;
}

/* First row group of the a-th active expert that is not before `item`. */
RML_INLINE ptrdiff_t rml_group_of(ptrdiff_t item, ptrdiff_t a, ptrdiff_t n_active) {
    return (item - a + n_active - 1) / n_active;
}

/* A strip of results, one position a row, to the rows of their slots. */
static void rml_scatter_strip(const float *strip, ptrdiff_t n_tokens, int n, const ptrdiff_t *slot, float *out,
                              ptrdiff_t stride) {
    for (ptrdiff_t t = 0; t < n_tokens; ++t)
        memcpy(out + slot[t] * stride, strip + t * RML_ROWS, (size_t)n * sizeof *out);
}

/* out[i] += sum over j of weights[j] * results[j][i]; NaN if an id is no expert's. */
static void rml_add_mixture(const float *results, const int32_t *ids, const float *weights, ptrdiff_t k,
                            ptrdiff_t n_experts, ptrdiff_t n, float *out) {
    for (ptrdiff_t j = 0; j < k; ++j)
        if (!rml_is_expert(ids[j], n_experts)) {
            for (ptrdiff_t i = 0; i < n; ++i) out[i] = NAN;
            return;
        }
    ptrdiff_t i = 0;
    for (; i + RML_LANES <= n; i += RML_LANES) {
        lanes sum = {0};
        for (ptrdiff_t j = 0; j < k; ++j) sum = fma_lanes(splat_lanes(weights[j]), load_lanes(results + j * n + i), sum);
        store_lanes(out + i, load_lanes(out + i) + sum);
    }
    for (; i < n; ++i) {
        float sum = 0;
        for (ptrdiff_t j = 0; j < k; ++j) sum = fma1(weights[j], results[j * n + i], sum);
        out[i] += sum;
    }
}

#endif
