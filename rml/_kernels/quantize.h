/* Inputs of a product, rounded to integers (see product_py.quantize_inputs).
 *
 * Codes and scales are equal to the definition's bit for bit at every level: only multiplications,
 * divisions and comparisons, none fused. What differs is how a level keeps the codes, as its
 * products want them: with AVX-512 VNNI as signed bytes, 16-bit codes as two rows of them (high
 * bytes, low bytes); elsewhere in two bytes each, in an order of four_columns.h.
 */
#ifndef RML_QUANTIZE_H
#define RML_QUANTIZE_H

#include <float.h>

#include "formats.h"
#include "lanes.h"

#if defined(__AVX512VNNI__)
typedef int8_t rml_code;
#else
#include "four_columns.h"
typedef int16_t rml_code;
#endif

typedef struct {
    const float *x;   /* (T, K), rows `stride` floats apart; K of them where they are quantized */
    ptrdiff_t n_tokens, k, stride;
    int bytes;        /* of a code: 1: int8, 2: int8x2, 0: not quantized */
    /* bytes > 0; U = K / 32 units */
    rml_code *codes;  /* (T, K), with AVX-512 VNNI (T, bytes, K) */
    float *scales;    /* (T, U) */
    int32_t *sums;    /* (T, U, 2) sums of the codes of each half of a unit */
    float *totals;    /* (T, U) scale * sum of the codes */
} rml_inputs;

RML_INLINE ptrdiff_t whole_lines(ptrdiff_t bytes) { return (bytes + 63) & ~(ptrdiff_t)63; }

/* Bytes of all codes. */
RML_INLINE ptrdiff_t codes_bytes(const rml_inputs *in) {
    const ptrdiff_t a_code = sizeof(rml_code) == 1 ? in->bytes : (ptrdiff_t)sizeof(rml_code);
    return whole_lines(in->n_tokens * in->k * a_code);
}

/* Bytes that `rml_place_inputs` lays out. */
static ptrdiff_t rml_inputs_bytes(const rml_inputs *in) {
    const ptrdiff_t units = in->n_tokens * (in->k / RML_UNIT);
    return in->bytes ? codes_bytes(in) + 2 * whole_lines(4 * units) + whole_lines(8 * units) : 0;
}

/* Lay out the quantized form in memory from `p` on. */
static void rml_place_inputs(rml_inputs *in, char *p) {
    const ptrdiff_t units = in->n_tokens * (in->k / RML_UNIT);
    if (!in->bytes) return;
    in->codes = (rml_code *)p;
    p += codes_bytes(in);
    in->scales = (float *)p;
    p += whole_lines(4 * units);
    in->sums = (int32_t *)p;
    p += whole_lines(8 * units);
    in->totals = (float *)p;
}

/* The largest code. */
RML_INLINE float largest_code(const rml_inputs *in) { return in->bytes == 1 ? 127.0f : 127.0f * 256.0f; }

/* scale * sum of the codes in half of unit u of token t, for minima that belong to a half. */
RML_INLINE float half_total(const rml_inputs *in, ptrdiff_t t, ptrdiff_t u, int half) {
    const ptrdiff_t at = t * (in->k / RML_UNIT) + u;
    return in->scales[at] * (float)in->sums[2 * at + half];
}

#if defined(__AVX512VNNI__)

/* Lane i of the result is the largest lane of v[i]. */
RML_INLINE __m512i max_of_each(const __m512i *v) {
    __m512i t[8], u[4];
    for (int i = 0; i < 8; ++i)
        t[i] = _mm512_max_epi32(_mm512_unpacklo_epi32(v[2 * i], v[2 * i + 1]), _mm512_unpackhi_epi32(v[2 * i], v[2 * i + 1]));
    for (int i = 0; i < 4; ++i)
        u[i] = _mm512_max_epi32(_mm512_unpacklo_epi64(t[2 * i], t[2 * i + 1]), _mm512_unpackhi_epi64(t[2 * i], t[2 * i + 1]));
    for (int i = 0; i < 2; ++i)
        t[i] = _mm512_max_epi32(_mm512_shuffle_i32x4(u[2 * i], u[2 * i + 1], 0x88), _mm512_shuffle_i32x4(u[2 * i], u[2 * i + 1], 0xdd));
    return _mm512_max_epi32(_mm512_shuffle_i32x4(t[0], t[1], 0x88), _mm512_shuffle_i32x4(t[0], t[1], 0xdd));
}

