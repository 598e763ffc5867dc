/* Products of few rows with a weight in bfloat16 or fewer bits as it is stored, at memory speed.
 *
 * y[m][n] = bfloat16(bias[n] + sum_c x[m][c] * w[n][c]), products and sums in fp32. Libraries
 * rearrange such a weight before multiplying, on every call, or keep a second copy of it.
 *
 * A bfloat16 is the upper half of an fp32. A register of 32 bfloat16 therefore becomes two of fp32:
 * a shift gives the even places, a mask the odd ones. x is converted to that order beforehand. On a
 * CPU whose bfloat16 dot products are faster than fp32 (`bf16_dot`) both are used as they are.
 *
 * Quantised weights are widened to fp32 in registers, and narrowed to bfloat16 for these dot products:
 * int8 exactly, as its scale is applied to the sum, int4 after its scale.
 *
 * A strip of rows of w is multiplied with ROWS rows of x at a time, and stays in the cache until
 * all rows of x are done. Every sum adds the columns in the same order whatever the number of rows,
 * so a row's result does not depend on the other rows.
 */
#ifndef KVSTITCH_FEW_ROWS_H
#define KVSTITCH_FEW_ROWS_H

#include "bfloat16.h"
#include "layer.h"

#include <stddef.h>

#define ROWS 8
#define SUMS 16    /* sums computed at once (rows of x times rows of w), one register each */
#define STRIP 32   /* rows of w that stay in the cache while all rows of x are multiplied */
#define WIDTH 1536 /* columns of x and w multiplied before the next: ROWS of x fit the L1 cache */
#define AHEAD 4    /* blocks of w */

/* Rows of w are `stride` bytes apart. */
struct product {
    const struct weight *w;
    ptrdiff_t columns, stride, y_stride;
};

/* Loads the sums so far of `rows` rows of x and `weights` rows of w; zeros at the first column. */
TARGET INLINE void begin(__m512 *sums, const float *carried, ptrdiff_t first, int rows, int weights)
{
    for (int i = 0; i < SUMS; i++)
        sums[i] = first && i < rows * weights ? _mm512_loadu_ps(carried + i * LANES / 2)
                                              : _mm512_setzero_ps();
}

/* After the last column, writes the results for w's rows from n on; before it, saves the sums in
 * `carried`. */
TARGET INLINE void finish(const struct product *p, const __m512 *sums, uint16_t *y, float *carried,
                          ptrdiff_t n, ptrdiff_t end, int rows, int weights)
{
    if (end < p->columns) {
        for (int i = 0; i < rows * weights; i++)
            _mm512_storeu_ps(carried + i * LANES / 2, sums[i]);
        return;
    }
    __m512 total = horizontal_sums(sums);
    if (p->w->bits == 8) {
        float scales[SUMS] = {0};
        for (int i = 0; i < rows * weights; i++)
            scales[i] = p->w->scales[n + i % weights];
        total = _mm512_mul_ps(total, _mm512_loadu_ps(scales));
    }
    if (p->w->bias) {
        float added[SUMS] = {0};
        for (int i = 0; i < rows * weights; i++)
            added[i] = to_fp32(p->w->bias[n + i % weights]);
        total = _mm512_add_ps(total, _mm512_loadu_ps(added));
    }
    uint16_t out[SUMS];
    _mm256_storeu_si256((__m256i *)out,
                        _mm512_cvtepi32_epi16(_mm512_srli_epi32(round_to_bf16(total), 16)));
    for (int m = 0; m < rows; m++)
        for (int k = 0; k < weights; k++)
            y[m * p->y_stride + n + k] = out[m * weights + k];
}

/* Where column c of row n of w lies. */
INLINE const char *place(const struct product *p, ptrdiff_t n, ptrdiff_t c, int bits)
{
    return (const char *)p->w->values + n * p->stride + c * bits / 8;
}

/* Where the next values to prefetch lie: row by row, AHEAD blocks further on. A CPU's own prefetcher
 * sees through runs in order of address only, not through several rows read at the same time. */
struct ahead {
    const char *at, *row_end;
    ptrdiff_t skipped, stride, step;
};

INLINE struct ahead ahead_of(const struct product *p, ptrdiff_t n, ptrdiff_t first, ptrdiff_t end,
                             int weights, int bits)
{
    const char *at = place(p, n + AHEAD * weights, first, bits);
    ptrdiff_t bytes = (end - first) * bits / 8;
    return (struct ahead){at, at + bytes, p->stride - bytes, p->stride, LANES * bits / 8};
}

