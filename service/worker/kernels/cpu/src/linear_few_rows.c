/* Linear layer for few rows, with a bfloat16 weight as the checkpoint stores it, at memory speed.
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
 * so a row's result does not depend on the other rows. Threads are those of the OpenMP library that
 * torch has loaded.
 */
#include "bfloat16.h"

#include <omp.h>
#include <stddef.h>

#define ROWS 8
#define SUMS 16    /* sums computed at once (rows of x times rows of w), one register each */
#define STRIP 24   /* rows of w that stay in the cache while all rows of x are multiplied */
#define WIDTH 1024 /* columns of x and w multiplied before the next columns */

int linear_few_rows_supported(void) { return __builtin_cpu_supports("avx512f") != 0; }

struct product {
    const uint16_t *w, *bias;
    ptrdiff_t outs, columns, stride;
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
            y[m * p->outs + n + k] = out[m * weights + k];
}

/* Prefetches the next block: the CPU's own prefetcher starts too late for runs this short. */
TARGET INLINE void look_ahead(const uint16_t *at, ptrdiff_t columns)
{
    if (columns <= WIDTH)
        _mm_prefetch((const char *)at, _MM_HINT_T0);
}

/* Multiplies `rows` rows of x with `weights` rows of w, from row n on, over columns first..end. */
TARGET INLINE void fp32_block(const struct product *p, const float *x, uint16_t *y, float *carried,
                              ptrdiff_t n, ptrdiff_t first, ptrdiff_t end, int rows, int weights)
{
    __m512 sums[SUMS];
    begin(sums, carried, first, rows, weights);
    for (ptrdiff_t c = first; c < end; c += LANES) {
        __m512 evens[4], odds[4];
        for (int k = 0; k < weights; k++) {
            const uint16_t *at = p->w + (n + k) * p->stride + c;
            look_ahead(at + weights * p->stride, end - first);
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
    begin(sums, carried, first, rows, weights);
    for (ptrdiff_t c = first; c < end; c += LANES) {
        __m512i weight[4];
        for (int k = 0; k < weights; k++) {
            const uint16_t *at = p->w + (n + k) * p->stride + c;
            look_ahead(at + weights * p->stride, end - first);
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

/* x [rows, columns], w [outs, columns] with rows `stride` values apart, y [rows, outs]; bias may be
 * NULL. scratch [rows, columns] fp32, not used with bf16_dot; carried [threads, rows, STRIP,
 * LANES / 2] fp32. columns is a multiple of LANES. */
TARGET void linear_few_rows_product(const uint16_t *x, const uint16_t *w, const uint16_t *bias,
                                    uint16_t *y, float *scratch, float *carried, ptrdiff_t rows,
                                    ptrdiff_t outs, ptrdiff_t columns, ptrdiff_t stride,
                                    int bf16_dot, int threads)
{
    struct product p = {w, bias, outs, columns, stride};
    for (ptrdiff_t c = 0; !bf16_dot && c < rows * columns; c += LANES) {
        __m512i both = _mm512_loadu_si512(x + c);
        _mm512_storeu_ps(scratch + c, even_to_fp32(both));
        _mm512_storeu_ps(scratch + c + LANES / 2, odd_to_fp32(both));
    }
    /* With few rows the time goes into reading w, which is fastest in long runs. */
    ptrdiff_t width = rows > ROWS / 2 ? WIDTH : columns, strips = (outs + STRIP - 1) / STRIP;
    _Pragma("omp parallel for schedule(static) num_threads(threads) if (threads > 1)")
    for (ptrdiff_t s = 0; s < strips; s++) {
        float *mine = carried + omp_get_thread_num() * rows * STRIP * (LANES / 2);
        ptrdiff_t n = s * STRIP, last = n + STRIP < outs ? n + STRIP : outs;
        for (ptrdiff_t c = 0; c < columns; c += width)
            for (ptrdiff_t at = 0; at < rows; at += ROWS) {
                ptrdiff_t now = rows - at < ROWS ? rows - at : ROWS;
                ptrdiff_t end = c + width < columns ? c + width : columns;
                float *sums = mine + at * STRIP * (LANES / 2);
                if (bf16_dot)
                    bf16_strip(&p, x + at * columns, y + at * outs, sums, n, last, c, end, now);
                else
                    fp32_strip(&p, scratch + at * columns, y + at * outs, sums, n, last, c, end,
                               now);
            }
    }
}
