/* Stored rows as float32, equal to the definition (dequant_py.py) bit for bit at every level. */
#ifndef RML_EXPAND_H
#define RML_EXPAND_H

#include "formats.h"
#include "unpack_grid.h"
#include "unpack_k.h"
#include "unpack_simple.h"

/* Units [first, first + n) of a row: 32 codes of each, and two scales and minima (see formats.h). */
static void rml_unpack(const uint8_t *row, int type, ptrdiff_t first, ptrdiff_t n, uint8_t *code, float *d, float *m) {
    switch (type) {
#define X(NAME, ID, ...)                                                              \
    case ID:                                                                          \
        for (ptrdiff_t u = 0; u < n; ++u)                                             \
            unpack_##NAME(row, first + u, code + u * RML_UNIT, d + 2 * u, m + 2 * u); \
        return;
        RML_QUANTIZED_FORMATS(X)
#undef X
    }
}

/* What becomes of codes, scales and minima. */
typedef struct {
    int bias, n_minima, n_scales;
} rml_kind;

static rml_kind rml_kind_of(int type) {
    switch (type) {
#define X(NAME, ID, LENGTH, BYTES, BIAS, MINIMA, SCALES, FACTORED) \
    case ID: return (rml_kind){BIAS, MINIMA, SCALES};
        RML_QUANTIZED_FORMATS(X)
#undef X
    }
    return (rml_kind){0, 0, 0};
}

/* Codes as floats, a register's worth. */
RML_INLINE lanes load_codes(const uint8_t *code, int bias) {
#if defined(__AVX512F__)
    const __m512i v = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)code));
    return (lanes)_mm512_cvtepi32_ps(_mm512_sub_epi32(v, _mm512_set1_epi32(bias)));
#elif defined(__AVX2__)
    const __m256i v = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)code));
    return (lanes)_mm256_cvtepi32_ps(_mm256_sub_epi32(v, _mm256_set1_epi32(bias)));
#elif defined(__x86_64__)
    const __m128i zero = _mm_setzero_si128(), bytes = _mm_cvtsi32_si128((int)load_u32(code));
    const __m128i v = _mm_unpacklo_epi16(_mm_unpacklo_epi8(bytes, zero), zero);
    return (lanes)_mm_cvtepi32_ps(_mm_sub_epi32(v, _mm_set1_epi32(bias)));
#else
    const int_lanes v = {code[0], code[1], code[2], code[3]};
    return __builtin_convertvector(v - bias, lanes);
#endif
}

/* Values of n units, rounded as the definition rounds: multiply, then add. */
RML_INLINE void units_values(const uint8_t *code, const float *d, const float *m, ptrdiff_t n, int bias, int n_minima,
                             int n_scales, float *out) {
    for (ptrdiff_t u = 0; u < n; ++u)
        for (int i = 0; i < RML_UNIT; i += RML_LANES) {
            const lanes v = load_codes(code + u * RML_UNIT + i, bias) * splat_lanes(d[2 * u + i / 16 * (n_scales - 1)]);
            store_lanes(out + u * RML_UNIT + i, n_minima ? v + splat_lanes(m[2 * u + i / 16 * (n_minima - 1)]) : v);
        }
}

/* Values of `n` units from the start of a row. */
static void expand_units(const uint8_t *row, int type, ptrdiff_t n, float *out) {
    enum { PIECE = 8 };
    const rml_kind kind = rml_kind_of(type);
    for (ptrdiff_t u = 0; u < n; u += PIECE, out += PIECE * RML_UNIT) {
        const ptrdiff_t k = n - u < PIECE ? n - u : PIECE;
        uint8_t code[PIECE * RML_UNIT];
        float d[2 * PIECE], m[2 * PIECE];
        rml_unpack(row, type, u, k, code, d, m);
        if (kind.n_minima)
            units_values(code, d, m, k, 0, kind.n_minima, kind.n_scales, out);
        else
            units_values(code, d, m, k, kind.bias, 0, kind.n_scales, out);
    }
}

/* Expand `n` values of a row from its start; a whole number of blocks. */
static void rml_expand(const uint8_t *row, int type, ptrdiff_t n, float *out) {
    ptrdiff_t i;
    switch (type) {
    case RML_F32:
        memcpy(out, row, (size_t)n * sizeof *out);
        return;
    case RML_F16:
        for (i = 0; i + 16 <= n; i += 16) store16(out + i, rml_load_half16(row + i * 2));
        for (; i < n; ++i) out[i] = load_half(row + i * 2);
        return;
    case RML_BF16:
        for (i = 0; i + 16 <= n; i += 16) store16(out + i, rml_load_bf16_16(row + i * 2));
        for (; i < n; ++i) {
            uint16_t h;
            memcpy(&h, row + i * 2, sizeof h);
            const uint32_t bits = (uint32_t)h << 16;
            memcpy(out + i, &bits, sizeof bits);
        }
        return;
    case RML_F64:
        for (i = 0; i < n; ++i) {
            double x;
            memcpy(&x, row + i * 8, sizeof x);
            out[i] = (float)x;
        }
        return;
    default:
        expand_units(row, type, n / RML_UNIT, out);
    }
}

/* Expand `n` values of row `row` from column `from` on; both are whole blocks. */
static void rml_expand_from(const rml_matrix *w, ptrdiff_t row, ptrdiff_t from, ptrdiff_t n, float *out) {
    /* A row is whole blocks, so its bytes are to its columns as those of a block to its values. */
    rml_expand(w->data + row * w->row_bytes + from * w->row_bytes / w->cols, w->type, n, out);
}

#endif