TARGET INLINE void prefetch_next(struct ahead *ahead)
{
    _mm_prefetch(ahead->at, _MM_HINT_T1);
    ahead->at += ahead->step;
    if (ahead->at == ahead->row_end) {
        ahead->at += ahead->skipped;
        ahead->row_end += ahead->stride;
    }
}

/* LANES columns of row n of w in fp32, in the order in which `widen` leaves x. */
TARGET INLINE void load_weights(const struct product *p, ptrdiff_t n, ptrdiff_t c, int bits,
                                __m512 *one, __m512 *other)
{
    const char *at = place(p, n, c, bits);
    if (bits == 16) {
        __m512i packed = _mm512_loadu_si512(at);
        *one = even_to_fp32(packed);
        *other = odd_to_fp32(packed);
    } else if (bits == 8) {
        *one = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)at)));
        at += LANES / 2;
        *other = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)at)));
    } else {
        const __m512 levels = _mm512_set_ps(7, 6, 5, 4, 3, 2, 1, 0, -1, -2, -3, -4, -5, -6, -7, -8);
        const float *scale = p->w->scales + (n * p->columns + c) / LANES;
        __m512 values = _mm512_mul_ps(levels, _mm512_set1_ps(*scale));
        __m512i pairs = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)at));
        *one = _mm512_permutexvar_ps(pairs, values); /* looks at the lowest four bits only */
        *other = _mm512_permutexvar_ps(_mm512_srli_epi32(pairs, 4), values);
    }
}

/* Multiplies `rows` rows of x with `weights` rows of w, from row n on, over columns first..end. */
TARGET INLINE void fp32_block(const struct product *p, const float *x, uint16_t *y, float *carried,
                              ptrdiff_t n, ptrdiff_t first, ptrdiff_t end, int rows, int weights,
                              int bits)
{
    __m512 sums[SUMS];
    struct ahead ahead = ahead_of(p, n, first, end, weights, bits);
    begin(sums, carried, first, rows, weights);
    for (ptrdiff_t c = first; c < end; c += LANES) {
        __m512 ones[4], others[4];
        for (int k = 0; k < weights; k++) {
            prefetch_next(&ahead);
            load_weights(p, n + k, c, bits, &ones[k], &others[k]);
        }
        for (int m = 0; m < rows; m++) {
            __m512 one = _mm512_loadu_ps(x + m * p->columns + c);
            __m512 other = _mm512_loadu_ps(x + m * p->columns + c + LANES / 2);
            for (int k = 0; k < weights; k++) {
                __m512 *sum = &sums[m * weights + k];
                *sum = _mm512_fmadd_ps(other, others[k], _mm512_fmadd_ps(one, ones[k], *sum));
            }
        }
    }
    finish(p, sums, y, carried, n, end, rows, weights);
}

TARGET_BF16 INLINE void bf16_block(const struct product *p, const uint16_t *x, uint16_t *y,
                                     float *carried, ptrdiff_t n, ptrdiff_t first, ptrdiff_t end,
                                     int rows, int weights, int bits)
{
    __m512 sums[SUMS];
    struct ahead ahead = ahead_of(p, n, first, end, weights, bits);
    begin(sums, carried, first, rows, weights);
    for (ptrdiff_t c = first; c < end; c += LANES) {
        __m512bh weight[4];
        for (int k = 0; k < weights; k++) {
            __m512 one, other;
            prefetch_next(&ahead);
            if (bits == 16) {
                weight[k] = (__m512bh)_mm512_loadu_si512(place(p, n + k, c, bits));
                continue;
            }
            load_weights(p, n + k, c, bits, &one, &other);
            weight[k] = _mm512_cvtne2ps_pbh(other, one);
        }
        for (int m = 0; m < rows; m++) {
            __m512i row = _mm512_loadu_si512(x + m * p->columns + c);
            for (int k = 0; k < weights; k++) {
                __m512 *sum = &sums[m * weights + k];
                *sum = _mm512_dpbf16_ps(*sum, (__m512bh)row, weight[k]);
            }
        }
    }
    finish(p, sums, y, carried, n, end, rows, weights);
}

/* All rows n..last of w, WEIGHTS_NOW at a time. `rows` and `weights` are constants here, so that
 * the compiler keeps the sums in registers. */