/* Sums of the halves of eight units of bytes, in order. */
RML_INLINE __m512i half_sums(const int8_t *codes) {
    __m512i v[4];
    for (int i = 0; i < 4; ++i)
        v[i] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), _mm512_load_si512(codes + 64 * i));
    const __m512i a = _mm512_add_epi32(_mm512_unpacklo_epi32(v[0], v[1]), _mm512_unpackhi_epi32(v[0], v[1]));
    const __m512i b = _mm512_add_epi32(_mm512_unpacklo_epi32(v[2], v[3]), _mm512_unpackhi_epi32(v[2], v[3]));
    const __m512i c = _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
    /* Half k of vector j is lane 4k + j. */
    return _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), c);
}

/* The same of codes of one or two bytes. */
RML_INLINE __m512i code_sums(const int8_t *high, const int8_t *low, int bytes) {
    const __m512i sums = half_sums(high);
    return bytes == 1 ? sums : _mm512_add_epi32(_mm512_slli_epi32(sums, 8), half_sums(low));
}

/* Sixteen units at a time: what is one number for a unit is one vector for all of them. */
RML_INLINE void quantize_row(const rml_inputs *in, ptrdiff_t t, int bytes) {
    const ptrdiff_t units = in->k / RML_UNIT;
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    for (ptrdiff_t u0 = 0; u0 < units; u0 += 16) {
        const int n = units - u0 < 16 ? (int)(units - u0) : 16;
        const __mmask16 lanes = (__mmask16)((1u << n) - 1);
        const ptrdiff_t at = t * units + u0;
        const float *x = in->x + t * in->k + u0 * RML_UNIT;
        __m512i largest[16];
        for (int i = 0; i < 16; ++i) {
            if (i >= n) {
                largest[i] = _mm512_setzero_si512();
                continue;
            }
            /* The bits of |x| order like the numbers, with infinity and NaN above all. */
            const __m512i a = _mm512_and_si512(_mm512_loadu_si512(x + i * RML_UNIT), magnitude);
            const __m512i b = _mm512_and_si512(_mm512_loadu_si512(x + i * RML_UNIT + 16), magnitude);
            largest[i] = _mm512_max_epi32(a, b);
        }
        const __m512 scale = _mm512_div_ps(_mm512_castsi512_ps(max_of_each(largest)), _mm512_set1_ps(largest_code(in)));
        const __mmask16 usable = _mm512_cmp_ps_mask(scale, _mm512_set1_ps(FLT_MIN), _CMP_GE_OQ);
        _Alignas(64) float inverses[16];
        _mm512_store_ps(inverses, _mm512_maskz_div_ps(usable, _mm512_set1_ps(1.0f), scale));
        _Alignas(64) int8_t high[16 * RML_UNIT] = {0}, low[16 * RML_UNIT] = {0};
        for (int i = 0; i < 2 * n; ++i) {
            const __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 16 * i), _mm512_set1_ps(inverses[i / 2])));
            /* The lowest byte, taken as a signed one, is `low`. */
            if (bytes == 2) _mm_store_si128((__m128i *)(low + 16 * i), _mm512_cvtepi32_epi8(q));
            const __m512i h = bytes == 1 ? q : _mm512_srai_epi32(_mm512_add_epi32(q, _mm512_set1_epi32(128)), 8);
            _mm_store_si128((__m128i *)(high + 16 * i), _mm512_cvtepi32_epi8(h));
        }
        int8_t *codes = in->codes + t * bytes * in->k + u0 * RML_UNIT;
        memcpy(codes, high, (size_t)n * RML_UNIT);
        if (bytes == 2) memcpy(codes + in->k, low, (size_t)n * RML_UNIT);
        const __m512i first = code_sums(high, low, bytes), second = code_sums(high + 256, low + 256, bytes);
        const uint32_t both = n == 16 ? ~0u : (1u << 2 * n) - 1;
        _mm512_mask_storeu_epi32(in->sums + 2 * at, (__mmask16)both, first);
        _mm512_mask_storeu_epi32(in->sums + 2 * at + 16, (__mmask16)(both >> 16), second);
        const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
        const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
        const __m512i sum = _mm512_add_epi32(_mm512_permutex2var_epi32(first, even, second), _mm512_permutex2var_epi32(first, odd, second));
        _mm512_mask_storeu_ps(in->scales + at, lanes, scale);
        _mm512_mask_storeu_ps(in->totals + at, lanes, _mm512_mul_ps(scale, _mm512_cvtepi32_ps(sum)));
    }
}

