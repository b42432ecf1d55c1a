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

#include "attention_loops.h"

enum { RML_SPAN = 256 };
enum { RML_FEW = 8, RML_TILE = 48 }; /* few queries; the most of a tile */

/* What the kernels of a cache read of a step, see step.py. */
typedef struct {
    const int64_t *counts;     /* rows, outputs, sequences */
    const int64_t *first;      /* first row of each sequence */
    const int64_t *positions;  /* of each row */
    const int32_t *owners;     /* sequence of each row */
    const uint64_t *tables;    /* address of each sequence's page table */
} rml_step;

enum { RML_N_ROWS, RML_N_OUTPUTS, RML_N_SEQUENCES };

RML_INLINE const int32_t *rml_page_table(const rml_step *s, ptrdiff_t sequence) {
    return (const int32_t *)(uintptr_t)s->tables[sequence];
}

/* The work on one sequence of a step, laid out when the kernel runs. */
typedef struct {
    const int32_t *table;
    ptrdiff_t row;             /* its first row */
    ptrdiff_t n;               /* its rows */
    int64_t position;          /* of the first one */
    int64_t first_span;        /* oldest span that any row sees */
    ptrdiff_t parts;           /* spans or tiles of a kv head */
    ptrdiff_t tile;            /* queries of a tile; all of few */
    ptrdiff_t item;            /* its first item in the first stage */
    ptrdiff_t merged;          /* its first item in the second stage, (rows, H) */
    ptrdiff_t kept;            /* floats of shared scratch before its spans */
    int few;                   /* whether it is divided by spans, and merged afterwards */
} rml_attended;

typedef struct {
    rml_kv kv;
    rml_step step;
    const float *q;            /* (T, H, D) */
    float *out;                /* (T, H, D) */
    rml_attended *sequences;   /* of the step, and an end */
    ptrdiff_t n_kv_heads;      /* G */
    ptrdiff_t n_shared;        /* R = H / G: query heads that share a kv head */
    ptrdiff_t window;          /* 0: everything */
    float scale;
    ptrdiff_t tile;            /* queries of the largest tile */
    char **scratch;            /* where the base pointer is kept */
    ptrdiff_t shared;          /* bytes of scratch before the first thread's own */
    ptrdiff_t per_thread;
} rml_attention;

/* A row's softmax so far: its maximum at 0, the sums l at 16, acc at 32. */
enum { RML_ROW_L = 16, RML_ROW_ACC = 32 };

RML_INLINE ptrdiff_t rml_row_size(const rml_attention *a) {
    return RML_ROW_ACC + rml_round16(a->kv.d);
}

/* The queries of one tile that read one kv head, and what a thread needs to work on them. */
typedef struct {
    const rml_attention *a;
    const rml_attended *s;
    ptrdiff_t head;     /* kv head */
    ptrdiff_t token;    /* first query, a row of the step */
    ptrdiff_t n;        /* queries */
    int64_t position;   /* of the first query */
    float *q;           /* groups of SCORE_ROWS rows, each (D, rows) */
    float *p;           /* (rows, 32): scores, then weights */
    float *factor;      /* (rows): of what came before this block */
    float *span;        /* (rows, row size): the span under way */
    float *total;       /* (rows, row size): the spans before it */
    float *page;        /* two pages of keys or values, widened */
} rml_tile;

/* Lay out a thread's memory; return its size in floats. */
static ptrdiff_t rml_tile_space(rml_tile *t, float *base) {
    const ptrdiff_t rows = t->a->tile * t->a->n_shared, d = t->a->kv.d;
    ptrdiff_t n = 0;
#define RML_TAKE(field, size) (t->field = base ? base + n : NULL, n += rml_round16(size))
    RML_TAKE(q, rows * d);
    RML_TAKE(p, rows * RML_BLOCK);
    RML_TAKE(factor, rows);
    RML_TAKE(span, rows * rml_row_size(t->a));
    RML_TAKE(total, rows * rml_row_size(t->a));
    RML_TAKE(page, rml_round16(d) * RML_BLOCK);
#undef RML_TAKE
    return n;
}

RML_INLINE ptrdiff_t rml_least(ptrdiff_t a, ptrdiff_t b) { return a < b ? a : b; }

/* Oldest position that a query at `position` sees. */
RML_INLINE int64_t rml_oldest(const rml_attention *a, int64_t position) {
    return a->window > 0 && position >= a->window ? position - a->window + 1 : 0;
}