#define EACH(BLOCK, BITS, ROWS_NOW, WEIGHTS_NOW)                                                 \
    for (; n + (WEIGHTS_NOW) <= last; n += (WEIGHTS_NOW)) {                                      \
        BLOCK(p, x, y, carried, n, first, end, ROWS_NOW, WEIGHTS_NOW, BITS);                     \
        carried += (ROWS_NOW) * (WEIGHTS_NOW) * LANES / 2;                                       \
    }                                                                                            \
    for (; n < last; n++) {                                                                      \
        BLOCK(p, x, y, carried, n, first, end, ROWS_NOW, 1, BITS);                               \
        carried += (ROWS_NOW) * LANES / 2;                                                       \
    }                                                                                            \
    break;

/* `rows` rows of x (at most ROWS) with rows n..last of w over columns first..end. */
#define STRIP_OF(NAME, BLOCK, BITS, X)                                                           \
    static void NAME(const struct product *p, const X *x, uint16_t *y, float *carried,           \
                     ptrdiff_t n, ptrdiff_t last, ptrdiff_t first, ptrdiff_t end,                \
                     ptrdiff_t rows)                                                             \
    {                                                                                            \
        switch (rows) {                                                                          \
        case 1: EACH(BLOCK, BITS, 1, 4)                                                          \
        case 2: EACH(BLOCK, BITS, 2, 4)                                                          \
        case 3: EACH(BLOCK, BITS, 3, 4)                                                          \
        case 4: EACH(BLOCK, BITS, 4, 4)                                                          \
        case 5: EACH(BLOCK, BITS, 5, 3)                                                          \
        case 6: EACH(BLOCK, BITS, 6, 2)                                                          \
        case 7: EACH(BLOCK, BITS, 7, 2)                                                          \
        default: EACH(BLOCK, BITS, 8, 2)                                                         \
        }                                                                                        \
    }

TARGET STRIP_OF(fp32_strip, fp32_block, 16, float)
TARGET STRIP_OF(fp32_strip_int8, fp32_block, 8, float)
TARGET STRIP_OF(fp32_strip_int4, fp32_block, 4, float)
TARGET_BF16 STRIP_OF(bf16_strip, bf16_block, 16, uint16_t)
TARGET_BF16 STRIP_OF(bf16_strip_int8, bf16_block, 8, uint16_t)
TARGET_BF16 STRIP_OF(bf16_strip_int4, bf16_block, 4, uint16_t)

#define FOR_BITS(STRIP) (p->w->bits == 16 ? STRIP : p->w->bits == 8 ? STRIP##_int8 : STRIP##_int4)

/* Widens x [rows, columns] to fp32. For a bfloat16 weight, of every LANES columns the even ones come
 * first. */
TARGET static void widen(const uint16_t *x, float *wide, ptrdiff_t values, ptrdiff_t bits)
{
    for (ptrdiff_t c = 0; c < values; c += LANES) {
        __m512i both = _mm512_loadu_si512(x + c);
        _mm512_storeu_ps(wide + c, bits == 16 ? even_to_fp32(both) : load_fp32(x + c));
        _mm512_storeu_ps(wide + c + LANES / 2,
                         bits == 16 ? odd_to_fp32(both) : load_fp32(x + c + LANES / 2));
    }
}

/* Rows n..last of w, at most STRIP, times all rows of x [rows, columns]. wide: x in fp32 (`widen`),
 * or NULL to use bfloat16 dot products. carried [rows, STRIP, LANES / 2] is scratch. */
TARGET static void few_rows_strip(const struct product *p, const uint16_t *x, const float *wide,
                                  uint16_t *y, float *carried, ptrdiff_t rows, ptrdiff_t n,
                                  ptrdiff_t last)
{
    /* With few rows the time goes into reading w, which is fastest in long runs. */
    ptrdiff_t width = rows > ROWS / 2 ? WIDTH : p->columns;
    for (ptrdiff_t c = 0; c < p->columns; c += width)
        for (ptrdiff_t at = 0; at < rows; at += ROWS) {
            ptrdiff_t now = rows - at < ROWS ? rows - at : ROWS;
            ptrdiff_t end = c + width < p->columns ? c + width : p->columns;
            float *sums = carried + at * STRIP * (LANES / 2);
            uint16_t *out = y + at * p->y_stride;
            if (wide)
                FOR_BITS(fp32_strip)(p, wide + at * p->columns, out, sums, n, last, c, end, now);
            else
                FOR_BITS(bf16_strip)(p, x + at * p->columns, out, sums, n, last, c, end, now);
        }
}

#endif
