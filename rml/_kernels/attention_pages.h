/* Pages of the KV cache as float32. */
#ifndef RML_ATTENTION_PAGES_H
#define RML_ATTENTION_PAGES_H

#include "half.h"

enum { RML_PAGE = 16, RML_BLOCK = 32 };

typedef enum { RML_KV_F32, RML_KV_F16, RML_KV_INT8 } rml_kv_type;

/* The keys and values of a layer, as `Pages` in pages.py holds them. */
typedef struct {
    rml_kv_type type;
    ptrdiff_t size;            /* bytes of a number */
    ptrdiff_t d;               /* dimensions of a head */
    ptrdiff_t group;           /* dimensions that share a scale */
    ptrdiff_t page_heads;      /* heads from a page to the next: n_layers * G */
    ptrdiff_t layer_heads;     /* heads of a page before those of the layer */
    int slab_bits;             /* page >> slab_bits is the slab of a page */
    const uint64_t *k, *v;     /* addresses of the slabs: (n, n_layers, G, D, 16), (.., 16, D) */
    const uint64_t *k_scales;  /* (n, n_layers, G, D/group, 16), for int8 */
    const uint64_t *v_scales;  /* (n, n_layers, G, 16, D/group), for int8 */
} rml_kv;

/* One kv head of one page: its slab, and how many heads of the slab lie before it. */
typedef struct {
    ptrdiff_t slab, at;
} rml_place;

RML_INLINE rml_place rml_place_of(const rml_kv *kv, int32_t page, ptrdiff_t head) {
    const ptrdiff_t in_slab = page & (((ptrdiff_t)1 << kv->slab_bits) - 1);
    return (rml_place){page >> kv->slab_bits, in_slab * kv->page_heads + kv->layer_heads + head};
}

RML_INLINE char *rml_k_at(const rml_kv *kv, rml_place p) {
    return (char *)(uintptr_t)kv->k[p.slab] + p.at * kv->d * RML_PAGE * kv->size;
}

RML_INLINE char *rml_v_at(const rml_kv *kv, rml_place p) {
    return (char *)(uintptr_t)kv->v[p.slab] + p.at * kv->d * RML_PAGE * kv->size;
}

RML_INLINE float *rml_k_scales_at(const rml_kv *kv, rml_place p) {
    return (float *)(uintptr_t)kv->k_scales[p.slab] + p.at * (kv->d / kv->group) * RML_PAGE;
}

RML_INLINE float *rml_v_scales_at(const rml_kv *kv, rml_place p) {
    return (float *)(uintptr_t)kv->v_scales[p.slab] + p.at * (kv->d / kv->group) * RML_PAGE;
}

/* The two pages of a block, ready for the innermost loops, and where those of the next block are
 * stored: the loops fetch them into the second-level cache, a little in every turn. */
typedef struct {
    const float *now[2];
    const char *next[2];
    ptrdiff_t size;          /* bytes of a stored number */
} rml_pages;

RML_INLINE void rml_fetch(const void *p) { __builtin_prefetch(p, 0, 2); }

RML_INLINE ptrdiff_t rml_round16(ptrdiff_t n) { return (n + 15) & ~(ptrdiff_t)15; }

RML_INLINE lanes rml_load_codes(const int8_t *p) {
#if defined(__AVX512F__)
    return (lanes)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
#elif defined(__AVX2__)
    return (lanes)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
#elif defined(__aarch64__)
    uint32_t four;
    memcpy(&four, p, sizeof four);
    const int16x8_t wide = vmovl_s8((int8x8_t)vdup_n_u32(four));
    return (lanes)vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide)));
#else
    typedef int8_t byte_lanes __attribute__((vector_size(RML_LANES)));
    byte_lanes codes;
    memcpy(&codes, p, sizeof codes);
    return __builtin_convertvector(codes, lanes);
#endif
}

/* n codes that share a scale. */
RML_INLINE void rml_widen_group(int n, const int8_t *codes, float scale, float *to) {
#pragma GCC unroll 8
    for (int i = 0; i < n; i += RML_LANES) store_lanes(to + i, rml_load_codes(codes + i) * scale);
}

