/* Attention of a tile of queries over the pages of one kv head.
 *
 * A row is one query head of one query. Keys are taken in blocks of 32, which are two whole pages,
 * and the blocks of 256 positions form a span; both are aligned to absolute positions, so that the
 * order of every addition depends on the query's position alone:
 *
 *   score   one accumulator, dimension by dimension; lanes are keys
 *   block   m' = max(m, scores), a = e^(m - m'), p = e^(score - m'); sixteen sums l = l * a + p
 *   values  one accumulator a dimension, acc = acc * a, then + p * value key by key
 *   span    starts with m = -inf, l = 0, acc = 0; ended spans are merged in order: both scaled to
 *           the larger maximum, then added
 *   result  acc times the reciprocal of the sum of l
 *
 * Slots that a query does not see may hold anything: their scores are replaced, their values are
 * not read for it.
 */
#ifndef RML_ATTENTION_H
#define RML_ATTENTION_H

#include "half.h"

enum { RML_PAGE = 16, RML_BLOCK = 32, RML_SPAN = 256 };

/* What the registers of a level hold in the two innermost loops: rows and vectors. */
#if defined(__AVX512F__)
enum { RML_SCORE_ROWS = 12, RML_SCORE_VECS = 2, RML_VALUE_ROWS = 6, RML_VALUE_VECS = 4 };
#elif defined(__AVX2__)
enum { RML_SCORE_ROWS = 6, RML_SCORE_VECS = 2, RML_VALUE_ROWS = 6, RML_VALUE_VECS = 2 };
#else
enum { RML_SCORE_ROWS = 6, RML_SCORE_VECS = 2, RML_VALUE_ROWS = 3, RML_VALUE_VECS = 4 };
#endif

typedef enum { RML_KV_F32, RML_KV_F16, RML_KV_INT8 } rml_kv_type;

typedef struct {
    const float *q;           /* (T, H, D) */
    float *out;               /* (T, H, D) */
    const char *k_pages;      /* (n_pages, n_layers, G, D, 16) from the layer on */
    const char *v_pages;      /* (n_pages, n_layers, G, 16, D) from the layer on */
    const float *k_scales;    /* (n_pages, n_layers, G, D/group, 16) from the layer on, or NULL */
    const float *v_scales;    /* (n_pages, n_layers, G, 16, D/group) from the layer on, or NULL */
    const int32_t *page_table;
    const int64_t *position;  /* of the first query */
    ptrdiff_t n_tokens;       /* T */
    ptrdiff_t n_kv_heads;     /* G */
    ptrdiff_t n_shared;       /* R = H / G: query heads that share a kv head */
    ptrdiff_t d;              /* D */
    ptrdiff_t page_heads;     /* n_layers * G: heads from a page to the next */
    ptrdiff_t scale_group;    /* dimensions that share a scale */
    ptrdiff_t window;         /* 0: everything */
    rml_kv_type kv_type;
    float scale;
    ptrdiff_t tile;           /* queries of a tile */
    char **scratch;           /* where the base pointer is kept */
    ptrdiff_t shared;         /* bytes of scratch before the first thread's own */
    ptrdiff_t per_thread;
} rml_attention;

/* A row's softmax so far: its maximum at 0, the sums l at 16, acc at 32. */
enum { RML_ROW_L = 16, RML_ROW_ACC = 32 };

RML_INLINE ptrdiff_t rml_round16(ptrdiff_t n) { return (n + 15) & ~(ptrdiff_t)15; }

RML_INLINE ptrdiff_t rml_row_size(const rml_attention *a) { return RML_ROW_ACC + rml_round16(a->d); }

/* The queries of one tile that read one kv head, and what a thread needs to work on them. */
typedef struct {
    const rml_attention *a;
    ptrdiff_t head;     /* kv head */
    ptrdiff_t token;    /* first query */
    ptrdiff_t n;        /* queries */
    int64_t position;   /* of the first query */
    float *q;           /* groups of SCORE_ROWS rows, each (D, rows) */
    float *p;           /* (rows, 32): scores, then weights */
    float *m;           /* (rows): maximum with this block's scores */
    float *factor;      /* (rows): of what came before */
    float *span;        /* (rows, row size): the span under way */
    float *total;       /* (rows, row size): the spans before it */
    float *keys;        /* (2, D, 16) */
    float *values;      /* (32, D rounded up) */
} rml_tile;