/* Divide the work: spans of few queries, tiles of many. Returns the items of the first stage. */
static ptrdiff_t rml_attend_lay_out(rml_attention *a) {
    const ptrdiff_t n_sequences = (ptrdiff_t)a->step.counts[RML_N_SEQUENCES];
    ptrdiff_t items = 0, merged = 0, kept = 0;
    a->tile = 1;
    for (ptrdiff_t i = 0; i < n_sequences; ++i) {
        rml_attended *s = &a->sequences[i];
        s->table = rml_page_table(&a->step, i);
        s->row = (ptrdiff_t)a->step.first[i];
        s->n = (ptrdiff_t)a->step.first[i + 1] - s->row;
        s->position = a->step.positions[s->row];
        s->first_span = rml_oldest(a, s->position) / RML_SPAN;
        s->item = items;
        s->merged = merged;
        s->kept = kept;
        s->few = s->n <= RML_FEW;
        if (s->few) {
            s->tile = s->n;
            s->parts = (ptrdiff_t)((s->position + s->n - 1) / RML_SPAN - s->first_span + 1);
            merged += s->n * a->n_kv_heads * a->n_shared;
            kept += s->parts * a->n_kv_heads * s->n * a->n_shared * rml_row_size(a);
        } else { /* some 48 rows, which is fastest; less if there would be too little to share */
            s->tile = rml_least(RML_TILE / a->n_shared, (s->n * a->n_kv_heads + 7) / 8);
            if (s->tile < 1) s->tile = 1;
            s->parts = (s->n + s->tile - 1) / s->tile;
        }
        if (s->tile > a->tile) a->tile = s->tile;
        items += s->parts * a->n_kv_heads;
    }
    rml_attended *end = &a->sequences[n_sequences];
    end->item = items;
    end->merged = merged;
    end->kept = kept;
    return items;
}

/* Choose queries of a sequence and a kv head, and gather the rows. */
static void rml_tile_start(rml_tile *t, const rml_attended *s, ptrdiff_t tile, ptrdiff_t head) {
    const rml_attention *a = t->a;
    const ptrdiff_t shared = a->n_shared, d = a->kv.d, heads = a->n_kv_heads * shared;
    const ptrdiff_t before = tile * s->tile;
    t->s = s;
    t->head = head;
    t->token = s->row + before;
    t->n = rml_least(s->n - before, s->tile);
    t->position = s->position + before;
    const ptrdiff_t rows = t->n * shared;
    for (ptrdiff_t r = 0; r < rows; ++r) {
        const ptrdiff_t first = r / RML_SCORE_ROWS * RML_SCORE_ROWS;
        const ptrdiff_t n = rml_least(rows - first, RML_SCORE_ROWS);
        const ptrdiff_t query = t->token + r / shared, query_head = head * shared + r % shared;
        const float *from = a->q + (query * heads + query_head) * d;
        float *to = t->q + first * d + (r - first);
        for (ptrdiff_t i = 0; i < d; ++i) to[i * n] = from[i];
    }
}

/* ---------------------------------------------------------------- softmax */

#if defined(__AVX512F__)
static const int_lanes rml_count = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#elif defined(__AVX2__)
static const int_lanes rml_count = {0, 1, 2, 3, 4, 5, 6, 7};
#else
static const int_lanes rml_count = {0, 1, 2, 3};
#endif

RML_INLINE float rml_largest(lanes v) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512)v);
#elif defined(__aarch64__)
    return vmaxvq_f32((float32x4_t)v);
#else
    float x = v[0];
    for (int i = 1; i < RML_LANES; ++i) x = x > v[i] ? x : v[i];
    return x;
#endif
}

/* Take a block's scores into a row: they become weights, of the keys start <= k < stop. Returns the
 * factor of what came before. */