/* Round the inputs of token t. */
static void rml_quantize_row(const rml_inputs *in, ptrdiff_t t) {
    if (in->bytes == 1) quantize_row(in, t, 1);
    else quantize_row(in, t, 2);
}

#else

enum { UNIT_VECTORS = RML_UNIT / RML_LANES, HALF_VECTORS = UNIT_VECTORS / 2 };

typedef int16_t code_lanes __attribute__((vector_size(2 * RML_LANES)));

RML_INLINE int_lanes larger_lanes(int_lanes a, int_lanes b) {
    const int_lanes mask = a > b;
    return (mask & a) | (~mask & b);
}

/* Round the inputs of token t. */
static void rml_quantize_row(const rml_inputs *in, ptrdiff_t t) {
    const ptrdiff_t units = in->k / RML_UNIT;
    const lanes round = splat_lanes(12582912.0f); /* 1.5 * 2^23: adding it rounds half to even */
    for (ptrdiff_t u = 0; u < units; ++u) {
        const ptrdiff_t at = t * units + u;
        const float *x = in->x + t * in->k + u * RML_UNIT;
        rml_code *codes = in->codes + t * in->k + u * RML_UNIT;
        lanes v[UNIT_VECTORS];
        int_lanes most = {0};
        for (int i = 0; i < UNIT_VECTORS; ++i) {
            v[i] = load_lanes(x + i * RML_LANES);
            /* The bits of |x| order like the numbers, with infinity and NaN above all. */
            most = larger_lanes((int_lanes)v[i] & 0x7fffffff, most);
        }
        int32_t bits = 0;
        for (int i = 0; i < RML_LANES; ++i) bits = most[i] > bits ? most[i] : bits;
        float largest;
        memcpy(&largest, &bits, sizeof bits);
        const float scale = largest / largest_code(in);
        const lanes inverse = splat_lanes(scale >= FLT_MIN ? 1.0f / scale : 0.0f);
        for (int h = 0; h < 2; ++h) {
            int_lanes sums = {0};
            for (int i = h * HALF_VECTORS; i < (h + 1) * HALF_VECTORS; ++i) {
                const int_lanes q = __builtin_convertvector((v[i] * inverse + round) - round, int_lanes);
                const code_lanes narrow = __builtin_convertvector(q, code_lanes);
                memcpy(codes + i * RML_LANES, &narrow, sizeof narrow);
                sums += q;
            }
            int32_t sum = 0;
            for (int i = 0; i < RML_LANES; ++i) sum += sums[i];
            in->sums[2 * at + h] = sum;
        }
        arrange_inputs(codes);
        in->scales[at] = scale;
        in->totals[at] = scale * (float)(in->sums[2 * at] + in->sums[2 * at + 1]);
    }
}

#endif
#endif
