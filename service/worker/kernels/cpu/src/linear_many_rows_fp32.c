/* Linear layer for many rows, with a bfloat16 weight as the checkpoint stores it, at fp32 speed.
 *
 * Libraries that multiply in fp32 need the weight in fp32, and rearrange both operands on every
 * call. Here eight rows of the weight at a time are converted in the L1 cache and nowhere else,
 * while the next ones are prefetched, and x is rearranged once for all its weights: into transposed
 * tiles of ROWS rows in fp32, x [tiles, in, ROWS]. The result y [tiles, out, ROWS] has the same
 * form and can be the x of the next product. Every sum adds the columns in the same order whatever
 * the number of rows or threads, so a row's result does not depend on the other rows. Threads are
 * those of the OpenMP library that torch has loaded.
 */
#include "bfloat16.h"
#include "kernels.h"
#include "tiles.h"

#include <omp.h>

#define DEPTH 256 /* columns of w at once: OUTS of them are 16 KiB in fp32, a tile of x is 96 */
#define GROUP 2   /* strips of OUTS rows that a thread takes at once */
/* Floats of x (some columns of all rows) that all threads work on at a time: 512 KiB. */
#define ROOM (128 * 1024)

/* y += w * x for the first HALF * `wide` rows of a tile. w [OUTS, DEPTH] in fp32, of every LANES
 * columns the even ones first; x [columns, ROWS]; y [outs, ROWS], counted as zero if `fresh`.
 * Prefetches the weights at `next`, rows `stride` values apart. */
TARGET INLINE void multiply(const float *w, const float *x, float *y, ptrdiff_t columns, int outs,
                            int fresh, int wide, const uint16_t *next, ptrdiff_t stride)
{
    __m512 sums[OUTS][3];
    for (int i = 0; i < OUTS; i++)
        for (int j = 0; j < wide; j++)
            sums[i][j] = fresh || i >= outs ? _mm512_setzero_ps()
                                            : _mm512_loadu_ps(y + i * ROWS + j * HALF);
    for (ptrdiff_t c = 0; c < columns; c += LANES) {
        if (next)
            for (int i = 0; i < OUTS; i++)
                _mm_prefetch((const char *)(next + i * stride + c), _MM_HINT_T1);
        for (int odd_ones = 0; odd_ones < 2; odd_ones++)
            for (int k = 0; k < HALF; k++) {
                const float *row = x + (c + 2 * k + odd_ones) * ROWS;
                const float *column = w + c + odd_ones * HALF + k;
                __m512 rows[3];
                for (int j = 0; j < wide; j++)
                    rows[j] = _mm512_loadu_ps(row + j * HALF);
                for (int i = 0; i < OUTS; i++) {
                    __m512 weight = _mm512_set1_ps(column[i * DEPTH]);
                    for (int j = 0; j < wide; j++)
                        sums[i][j] = _mm512_fmadd_ps(weight, rows[j], sums[i][j]);
                }
            }
    }
    for (int i = 0; i < outs; i++)
        for (int j = 0; j < wide; j++)
            _mm512_storeu_ps(y + i * ROWS + j * HALF, sums[i][j]);
}

struct product {
    const float *x;
    const uint16_t *w;
    float *y;
    ptrdiff_t rows, in, out, stride;
    int fresh;
};

/* Multiplies rows at..at + OUTS and columns first..first + DEPTH of w with all tiles. `next`: the
 * weights that come after these, or NULL. */
TARGET static void strip(const struct product *p, ptrdiff_t at, ptrdiff_t first,
                         const uint16_t *next)
{
    float wide[OUTS * DEPTH] __attribute__((aligned(64)));
    ptrdiff_t columns = p->in - first < DEPTH ? p->in - first : DEPTH;
    int outs = p->out - at < OUTS ? (int)(p->out - at) : OUTS, fresh = p->fresh && !first;
    const uint16_t *w = p->w + at * p->stride + first;
    for (int i = 0; i < OUTS; i++)
        for (ptrdiff_t c = 0; c < columns; c += LANES) {
            __m512i packed = i < outs ? _mm512_loadu_si512(w + i * p->stride + c)
                                      : _mm512_setzero_si512();
            _mm512_store_ps(wide + i * DEPTH + c, even_to_fp32(packed));
            _mm512_store_ps(wide + i * DEPTH + c + HALF, odd_to_fp32(packed));
        }
    for (ptrdiff_t row = 0; row < p->rows; row += ROWS) {
        const float *x = p->x + row * p->in + first * ROWS;
        float *y = p->y + row * p->out + at * ROWS;
        /* Constant arguments, so that the compiler keeps the sums in registers. */
        switch ((p->rows - row + HALF - 1) / HALF) {
        case 1: multiply(wide, x, y, columns, outs, fresh, 1, next, p->stride); break;
        case 2: multiply(wide, x, y, columns, outs, fresh, 2, next, p->stride); break;
        default: multiply(wide, x, y, columns, outs, fresh, 3, next, p->stride);
        }
        next = NULL;
    }
}