RML_INLINE float rml_row_softmax(float *scores, float *row, int start, int stop) {
    enum { N = RML_BLOCK / RML_LANES, HALF = N / 2 };
    lanes p[N];
    for (int j = 0; j < N; ++j) p[j] = load_lanes(scores + RML_LANES * j);
    if (start > 0 || stop < RML_BLOCK)
        for (int j = 0; j < N; ++j) {
            const int_lanes k = rml_count + RML_LANES * j;
            p[j] = select_lanes((k >= start) & (k < stop), p[j], splat_lanes(-INFINITY));
        }
    lanes largest = splat_lanes(row[0]);
    for (int j = 0; j < N; ++j) largest = max_lanes(largest, p[j]);
    const float m = rml_largest(largest);
    /* e^0 is 1 exactly, so leaving it out changes no bit. */
    const float factor = m == row[0] ? 1.0f : exp_lanes(splat_lanes(row[0] - m))[0];
    for (int j = 0; j < N; ++j) {
        p[j] = exp_lanes(p[j] - m);
        store_lanes(scores + RML_LANES * j, p[j]);
    }
    for (int j = 0; j < HALF; ++j) {
        float *l = row + RML_ROW_L + RML_LANES * j;
        store_lanes(l, fma_lanes(load_lanes(l), splat_lanes(factor), p[j] + p[j + HALF]));
    }
    row[0] = m;
    return factor;
}

/* Add a later span to a row. */
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

/* ---------------------------------------------------------------- blocks and spans */

/* Pages of the block at `key`. A page that no query of the tile sees need not exist. */
static void rml_block_pages(const rml_tile *t, int64_t key, int32_t pages[2]) {
    const int32_t *table = t->s->table + key / RML_PAGE;
    pages[0] = table[rml_oldest(t->a, t->position) >= key + RML_PAGE];
    pages[1] = table[t->position + t->n - 1 >= key + RML_PAGE];
}

/* Take the block of keys at `key` into the rows of the queries that see some of it. */
static void rml_block(rml_tile *t, int64_t key) {
    const rml_attention *a = t->a;
    const ptrdiff_t d = a->kv.d, wide = rml_round16(d), row = rml_row_size(a), shared = a->n_shared;
    const ptrdiff_t rows = t->n * shared;
    int32_t now[2], next[2];
    rml_block_pages(t, key, now);
    rml_block_pages(t, key + RML_BLOCK < t->position + t->n ? key + RML_BLOCK : key, next);

    /* Query i sees the keys start[i] <= k < stop[i] of the block, if any. */
    int start[RML_TILE], stop[RML_TILE];
    ptrdiff_t from = t->n, to = 0; /* queries that see some */
    for (ptrdiff_t i = 0; i < t->n; ++i) {
        const int64_t newest = t->position + i, oldest = rml_oldest(a, newest);
        start[i] = oldest > key ? (int)rml_least(oldest - key, RML_BLOCK) : 0;
        stop[i] = newest >= key ? (int)rml_least(newest - key + 1, RML_BLOCK) : 0;
        if (start[i] < stop[i]) {
            from = rml_least(from, i);
            to = i + 1;
        }
    }

    const rml_pages keys = rml_key_pages(&a->kv, t->head, now, next, t->page);
    for (ptrdiff_t r = from * shared / RML_SCORE_ROWS * RML_SCORE_ROWS; r < to * shared;
         r += RML_SCORE_ROWS)
        rml_scores((int)rml_least(rows - r, RML_SCORE_ROWS), t->q + r * d, d, &keys, a->scale,
                   t->p + r * RML_BLOCK);

    for (ptrdiff_t r = from * shared; r < to * shared; ++r)
        t->factor[r] = rml_row_softmax(t->p + r * RML_BLOCK, t->span + r * row, start[r / shared],
                                       stop[r / shared]);

    const rml_pages values = rml_value_pages(&a->kv, t->head, now, next, t->page);
    for (ptrdiff_t i = from, n; i < to; i += n) {
        for (n = 1; i + n < to && start[i + n] == start[i] && stop[i + n] == stop[i];) ++n;
        const ptrdiff_t r = i * shared;
        rml_values(n * shared, t->p + r * RML_BLOCK, t->factor + r, &values, wide, start[i],
                   stop[i], t->span + r * row + RML_ROW_ACC, row);
    }
}

/* The softmax of every row over one span of keys, into t->span. */
static void rml_span(rml_tile *t, int64_t span) {
    const ptrdiff_t rows = t->n * t->a->n_shared, row = rml_row_size(t->a);
    const int64_t oldest = rml_oldest(t->a, t->position), first = span * RML_SPAN;
    const int64_t stop = rml_least(first + RML_SPAN, t->position + t->n);
    for (ptrdiff_t r = 0; r < rows; ++r) {
        memset(t->span + r * row, 0, (size_t)row * sizeof(float));
        t->span[r * row] = -INFINITY;
    }
    for (int64_t key = oldest > first ? oldest / RML_BLOCK * RML_BLOCK : first; key < stop;
         key += RML_BLOCK)
        rml_block(t, key);
}

