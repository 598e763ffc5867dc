/* Products of few rows with a bfloat16 weight as the checkpoint stores it, at memory speed.
 *
 * y[m][n] = bfloat16(bias[n] + sum_c x[m][c] * w[n][c]), products and sums in fp32. Libraries
 * rearrange such a weight before multiplying, on every call, or keep a second copy of it.
 *
 * A bfloat16 is the upper half of an fp32. A register of 32 bfloat16 therefore becomes two of fp32:
 * a shift gives the even places, a mask the odd ones. x is converted to that order beforehand. On a
 * CPU whose bfloat16 dot products are faster than fp32 (`bf16_dot`) both are used as they are.
 *
 * A strip of rows of w is multiplied with ROWS rows of x at a time, and stays in the cache until
 * all rows of x are done. Every sum adds the columns in the same order whatever the number of rows,
 * so a row's result does not depend on the other rows.
 */
#ifndef KVSTITCH_FEW_ROWS_H
#define KVSTITCH_FEW_ROWS_H

#include "bfloat16.h"

#include <stddef.h>

#define ROWS 8
#define SUMS 16    /* sums computed at once (rows of x times rows of w), one register each */
#define STRIP 32   /* rows of w that stay in the cache while all rows of x are multiplied */
#define WIDTH 1536 /* columns of x and w multiplied before the next: ROWS of x fit the L1 cache */
#define AHEAD 4    /* blocks of w */

/* w [outs, columns], rows `stride` values apart; bias [outs] or NULL. */
struct product {
    const uint16_t *w, *bias;
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
    if (p->bias) {
        float added[SUMS] = {0};
        for (int i = 0; i < rows * weights; i++)
            added[i] = to_fp32(p->bias[n + i % weights]);
        total = _mm512_add_ps(total, _mm512_loadu_ps(added));
    }
    uint16_t out[SUMS];
    _mm256_storeu_si256((__m256i *)out,
                        _mm512_cvtepi32_epi16(_mm512_srli_epi32(round_to_bf16(total), 16)));
    for (int m = 0; m < rows; m++)
        for (int k = 0; k < weights; k++)
            y[m * p->y_stride + n + k] = out[m * weights + k];
}

/* Where the next values to prefetch lie: row by row, AHEAD blocks further on. A CPU's own prefetcher
 * sees through runs in order of address only, not through several rows read at the same time. */
struct ahead {
    const uint16_t *at, *row_end;
    ptrdiff_t skipped, stride;
};

INLINE struct ahead ahead_of(const struct product *p, ptrdiff_t n, ptrdiff_t first, ptrdiff_t end,
                             int weights)
{
    const uint16_t *at = p->w + (n + AHEAD * weights) * p->stride + first;
    return (struct ahead){at, at + end - first, p->stride - (end - first), p->stride};
}

TARGET INLINE void prefetch_next(struct ahead *ahead)
{
    _mm_prefetch((const char *)ahead->at, _MM_HINT_T1);
    ahead->at += LANES;
    if (ahead->at == ahead->row_end) {
        ahead->at += ahead->skipped;
        ahead->row_end += ahead->stride;
    }
}

/* Multiplies `rows` rows of x with `weights` rows of w, from row n on, over columns first..end. */
TARGET INLINE void fp32_block(const struct product *p, const float *x, uint16_t *y, float *carried,
                              ptrdiff_t n, ptrdiff_t first, ptrdiff_t end, int rows, int weights)
{
    __m512 sums[SUMS];
    struct ahead ahead = ahead_of(p, n, first, end, weights);
    begin(sums, carried, first, rows, weights);
    for (ptrdiff_t c = first; c < end; c += LANES) {
        __m512 evens[4], odds[4];
        for (int k = 0; k < weights; k++) {
            const uint16_t *at = p->w + (n + k) * p->stride + c;
            prefetch_next(&ahead);
            __m512i packed = _mm512_loadu_si512(at);
            evens[k] = even_to_fp32(packed);
            odds[k] = odd_to_fp32(packed);
        }
        for (int m = 0; m < rows; m++) {
            __m512 one = _mm512_loadu_ps(x + m * p->columns + c);
            __m512 other = _mm512_loadu_ps(x + m * p->columns + c + LANES / 2);
            for (int k = 0; k < weights; k++) {
                __m512 *sum = &sums[m * weights + k];
                *sum = _mm512_fmadd_ps(other, odds[k], _mm512_fmadd_ps(one, evens[k], *sum));
            }
        }
    }
    finish(p, sums, y, carried, n, end, rows, weights);
}