/* GROUP strips from row `at` of w on, columns first..end. `then`: the row that this thread takes
 * next, for prefetching. */
TARGET static void group(const struct product *p, ptrdiff_t at, ptrdiff_t then, ptrdiff_t first,
                         ptrdiff_t end)
{
    ptrdiff_t last = at + GROUP * OUTS < p->out ? at + GROUP * OUTS : p->out;
    for (ptrdiff_t c = first; c < end; c += DEPTH)
        for (ptrdiff_t i = at; i < last; i += OUTS) {
            ptrdiff_t row = i + OUTS, column = c;
            if (row >= last) {
                column = c + DEPTH < end ? c + DEPTH : first;
                row = c + DEPTH < end ? at : then;
            }
            strip(p, i, c, row + OUTS <= p->out ? p->w + row * p->stride + column : NULL);
        }
}

/* y = w * x. x [tiles, in, ROWS] with `rows` rows in use; w [out, in]
 * with rows `stride` values apart; y [tiles, out, ROWS]; in is a multiple of LANES. */
TARGET void linear_many_rows_fp32_product(const float *x, const uint16_t *w, float *y,
                                          ptrdiff_t rows, ptrdiff_t in, ptrdiff_t out,
                                          ptrdiff_t stride, int threads)
{
    struct product p = {x, w, y, rows, in, out, stride, 1};
    ptrdiff_t parts = (in * rows + ROOM - 1) / ROOM;
    ptrdiff_t width = ((in + parts - 1) / parts + DEPTH - 1) / DEPTH * DEPTH, step = GROUP * OUTS;
    /* All threads work on the same columns; a slower one takes fewer rows of w. */
    _Pragma("omp parallel num_threads(threads) if (threads > 1)")
    for (ptrdiff_t first = 0; first < in; first += width) {
        _Pragma("omp for schedule(dynamic)")
        for (ptrdiff_t at = 0; at < out; at += step)
            group(&p, at, at + threads * step, first, first + width < in ? first + width : in);
    }
}

/* x [rows, in] bfloat16 to tiles [tiles, in, ROWS], filled up with zeros. in is a multiple of
 * LANES. */
TARGET void linear_many_rows_fp32_pack(const uint16_t *x, float *tiles, ptrdiff_t rows,
                                       ptrdiff_t in, int threads)
{
    ptrdiff_t groups = (rows + ROWS - 1) / ROWS * (ROWS / HALF);
    _Pragma("omp parallel for schedule(static) num_threads(threads) if (threads > 1)")
    for (ptrdiff_t g = 0; g < groups; g++) {
        float *to = tiles + g / 3 * ROWS * in + g % 3 * HALF;
        for (ptrdiff_t c = 0; c < in; c += HALF) {
            __m512 v[HALF];
            for (int i = 0; i < HALF; i++) {
                ptrdiff_t row = g * HALF + i;
                v[i] = _mm512_setzero_ps();
                if (row < rows) {
                    __m256i packed = _mm256_loadu_si256((const __m256i *)(x + row * in + c));
                    __m512i bits = _mm512_slli_epi32(_mm512_cvtepu16_epi32(packed), 16);
                    v[i] = _mm512_castsi512_ps(bits);
                }
            }
            transpose(v);
            for (int i = 0; i < HALF; i++)
                _mm512_storeu_ps(to + (c + i) * ROWS, v[i]);
        }
    }
}

/* tiles [tiles, out, ROWS] to y [rows, out] bfloat16; bias [out] (or NULL) is added before
 * rounding. out is a multiple of HALF. */
TARGET void linear_many_rows_fp32_unpack(const float *tiles, const uint16_t *bias, uint16_t *y,
                                         ptrdiff_t rows, ptrdiff_t out, int threads)
{
    ptrdiff_t groups = (rows + HALF - 1) / HALF;
    _Pragma("omp parallel for schedule(static) num_threads(threads) if (threads > 1)")
    for (ptrdiff_t g = 0; g < groups; g++)
        unpack(tiles + g / 3 * ROWS * out + g % 3 * HALF, bias, y + g * HALF * out,
               rows - g * HALF, out, out);
}