/* ---------------------------------------------------------------- what the threads are given */

RML_INLINE rml_tile rml_tile_of(const rml_attention *a, int thread) {
    rml_tile t = {.a = a};
    rml_tile_space(&t, (float *)(*a->scratch + a->shared + thread * a->per_thread));
    return t;
}

/* A tile of many queries: all spans, one after the other. */
static void rml_attend_tile(rml_tile *t, const rml_attended *s, ptrdiff_t item) {
    const rml_attention *a = t->a;
    const ptrdiff_t row = rml_row_size(a), shared = a->n_shared, heads = a->n_kv_heads * shared;
    /* Of a head's tiles, late ones see more keys than early ones: they take turns. */
    const ptrdiff_t turn = item % s->parts;
    rml_tile_start(t, s, turn % 2 ? s->parts - 1 - turn / 2 : turn / 2, item / s->parts);
    const int64_t last = (t->position + t->n - 1) / RML_SPAN;
    for (int64_t span = rml_oldest(a, t->position) / RML_SPAN; span <= last; ++span) {
        rml_span(t, span);
        for (ptrdiff_t r = 0; r < t->n * shared; ++r) {
            const int64_t position = t->position + r / shared;
            const int64_t first = rml_oldest(a, position) / RML_SPAN;
            if (span == first)
                memcpy(t->total + r * row, t->span + r * row, (size_t)row * sizeof(float));
            else if (first < span && span <= position / RML_SPAN)
                rml_merge(t->total + r * row, t->span + r * row, row);
        }
    }
    for (ptrdiff_t r = 0; r < t->n * shared; ++r) {
        const ptrdiff_t to = (t->token + r / shared) * heads + t->head * shared + r % shared;
        rml_finish(t->total + r * row, a->out + to * a->kv.d, a->kv.d);
    }
}

/* Floats that a kv head's span of a sequence of few queries takes. */
RML_INLINE ptrdiff_t rml_span_size(const rml_attention *a, const rml_attended *s) {
    return s->n * a->n_shared * rml_row_size(a);
}

/* The first stage. Items of a sequence are tiles, or spans whose results are kept in the shared
 * scratch memory, of one kv head after another. */
static void rml_attend_parts(const rml_attention *a, ptrdiff_t start, ptrdiff_t stop, int thread) {
    const rml_attended *s = a->sequences, *started = NULL;
    rml_tile t = rml_tile_of(a, thread);
    float *own = t.span;
    for (ptrdiff_t item = start; item < stop; ++item) {
        while (s[1].item <= item) ++s;
        const ptrdiff_t part = item - s->item;
        if (!s->few) {
            t.span = own;
            rml_attend_tile(&t, s, part);
            continue;
        }
        if (started != s || part % s->parts == 0) rml_tile_start(&t, s, 0, part / s->parts);
        started = s;
        t.span = (float *)*a->scratch + s->kept + part * rml_span_size(a, s);
        rml_span(&t, s->first_span + part % s->parts);
    }
}

/* The second stage: items are rows of sequences with few queries, whose spans are merged. */
static void rml_attend_merge(const rml_attention *a, ptrdiff_t start, ptrdiff_t stop) {
    const ptrdiff_t shared = a->n_shared, heads = a->n_kv_heads * shared, row = rml_row_size(a);
    const rml_attended *s = a->sequences;
    for (ptrdiff_t item = start; item < stop; ++item) {
        while (s[1].merged <= item) ++s;
        const ptrdiff_t i = item - s->merged, token = i / heads, head = i % heads;
        const ptrdiff_t size = rml_span_size(a, s);
        const int64_t position = s->position + token;
        float *rows = (float *)*a->scratch + s->kept + head / shared * s->parts * size +
                      (token * shared + head % shared) * row;
        const ptrdiff_t from = (ptrdiff_t)(rml_oldest(a, position) / RML_SPAN - s->first_span);
        float *total = rows + from * size;
        for (ptrdiff_t k = from + 1; k <= position / RML_SPAN - s->first_span; ++k)
            rml_merge(total, rows + k * size, row);
        rml_finish(total, a->out + ((s->row + token) * heads + head) * a->kv.d, a->kv.d);
    }
}

#endif