/* Keys of a page, (D, 16): where they are, or widened. */
static const float *rml_widen_keys(const rml_kv *kv, rml_place place, float *to) {
    const ptrdiff_t n = kv->d * RML_PAGE;
    const char *stored = rml_k_at(kv, place);
    if (kv->type == RML_KV_F32) return (const float *)stored;
    if (kv->type == RML_KV_F16) {
        const uint16_t *from = (const uint16_t *)stored;
        for (ptrdiff_t i = 0; i < n; i += RML_LANES) store_lanes(to + i, load_half_lanes(from + i));
        return to;
    }
    const int8_t *from = (const int8_t *)stored;
    const float *scales = rml_k_scales_at(kv, place);
    for (ptrdiff_t first = 0; first < n; first += kv->group * RML_PAGE, scales += RML_PAGE)
        for (int j = 0; j < RML_PAGE; j += RML_LANES) {
            const lanes scale = load_lanes(scales + j);
            for (ptrdiff_t i = first + j; i < first + kv->group * RML_PAGE; i += RML_PAGE)
                store_lanes(to + i, rml_load_codes(from + i) * scale);
        }
    return to;
}

/* Number i of the values stored at `from`. */
RML_INLINE float rml_number(const rml_kv *kv, const char *from, const float *scales, ptrdiff_t i) {
    if (kv->type == RML_KV_F32) return ((const float *)from)[i];
    if (kv->type == RML_KV_F16) return rml_half_to_float(((const uint16_t *)from)[i]);
    return (float)((const int8_t *)from)[i] * scales[i / kv->group];
}

/* Values of a page, (16, D rounded up to 16), zeros in the gap: where they are, or widened. */
static const float *rml_widen_values(const rml_kv *kv, rml_place place, float *to) {
    const ptrdiff_t d = kv->d, wide = rml_round16(d), n = d * RML_PAGE, group = kv->group;
    const char *stored = rml_v_at(kv, place);
    const float *scales = kv->type == RML_KV_INT8 ? rml_v_scales_at(kv, place) : NULL;
    if (d == wide && kv->type == RML_KV_F32) return (const float *)stored;
    if (d == wide && kv->type == RML_KV_F16) {
        const uint16_t *from = (const uint16_t *)stored;
        for (ptrdiff_t i = 0; i < n; i += RML_LANES) store_lanes(to + i, load_half_lanes(from + i));
    } else if (d == wide) {
        const int8_t *codes = (const int8_t *)stored;
        if (group == 32)
            for (ptrdiff_t i = 0; i < n; i += 32) rml_widen_group(32, codes + i, *scales++, to + i);
        else
            for (ptrdiff_t i = 0; i < n; i += 16) rml_widen_group(16, codes + i, *scales++, to + i);
    } else {
        for (ptrdiff_t k = 0; k < RML_PAGE; ++k)
            for (ptrdiff_t i = 0; i < wide; ++i)
                to[k * wide + i] = i < d ? rml_number(kv, stored, scales, k * d + i) : 0;
    }
    return to;
}

/* Of the pages now[2], to be followed by next[2], one head's keys; `space` has room for them. */
static rml_pages rml_key_pages(const rml_kv *kv, ptrdiff_t head, const int32_t *now,
                               const int32_t *next, float *space) {
    rml_pages pages = {.size = kv->size};
    for (int j = 0; j < 2; ++j) {
        const rml_place later = rml_place_of(kv, next[j], head);
        const ptrdiff_t scales = kv->d / kv->group * RML_PAGE;
        pages.next[j] = rml_k_at(kv, later);
        if (kv->type == RML_KV_INT8)
            for (ptrdiff_t i = 0; i < scales; i += 16) rml_fetch(rml_k_scales_at(kv, later) + i);
        pages.now[j] = rml_widen_keys(kv, rml_place_of(kv, now[j], head),
                                      space + j * RML_PAGE * kv->d);
    }
    return pages;
}

/* The same for values. */
static rml_pages rml_value_pages(const rml_kv *kv, ptrdiff_t head, const int32_t *now,
                                 const int32_t *next, float *space) {
    rml_pages pages = {.size = kv->size};
    for (int j = 0; j < 2; ++j) {
        const rml_place later = rml_place_of(kv, next[j], head);
        const ptrdiff_t scales = kv->d / kv->group * RML_PAGE;
        pages.next[j] = rml_v_at(kv, later);
        if (kv->type == RML_KV_INT8)
            for (ptrdiff_t i = 0; i < scales; i += 16) rml_fetch(rml_v_scales_at(kv, later) + i);
        pages.now[j] = rml_widen_values(kv, rml_place_of(kv, now[j], head),
                                        space + j * RML_PAGE * rml_round16(kv->d));
    }
    return pages;
}

#endif
