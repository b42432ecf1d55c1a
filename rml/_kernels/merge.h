/* Merging of words: look-ups, a heap of candidates, and the loops over one word.
 *
 * Short words keep the value of every pair at hand and look through them for the best; long ones
 * keep candidates in a binary heap and their parts in a linked list, as the definition does.
 */
#ifndef RML_MERGE_H
#define RML_MERGE_H

#include <stdint.h>
#include <stddef.h>
#include <string.h>

#define RML_MERGE_FACTOR 0x9E3779B97F4A7C15ull
enum { RML_MERGE_SHORT = 32, RML_MERGE_HASHED = 32 };

/* Of two candidates the one with the lower key goes first, then the one further left. */
typedef struct {
    int64_t key;
    int32_t start, middle, end;
} rml_candidate;

/* A part of a long word: its id (-1 once it is gone), and its neighbours' numbers. */
typedef struct {
    int32_t id, previous, following;
} rml_part;

static inline size_t rml_merge_scratch(size_t longest) {
    /* A word of n parts has n - 1 pairs at first; every merge takes one away and adds up to two. */
    return longest * (2 * sizeof(rml_candidate) + sizeof(rml_part));
}

static inline int rml_goes_first(const rml_candidate *a, const rml_candidate *b) {
    return a->key != b->key ? a->key < b->key : a->start < b->start;
}

static void rml_heap_push(rml_candidate *heap, size_t *n, rml_candidate entry) {
    size_t i = (*n)++;
    while (i) {
        size_t parent = (i - 1) / 2;
        if (!rml_goes_first(&entry, &heap[parent])) break;
        heap[i] = heap[parent];
        i = parent;
    }
    heap[i] = entry;
}

static rml_candidate rml_heap_pop(rml_candidate *heap, size_t *n) {
    rml_candidate top = heap[0], entry = heap[--*n];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= *n) break;
        if (child + 1 < *n && rml_goes_first(&heap[child + 1], &heap[child])) ++child;
        if (!rml_goes_first(&heap[child], &entry)) break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = entry;
    return top;
}

/* ---- pairs of ids ---- */

typedef struct {
    const int64_t *slots; /* (1 << bits, 2): key, value; key -1 where nothing stands */
    int bits;
} rml_pairs;

/* rank << 32 | merged, or INT64_MAX if the pair has no entry. */
static inline int64_t rml_pair(const rml_pairs *t, int32_t left, int32_t right) {
    int64_t key = (int64_t)left << 32 | (uint32_t)right;
    size_t mask = ((size_t)1 << t->bits) - 1;
    size_t i = (size_t)((uint64_t)key * RML_MERGE_FACTOR >> (64 - t->bits));
    for (;; i = (i + 1) & mask) {
        if (t->slots[2 * i] == key) return t->slots[2 * i + 1];
        if (t->slots[2 * i] < 0) return INT64_MAX;
    }
}

static size_t rml_bpe_short(const rml_pairs *t, int32_t *ids, size_t n) {
    int64_t values[RML_MERGE_SHORT];
    for (size_t i = 0; i + 1 < n; ++i) values[i] = rml_pair(t, ids[i], ids[i + 1]);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; ++i)
            if (values[i] < values[best]) best = i;
        if (values[best] == INT64_MAX) break;
        ids[best] = (int32_t)values[best];
        --n;
        memmove(ids + best + 1, ids + best + 2, (n - best - 1) * sizeof *ids);
        if (best + 1 < n) {
            memmove(values + best + 1, values + best + 2, (n - best - 2) * sizeof *values);
            values[best] = rml_pair(t, ids[best], ids[best + 1]);
        }
        if (best) values[best - 1] = rml_pair(t, ids[best - 1], ids[best]);
    }
    return n;
}