/* Lay out a thread's memory; return its size in floats. */
static ptrdiff_t rml_tile_space(rml_tile *t, float *base) {
    const rml_attention *a = t->a;
    const ptrdiff_t rows = a->tile * a->n_shared;
    ptrdiff_t n = 0;
#define RML_TAKE(field, size) (t->field = base ? base + n : NULL, n += rml_round16(size))
    RML_TAKE(q, rows * a->d);
    RML_TAKE(p, rows * RML_BLOCK);
    RML_TAKE(m, rows);
    RML_TAKE(factor, rows + RML_LANES);
    RML_TAKE(span, rows * rml_row_size(a));
    RML_TAKE(total, rows * rml_row_size(a));
    RML_TAKE(keys, a->d * RML_BLOCK);
    RML_TAKE(values, rml_round16(a->d) * RML_BLOCK);
#undef RML_TAKE
    return n;
}

/* Oldest position that a query at `position` sees. */
RML_INLINE int64_t rml_oldest(const rml_attention *a, int64_t position) {
    return a->window > 0 && position >= a->window ? position - a->window + 1 : 0;
}

/* ---------------------------------------------------------------- pages as float32 */

RML_INLINE lanes rml_load_codes(const int8_t *p) {
#if defined(__AVX512F__)
    return (lanes)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
#elif defined(__AVX2__)
    return (lanes)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
#else
    return (lanes){p[0], p[1], p[2], p[3]};
#endif
}

/* Keys of a page, (D, 16). */
static const float *rml_page_keys(const rml_attention *a, ptrdiff_t head, int32_t page, float *to) {
    const ptrdiff_t at = page * a->page_heads + head, n = a->d * RML_PAGE;
    if (a->kv_type == RML_KV_F32) return (const float *)a->k_pages + at * n;
    if (a->kv_type == RML_KV_F16) {
        const uint16_t *from = (const uint16_t *)a->k_pages + at * n;
        for (ptrdiff_t i = 0; i < n; i += RML_LANES) store_lanes(to + i, load_half_lanes(from + i));
        return to;
    }
    const int8_t *from = (const int8_t *)a->k_pages + at * n;
    const ptrdiff_t group = a->scale_group * RML_PAGE;
    const float *scales = a->k_scales + at * (a->d / a->scale_group) * RML_PAGE;
    for (ptrdiff_t first = 0; first < n; first += group, scales += RML_PAGE)
        for (int j = 0; j < RML_PAGE; j += RML_LANES) {
            const lanes scale = load_lanes(scales + j);
            for (ptrdiff_t i = first + j; i < first + group; i += RML_PAGE)
                store_lanes(to + i, rml_load_codes(from + i) * scale);
        }
    return to;
}

/* Values of a page, (16, D rounded up), zeros in the gap. */
static const float *rml_page_values(const rml_attention *a, ptrdiff_t head, int32_t page,
                                    float *to) {
    const ptrdiff_t at = page * a->page_heads + head, d = a->d, wide = rml_round16(d);
    const ptrdiff_t group = a->scale_group, vectors = d / 16 * 16;
    const float *f32 = (const float *)a->v_pages + at * d * RML_PAGE;
    const uint16_t *f16 = (const uint16_t *)a->v_pages + at * d * RML_PAGE;
    const int8_t *codes = (const int8_t *)a->v_pages + at * d * RML_PAGE;
    const float *scales = a->v_scales + at * (d / group) * RML_PAGE;
    if (a->kv_type == RML_KV_F32 && d == wide) return f32;
    for (ptrdiff_t k = 0; k < RML_PAGE; ++k, to += wide) {
        ptrdiff_t i = 0;
        if (a->kv_type == RML_KV_F32) {
            for (; i < d; ++i) to[i] = f32[k * d + i];
        } else if (a->kv_type == RML_KV_F16) {
            for (; i < vectors; i += RML_LANES)
                store_lanes(to + i, load_half_lanes(f16 + k * d + i));
            for (; i < d; ++i) to[i] = rml_half_to_float(f16[k * d + i]);
        } else {
            const float *s = scales + k * (d / group);
            if (group >= 16)
                for (; i < d; i += RML_LANES)
                    store_lanes(to + i, rml_load_codes(codes + k * d + i) * s[i / group]);
            for (; i < d; ++i) to[i] = (float)codes[k * d + i] * s[i / group];
        }
        for (; i < wide; ++i) to[i] = 0;
    }
    return to - RML_PAGE * wide;
}

/* ---------------------------------------------------------------- innermost loops */