TARGET_BF16 INLINE void bf16_block(const struct product *p, const uint16_t *x, uint16_t *y,
                                     float *carried, ptrdiff_t n, ptrdiff_t first, ptrdiff_t end,
                                     int rows, int weights)
{
    __m512 sums[SUMS];
    struct ahead ahead = ahead_of(p, n, first, end, weights);
    begin(sums, carried, first, rows, weights);
    for (ptrdiff_t c = first; c < end; c += LANES) {
        __m512i weight[4];
        for (int k = 0; k < weights; k++) {
            const uint16_t *at = p->w + (n + k) * p->stride + c;
            prefetch_next(&ahead);
            weight[k] = _mm512_loadu_si512(at);
        }
        for (int m = 0; m < rows; m++) {
            __m512i row = _mm512_loadu_si512(x + m * p->columns + c);
            for (int k = 0; k < weights; k++) {
                __m512 *sum = &sums[m * weights + k];
                *sum = _mm512_dpbf16_ps(*sum, (__m512bh)row, (__m512bh)weight[k]);
            }
        }
    }
    finish(p, sums, y, carried, n, end, rows, weights);
}

/* All rows n..last of w, WEIGHTS_NOW at a time. `rows` and `weights` are constants here, so that
 * the compiler keeps the sums in registers. */
#define EACH(BLOCK, ROWS_NOW, WEIGHTS_NOW)                                                       \
    for (; n + (WEIGHTS_NOW) <= last; n += (WEIGHTS_NOW)) {                                      \
        BLOCK(p, x, y, carried, n, first, end, ROWS_NOW, WEIGHTS_NOW);                           \
        carried += (ROWS_NOW) * (WEIGHTS_NOW) * LANES / 2;                                       \
    }                                                                                            \
    for (; n < last; n++) {                                                                      \
        BLOCK(p, x, y, carried, n, first, end, ROWS_NOW, 1);                                     \
        carried += (ROWS_NOW) * LANES / 2;                                                       \
    }                                                                                            \
    break;

/* `rows` rows of x (at most ROWS) with rows n..last of w over columns first..end. */
#define STRIP_OF(NAME, BLOCK, X)                                                                 \
    static void NAME(const struct product *p, const X *x, uint16_t *y, float *carried,           \
                     ptrdiff_t n, ptrdiff_t last, ptrdiff_t first, ptrdiff_t end,                \
                     ptrdiff_t rows)                                                             \
    {                                                                                            \
        switch (rows) {                                                                          \
        case 1: EACH(BLOCK, 1, 4)                                                                \
        case 2: EACH(BLOCK, 2, 4)                                                                \
        case 3: EACH(BLOCK, 3, 4)                                                                \
        case 4: EACH(BLOCK, 4, 4)                                                                \
        case 5: EACH(BLOCK, 5, 3)                                                                \
        case 6: EACH(BLOCK, 6, 2)                                                                \
        case 7: EACH(BLOCK, 7, 2)                                                                \
        default: EACH(BLOCK, 8, 2)                                                               \
        }                                                                                        \
    }

TARGET STRIP_OF(fp32_strip, fp32_block, float)
TARGET_BF16 STRIP_OF(bf16_strip, bf16_block, uint16_t)

/* Widens x [rows, columns] to fp32, of every LANES columns the even ones first. */
TARGET static void widen(const uint16_t *x, float *wide, ptrdiff_t values)
{
    for (ptrdiff_t c = 0; c < values; c += LANES) {
        __m512i both = _mm512_loadu_si512(x + c);
        _mm512_storeu_ps(wide + c, even_to_fp32(both));
        _mm512_storeu_ps(wide + c + LANES / 2, odd_to_fp32(both));
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
            if (wide)
                fp32_strip(p, wide + at * p->columns, y + at * p->y_stride, sums, n, last, c, end,
                           now);
            else
                bf16_strip(p, x + at * p->columns, y + at * p->y_stride, sums, n, last, c, end,
                           now);
        }
}

#endif