static size_t rml_bpe_long(const rml_pairs *t, int32_t *ids, size_t n, char *scratch) {
    rml_candidate *heap = (rml_candidate *)scratch;
    rml_part *parts = (rml_part *)(heap + 2 * n);
    size_t waiting = 0, left = 0;
    int32_t end = (int32_t)n;
    for (int32_t i = 0; i < end; ++i) {
        parts[i] = (rml_part){ids[i], i - 1, i + 1};
        int64_t value = i + 1 < end ? rml_pair(t, ids[i], ids[i + 1]) : INT64_MAX;
        if (value != INT64_MAX)
            rml_heap_push(heap, &waiting, (rml_candidate){value, i, i + 1, 0});
    }
    while (waiting) {
        rml_candidate c = rml_heap_pop(heap, &waiting);
        int32_t i = c.start, j = parts[i].following;
        if (parts[i].id < 0 || j == end || rml_pair(t, parts[i].id, parts[j].id) != c.key)
            continue;
        parts[i].id = (int32_t)c.key;
        parts[j].id = -1;
        int32_t k = parts[i].following = parts[j].following, h = parts[i].previous;
        if (k != end) {
            parts[k].previous = i;
            int64_t value = rml_pair(t, parts[i].id, parts[k].id);
            if (value != INT64_MAX)
                rml_heap_push(heap, &waiting, (rml_candidate){value, i, k, 0});
        }
        if (h >= 0) {
            int64_t value = rml_pair(t, parts[h].id, parts[i].id);
            if (value != INT64_MAX)
                rml_heap_push(heap, &waiting, (rml_candidate){value, h, i, 0});
        }
    }
    for (int32_t i = 0; i < end; i = parts[i].following) ids[left++] = parts[i].id;
    return left;
}

/* One word of n symbols, in place. */
static void rml_bpe_word(const rml_pairs *t, int32_t *symbols, size_t n, char *scratch) {
    size_t left = 0;
    for (size_t i = 0; i < n; ++i)
        if (symbols[i] >= 0) symbols[left++] = symbols[i];
    if (left > 1)
        left = left <= RML_MERGE_SHORT ? rml_bpe_short(t, symbols, left)
                                       : rml_bpe_long(t, symbols, left, scratch);
    for (; left < n; ++left) symbols[left] = -1;
}

/* ---- texts of tokens ---- */

typedef struct {
    const int64_t *slots; /* (1 << bits, 2): hash, entry; entry -1 where nothing stands */
    const uint32_t *text;
    const int64_t *ends;
    const int32_t *ids;
    const float *scores;
    int64_t longest;
    int bits;
} rml_tokens;

/* Entry of n code points, or -1. */
static int64_t rml_token(const rml_tokens *t, const uint32_t *text, int64_t n) {
    if (n > t->longest) return -1;
    uint64_t hash = (uint64_t)n;
    for (int64_t i = 0; i < n && i < RML_MERGE_HASHED; ++i) {
        hash = (hash ^ text[i]) * RML_MERGE_FACTOR;
        hash ^= hash >> 32;
    }
    hash *= RML_MERGE_FACTOR;
    size_t mask = ((size_t)1 << t->bits) - 1;
    for (size_t i = (size_t)(hash >> (64 - t->bits));; i = (i + 1) & mask) {
        int64_t entry = t->slots[2 * i + 1];
        if (entry < 0) return -1;
        if (t->slots[2 * i] != (int64_t)hash) continue;
        int64_t start = t->ends[entry];
        if (t->ends[entry + 1] - start == n && !memcmp(t->text + start, text, n * sizeof *text))
            return entry;
    }
}

/* The key by which a piece that two would make is ordered: rising, as the score falls. */
static inline int64_t rml_score_key(float score) {
    union { float f; int32_t i; } u = {0.0f - score}; /* one zero, not two */
    return u.i < 0 ? INT32_MIN - (int64_t)u.i : u.i;
}

static inline int64_t rml_joined_key(const rml_tokens *t, const uint32_t *text, int32_t start,
                                     int32_t end) {
    int64_t entry = rml_token(t, text + start, end - start);
    return entry < 0 ? INT64_MAX : rml_score_key(t->scores[entry]);
}