/* Scores of n rows and a few vectors of keys, the first at k. */
RML_INLINE void rml_score_block(int n, const float *q, ptrdiff_t d, const float *k0, const float *k1,
                                float scale, float *scores) {
    lanes sum[RML_SCORE_ROWS][RML_SCORE_VECS];
#pragma GCC unroll 12
    for (int r = 0; r < n; ++r)
#pragma GCC unroll 4
        for (int j = 0; j < RML_SCORE_VECS; ++j) sum[r][j] = splat_lanes(0);
    for (ptrdiff_t i = 0; i < d; ++i) {
        lanes key[2] = {load_lanes(k0 + RML_PAGE * i), load_lanes(k1 + RML_PAGE * i)};
#pragma GCC unroll 12
        for (int r = 0; r < n; ++r) {
            const lanes x = splat_lanes(q[i * n + r]);
#pragma GCC unroll 4
            for (int j = 0; j < RML_SCORE_VECS; ++j) sum[r][j] = fma_lanes(x, key[j], sum[r][j]);
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < n; ++r)
#pragma GCC unroll 4
        for (int j = 0; j < RML_SCORE_VECS; ++j)
            store_lanes(scores + r * RML_BLOCK + RML_LANES * j, sum[r][j] * scale);
}

/* Scores of n <= SCORE_ROWS rows, q being (D, n), against a block's two pages. */
static void rml_scores(int n, const float *q, ptrdiff_t d, const float *const page[2], float scale,
                       float *scores) {
    /* A vector is a whole page with 16 lanes; otherwise two vectors are half a page or a whole. */
    for (int j = 0; j < RML_BLOCK; j += RML_SCORE_VECS * RML_LANES) {
        const float *k0 = page[j / RML_PAGE] + j % RML_PAGE;
        const float *k1 = (int)RML_LANES == (int)RML_PAGE ? page[1] : k0 + RML_LANES;
        switch (n) {
#define RML_CASE(N)                                                                         \
    case N:                                                                                 \
        if (N <= (int)RML_SCORE_ROWS) rml_score_block(N, q, d, k0, k1, scale, scores + j);       \
        break;
            RML_CASE(1) RML_CASE(2) RML_CASE(3) RML_CASE(4) RML_CASE(5) RML_CASE(6)
            RML_CASE(7) RML_CASE(8) RML_CASE(9) RML_CASE(10) RML_CASE(11) RML_CASE(12)
#undef RML_CASE
        }
    }
}

/* acc = acc * factor + p V: n rows, some vectors of dimensions, the keys start <= k < stop. */
RML_INLINE void rml_value_block(int n, int vecs, const float *p, const float *factor,
                                const float *const page[2], ptrdiff_t column, ptrdiff_t wide,
                                int start, int stop, float *acc, ptrdiff_t row) {
    lanes sum[RML_VALUE_ROWS][RML_VALUE_VECS];
#pragma GCC unroll 8
    for (int r = 0; r < n; ++r)
#pragma GCC unroll 4
        for (int j = 0; j < vecs; ++j)
            sum[r][j] = load_lanes(acc + r * row + RML_LANES * j) * factor[r];
    for (int k = start; k < stop;) {
        const float *v = page[k / RML_PAGE] + k % RML_PAGE * wide + column;
        const int end = k < RML_PAGE && stop > RML_PAGE ? RML_PAGE : stop;
        for (; k < end; ++k, v += wide) {
            lanes value[RML_VALUE_VECS];
#pragma GCC unroll 4
            for (int j = 0; j < vecs; ++j) value[j] = load_lanes(v + RML_LANES * j);
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

/* The same for any number of rows and all dimensions. */
static void rml_values(ptrdiff_t rows, const float *p, const float *factor,
                       const float *const page[2], ptrdiff_t wide, int start, int stop, float *acc,
                       ptrdiff_t row) {
    enum { FULL = RML_VALUE_VECS * RML_LANES, PART = 16 / RML_LANES };
    for (ptrdiff_t r = 0; r < rows; r += RML_VALUE_ROWS) {
        const ptrdiff_t left = rows - r;
        for (ptrdiff_t i = 0; i < wide;) {
            const int full = wide - i >= FULL;
            float *at = acc + r * row + i;
#define RML_CASE(N)                                                                             \
    case N:                                                                                     \
        if (N > RML_VALUE_ROWS) break;                                                          \
        if (full)                                                                               \
            rml_value_block(N, RML_VALUE_VECS, p + r * RML_BLOCK, factor + r, page, i, wide,    \
                            start, stop, at, row);                                              \
        else                                                                                    \
            rml_value_block(N, PART, p + r * RML_BLOCK, factor + r, page, i, wide, start, stop, \
                            at, row);                                                           \
        break;
            switch (left < RML_VALUE_ROWS ? left : RML_VALUE_ROWS) {
                RML_CASE(1) RML_CASE(2) RML_CASE(3) RML_CASE(4) RML_CASE(5) RML_CASE(6)
            }
#undef RML_CASE
            i += full ? FULL : 16;
        }
    }
}

/* ---------------------------------------------------------------- softmax */

RML_INLINE float rml_largest(lanes v) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512)v);
#else
    float x = v[0];
    for (int i = 1; i < RML_LANES; ++i) x = x > v[i] ? x : v[i];
    return x;
#endif
}

/* Hide the scores of keys outside start <= k < stop, and find the new maximum of a row. */
RML_INLINE float rml_row_max(float *scores, float m, int start, int stop) {
    for (int k = 0; k < start; ++k) scores[k] = -INFINITY;
    for (int k = stop; k < RML_BLOCK; ++k) scores[k] = -INFINITY;
    lanes largest = splat_lanes(m);
    for (int k = 0; k < RML_BLOCK; k += RML_LANES)
        largest = max_lanes(largest, load_lanes(scores + k));
    return rml_largest(largest);
}

/* Scores to weights, and their sums. */
RML_INLINE void rml_row_weights(float *scores, float m, float factor, float *l) {
    lanes p[RML_BLOCK / RML_LANES];
    for (int j = 0; j < RML_BLOCK / RML_LANES; ++j) {
        p[j] = exp_lanes(load_lanes(scores + RML_LANES * j) - m);
        store_lanes(scores + RML_LANES * j, p[j]);
    }
    for (int j = 0; j < 16 / RML_LANES; ++j)
        store_lanes(l + RML_LANES * j, fma_lanes(load_lanes(l + RML_LANES * j), splat_lanes(factor),
                                                 p[j] + p[j + 16 / RML_LANES]));
}

/* ---------------------------------------------------------------- blocks, spans, tiles */

/* Add a block of keys to the rows of the queries that see some of them. */
static void rml_block(rml_tile *t, int64_t first_key) {
    const rml_attention *a = t->a;
    const ptrdiff_t d = a->d, wide = rml_round16(d), row = rml_row_size(a), shared = a->n_shared;
    const int64_t last_key = t->position + t->n - 1;
    /* Queries before `from` are too old, those from `to` on too new; between `full_from` and
     * `full_to` they see the whole block. */
    ptrdiff_t from = t->n, to = 0, full_from = t->n, full_to = 0;
    for (ptrdiff_t i = 0; i < t->n; ++i) {
        const int64_t position = t->position + i, oldest = rml_oldest(a, position);
        if (position >= first_key && oldest < first_key + RML_BLOCK) {
            if (i < from) from = i;
            to = i + 1;
            if (oldest <= first_key && position >= first_key + RML_BLOCK - 1) {
                if (i < full_from) full_from = i;
                full_to = i + 1;
            }
        }
    }
    /* A page that no query sees need not exist. */
    const int32_t *pages = a->page_table + first_key / RML_PAGE;
    const int only0 = last_key < first_key + RML_PAGE;
    const int only1 = rml_oldest(a, t->position) >= first_key + RML_PAGE;
    const int32_t page0 = pages[only1], page1 = pages[!only0];

    const float *keys[2] = {rml_page_keys(a, t->head, page0, t->keys),
                            rml_page_keys(a, t->head, page1, t->keys + d * RML_PAGE)};
    const ptrdiff_t n_rows = t->n * shared;
    for (ptrdiff_t r = from * shared / RML_SCORE_ROWS * RML_SCORE_ROWS; r < to * shared;
         r += RML_SCORE_ROWS) {
        const int n = n_rows - r < RML_SCORE_ROWS ? (int)(n_rows - r) : RML_SCORE_ROWS;
        rml_scores(n, t->q + r * d, d, keys, a->scale, t->p + r * RML_BLOCK);
    }

    for (ptrdiff_t i = from; i < to; ++i) {
        const int64_t position = t->position + i, oldest = rml_oldest(a, position);
        const int start = oldest > first_key ? (int)(oldest - first_key) : 0;
        const int stop = position - first_key < RML_BLOCK ? (int)(position - first_key + 1) : RML_BLOCK;
        for (ptrdiff_t r = i * shared; r < (i + 1) * shared; ++r) {
            const float m = t->span[r * row];
            t->m[r] = rml_row_max(t->p + r * RML_BLOCK, m, start, stop);
            t->factor[r] = m - t->m[r];
        }
    }
    for (ptrdiff_t r = from * shared; r < to * shared; r += RML_LANES)
        store_lanes(t->factor + r, exp_lanes(load_lanes(t->factor + r)));
    for (ptrdiff_t r = from * shared; r < to * shared; ++r) {
        t->span[r * row] = t->m[r];
        rml_row_weights(t->p + r * RML_BLOCK, t->m[r], t->factor[r], t->span + r * row + RML_ROW_L);
    }

    const float *values[2] = {rml_page_values(a, t->head, page0, t->values),
                              rml_page_values(a, t->head, page1, t->values + RML_PAGE * wide)};
    for (ptrdiff_t i = from; i < to;) {
        const int64_t position = t->position + i, oldest = rml_oldest(a, position);
        const int start = oldest > first_key ? (int)(oldest - first_key) : 0;
        const int stop = position - first_key < RML_BLOCK ? (int)(position - first_key + 1) : RML_BLOCK;
        const ptrdiff_t n = i == full_from ? full_to - full_from : 1, r = i * shared;
        rml_values(n * shared, t->p + r * RML_BLOCK, t->factor + r, values, wide, start, stop,
                   t->span + r * row + RML_ROW_ACC, row);
        i += n;
    }
}

/* The softmax of every row over one span of keys, into t->span. */
static void rml_span(rml_tile *t, int64_t span) {
    const rml_attention *a = t->a;
    const int64_t last = t->position + t->n - 1, oldest = rml_oldest(a, t->position);
    const ptrdiff_t rows = t->n * a->n_shared, row = rml_row_size(a);
    for (ptrdiff_t r = 0; r < rows; ++r) {
        memset(t->span + r * row, 0, (size_t)row * sizeof(float));
        t->span[r * row] = -INFINITY;
    }
    int64_t key = span * RML_SPAN, stop = key + RML_SPAN;
    if (oldest > key) key = oldest / RML_BLOCK * RML_BLOCK;
    if (stop > last + 1) stop = last + 1;
    for (; key < stop; key += RML_BLOCK) rml_block(t, key);
}

/* Add the softmax over a later span to a row. */
static void rml_merge(float *total, const float *span, ptrdiff_t row) {
    const float m = total[0] > span[0] ? total[0] : span[0];
    float factors[RML_LANES] = {total[0] - m, span[0] - m};
    store_lanes(factors, exp_lanes(load_lanes(factors)));
    total[0] = m;
    for (ptrdiff_t i = RML_ROW_L; i < row; i += RML_LANES)
        store_lanes(total + i, fma_lanes(load_lanes(span + i), splat_lanes(factors[1]),
                                         load_lanes(total + i) * factors[0]));
}

static void rml_finish(const float *total, float *out, ptrdiff_t d) {
    const float scale = 1.0f / sum16(load16(total + RML_ROW_L));
    for (ptrdiff_t i = 0; i < d; ++i) out[i] = total[RML_ROW_ACC + i] * scale;
}

RML_INLINE ptrdiff_t rml_min_size(ptrdiff_t a, ptrdiff_t b) { return a < b ? a : b; }

/* Choose a tile and a kv head, and gather the queries. */
static void rml_tile_start(rml_tile *t, ptrdiff_t tile, ptrdiff_t head) {
    const rml_attention *a = t->a;
    const ptrdiff_t shared = a->n_shared, d = a->d, heads = a->n_kv_heads * shared;
    t->head = head;
    t->token = tile * a->tile;
    t->n = rml_min_size(a->n_tokens - t->token, a->tile);
    t->position = *a->position + t->token;
    const ptrdiff_t rows = t->n * shared;
    memset(t->factor, 0, (size_t)(rows + RML_LANES) * sizeof(float));
    for (ptrdiff_t r = 0; r < rows; ++r) {
        const ptrdiff_t first = r / RML_SCORE_ROWS * RML_SCORE_ROWS;
        const ptrdiff_t n = rml_min_size(rows - first, RML_SCORE_ROWS);
        const float *from = a->q + ((t->token + r / shared) * heads + head * shared + r % shared) * d;
        float *to = t->q + first * d + (r - first);
        for (ptrdiff_t i = 0; i < d; ++i) to[i * n] = from[i];
    }
}

/* ---------------------------------------------------------------- what the threads are given */

RML_INLINE rml_tile rml_tile_of(const rml_attention *a, int thread) {
    rml_tile t = {.a = a};
    rml_tile_space(&t, (float *)(*a->scratch + a->shared + thread * a->per_thread));
    return t;
}

/* Items are tiles, one kv head after another. Of a head's tiles, late ones see more keys than
 * early ones: they take turns. */
static void rml_attend_tiles(const rml_attention *a, ptrdiff_t start, ptrdiff_t stop, int thread) {
    const ptrdiff_t tiles = (a->n_tokens + a->tile - 1) / a->tile, row = rml_row_size(a);
    const ptrdiff_t shared = a->n_shared, heads = a->n_kv_heads * shared;
    rml_tile t = rml_tile_of(a, thread);
    for (ptrdiff_t item = start; item < stop; ++item) {
        const ptrdiff_t turn = item % tiles;
        rml_tile_start(&t, turn % 2 ? tiles - 1 - turn / 2 : turn / 2, item / tiles);
        const int64_t last = (t.position + t.n - 1) / RML_SPAN;
        for (int64_t span = rml_oldest(a, t.position) / RML_SPAN; span <= last; ++span) {
            rml_span(&t, span);
            for (ptrdiff_t i = 0; i < t.n; ++i) {
                const int64_t position = t.position + i, first = rml_oldest(a, position) / RML_SPAN;
                if (span < first || span > position / RML_SPAN) continue;
                for (ptrdiff_t r = i * shared; r < (i + 1) * shared; ++r) {
                    float *total = t.total + r * row, *one = t.span + r * row;
                    if (span == first)
                        memcpy(total, one, (size_t)row * sizeof *one);
                    else
                        rml_merge(total, one, row);
                }
            }
        }
        for (ptrdiff_t r = 0; r < t.n * shared; ++r) {
            const ptrdiff_t to = (t.token + r / shared) * heads + t.head * shared + r % shared;
            rml_finish(t.total + r * row, a->out + to * a->d, a->d);
        }
    }
}

/* For a single tile, items are spans, one kv head after another; what becomes of each is kept in
 * the shared scratch memory. How many there are depends on the position: `parts` is the largest
 * number, and those of today are dealt out in its stead. */
static void rml_attend_spans(const rml_attention *a, ptrdiff_t start, ptrdiff_t stop,
                             ptrdiff_t parts, int thread) {
    const int64_t first = rml_oldest(a, *a->position) / RML_SPAN;
    const ptrdiff_t spans = (*a->position + a->n_tokens - 1) / RML_SPAN - first + 1;
    const ptrdiff_t items = spans * a->n_kv_heads;
    const ptrdiff_t size = a->n_tokens * a->n_shared * rml_row_size(a);
    rml_tile t = rml_tile_of(a, thread);
    for (ptrdiff_t item = items * start / parts; item < items * stop / parts; ++item) {
        rml_tile_start(&t, 0, item / spans);
        t.span = (float *)*a->scratch + item * size;
        rml_span(&t, first + item % spans);
    }
}

/* The stage after it: items are rows (T, H), whose spans are merged. */
static void rml_attend_merge(const rml_attention *a, ptrdiff_t start, ptrdiff_t stop) {
    const int64_t first = rml_oldest(a, *a->position) / RML_SPAN;
    const ptrdiff_t spans = (*a->position + a->n_tokens - 1) / RML_SPAN - first + 1;
    const ptrdiff_t shared = a->n_shared, heads = a->n_kv_heads * shared, row = rml_row_size(a);
    const ptrdiff_t size = a->n_tokens * shared * row;
    for (ptrdiff_t i = start; i < stop; ++i) {
        const ptrdiff_t token = i / heads, head = i % heads;
        const int64_t position = *a->position + token;
        float *rows = (float *)*a->scratch + head / shared * spans * size +
                      (token * shared + head % shared) * row;
        const ptrdiff_t from = rml_oldest(a, position) / RML_SPAN - first;
        float *total = rows + from * size;
        for (ptrdiff_t s = from + 1; s <= position / RML_SPAN - first; ++s)
            rml_merge(total, rows + s * size, row);
        rml_finish(total, a->out + i * a->d, a->d);
    }
}

#endif