static inline int32_t rml_piece_id(const rml_tokens *t, const uint32_t *text, int32_t n) {
    int64_t entry = rml_token(t, text, n);
    return entry < 0 ? -2 - (int32_t)text[0] : t->ids[entry];
}

static void rml_spm_short(const rml_tokens *t, const uint32_t *text, int32_t n, int32_t *ids) {
    int64_t keys[RML_MERGE_SHORT];
    int32_t starts[RML_MERGE_SHORT + 1]; /* of the pieces, and the end */
    int32_t m = n;
    for (int32_t i = 0; i <= n; ++i) starts[i] = i;
    for (int32_t i = 0; i + 1 < n; ++i) keys[i] = rml_joined_key(t, text, i, i + 2);
    while (m > 1) {
        int32_t best = 0;
        for (int32_t i = 1; i + 1 < m; ++i)
            if (keys[i] < keys[best]) best = i;
        if (keys[best] == INT64_MAX) break;
        memmove(starts + best + 1, starts + best + 2, (m - best - 1) * sizeof *starts);
        --m;
        if (best + 1 < m) {
            memmove(keys + best + 1, keys + best + 2, (m - best - 2) * sizeof *keys);
            keys[best] = rml_joined_key(t, text, starts[best], starts[best + 2]);
        }
        if (best) keys[best - 1] = rml_joined_key(t, text, starts[best - 1], starts[best + 1]);
    }
    for (int32_t i = 0; i < n; ++i) ids[i] = -1;
    for (int32_t i = 0; i < m; ++i)
        ids[starts[i]] = rml_piece_id(t, text + starts[i], starts[i + 1] - starts[i]);
}

static void rml_spm_offer(const rml_tokens *t, const uint32_t *text, rml_candidate *heap,
                          size_t *waiting, int32_t start, int32_t middle, int32_t end) {
    int64_t key = rml_joined_key(t, text, start, end);
    if (key != INT64_MAX) rml_heap_push(heap, waiting, (rml_candidate){key, start, middle, end});
}

/* A part's `following` is where the next piece starts, 0 once the part is gone. */
static void rml_spm_long(const rml_tokens *t, const uint32_t *text, int32_t n, int32_t *ids,
                         char *scratch) {
    rml_candidate *heap = (rml_candidate *)scratch;
    rml_part *parts = (rml_part *)(heap + 2 * (size_t)n);
    size_t waiting = 0;
    for (int32_t i = 0; i < n; ++i) {
        parts[i] = (rml_part){0, i - 1, i + 1};
        ids[i] = -1;
        if (i + 1 < n) rml_spm_offer(t, text, heap, &waiting, i, i + 1, i + 2);
    }
    while (waiting) {
        rml_candidate c = rml_heap_pop(heap, &waiting);
        if (parts[c.start].following != c.middle || parts[c.middle].following != c.end) continue;
        parts[c.start].following = c.end;
        parts[c.middle].following = 0;
        if (c.end < n) {
            parts[c.end].previous = c.start;
            rml_spm_offer(t, text, heap, &waiting, c.start, c.end, parts[c.end].following);
        }
        int32_t before = parts[c.start].previous;
        if (before >= 0) rml_spm_offer(t, text, heap, &waiting, before, c.start, c.end);
    }
    for (int32_t i = 0; i < n; i = parts[i].following)
        ids[i] = rml_piece_id(t, text + i, parts[i].following - i);
}

/* One word of n code points. */
static void rml_spm_word(const rml_tokens *t, const uint32_t *text, size_t n, int32_t *ids,
                         char *scratch) {
    if (n <= RML_MERGE_SHORT)
        rml_spm_short(t, text, (int32_t)n, ids);
    else
        rml_spm_long(t, text, (int32_t)n, ids, scratch);
}

#endif
