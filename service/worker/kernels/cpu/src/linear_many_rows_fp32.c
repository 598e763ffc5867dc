/* Many rows times a bfloat16 weight as the checkpoint has it, at the speed of fp32 products.
 *
 * Libraries that multiply in fp32 want the weight in fp32, and then rearrange both sides at every
 * call. Here a weight is widened eight rows at a time in the first cache, and nowhere else, while
 * the next ones are fetched; x is rearranged once for all its weights. Rows lie in tiles of ROWS,
 * transposed, in fp32: x [tiles, in, ROWS]; so does the result, y [tiles, out, ROWS], which is the
 * x of the next product as it is. Every sum runs over the columns in the same order whatever the
 * number of rows or of threads is: a row's result does not depend on the rows beside it. Threads
 * are those of the OpenMP that torch has loaded.
 */
#include "bfloat16.h"
#include "tiles.h"

#include <omp.h>

#define DEPTH 256 /* columns of w at once: OUTS of them are 16 KiB widened, a tile of x is 96 */
#define GROUP 2   /* strips of OUTS that a thread takes at once */
/* Floats of x that all threads go through at a time, columns of every row: 512 KiB. */
#define ROOM (128 * 1024)

int linear_many_rows_fp32_supported(void) { return __builtin_cpu_supports("avx512f") != 0; }

/* y += w * x of a tile's first HALF * `wide` rows. w [OUTS, DEPTH] widened, of every LANES columns
 * the even ones first; x [columns, ROWS]; y [outs, ROWS], taken for zero if `fresh`. The memory at
 * `next`, rows `stride` apart, is fetched meanwhile. */
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

/* Rows `at` to `at` + OUTS of w, columns `first` to `first` + DEPTH, with all tiles. `next`: the
 * weights after these, or NULL. */
TARGET static void strip(const struct product *p, ptrdiff_t at, ptrdiff_t first,
                         const uint16_t *next)
{
    float wide[OUTS * DEPTH] __attribute__((aligned(64)));
    ptrdiff_t columns = p->in - first < DEPTH ? p->in - first : DEPTH;
    int outs = p->out - at < OUTS ? (int)(p->out - at) : OUTS, fresh = p->fresh && !first;
    const uint16_t *w = p->w + at * p->stride + first;
    for (int i = 0; i < OUTS; i++)
        for (ptrdiff_t c = 0; c < columns; c += LANES) {
            __m512i narrow = i < outs ? _mm512_loadu_si512(w + i * p->stride + c)
                                      : _mm512_setzero_si512();
            _mm512_store_ps(wide + i * DEPTH + c, even(narrow));
            _mm512_store_ps(wide + i * DEPTH + c + HALF, odd(narrow));
        }
    for (ptrdiff_t row = 0; row < p->rows; row += ROWS) {
        const float *x = p->x + row * p->in + first * ROWS;
        float *y = p->y + row * p->out + at * ROWS;
        /* Constants let the compiler keep the sums in registers. */
        switch ((p->rows - row + HALF - 1) / HALF) {
        case 1: multiply(wide, x, y, columns, outs, fresh, 1, next, p->stride); break;
        case 2: multiply(wide, x, y, columns, outs, fresh, 2, next, p->stride); break;
        default: multiply(wide, x, y, columns, outs, fresh, 3, next, p->stride);
        }
        next = NULL;
    }
}

/* GROUP strips from row `at` of w on, columns `first` to `end`. `then`: the thread's next row. */
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

/* y = w * x, or y += w * x with `add`. x [tiles, in, ROWS], of which `rows` rows count; w [out, in]
 * with rows `stride` apart; y [tiles, out, ROWS]; in is a multiple of LANES. */
TARGET void linear_many_rows_fp32_product(const float *x, const uint16_t *w, float *y, ptrdiff_t rows,
                              ptrdiff_t in, ptrdiff_t out, ptrdiff_t stride, int add, int threads)
{
    struct product p = {x, w, y, rows, in, out, stride, !add};
    ptrdiff_t parts = (in * rows + ROOM - 1) / ROOM;
    ptrdiff_t width = ((in + parts - 1) / parts + DEPTH - 1) / DEPTH * DEPTH, step = GROUP * OUTS;
    /* All threads do the same columns; one that is held up takes fewer rows of w. */
    _Pragma("omp parallel num_threads(threads) if (threads > 1)")
    for (ptrdiff_t first = 0; first < in; first += width) {
        _Pragma("omp for schedule(dynamic)")
        for (ptrdiff_t at = 0; at < out; at += step)
            group(&p, at, at + threads * step, first, first + width < in ? first + width : in);
    }
}

/* x [rows, in] bfloat16 into tiles [tiles, in, ROWS]; what no row fills is zero. in is a multiple
 * of LANES. */
TARGET void linear_many_rows_fp32_pack(const uint16_t *x, float *tiles, ptrdiff_t rows, ptrdiff_t in,
                           int threads)
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
                    __m256i narrow = _mm256_loadu_si256((const __m256i *)(x + row * in + c));
                    __m512i bits = _mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16);
                    v[i] = _mm512_castsi512_ps(bits);
                }
            }
            transpose(v);
            for (int i = 0; i < HALF; i++)
                _mm512_storeu_ps(to + (c + i) * ROWS, v[i]);
        }
    }
}

/* tiles [tiles, out, ROWS] into y [rows, out] bfloat16, bias (or NULL) [out] added before rounding.
 * out is a multiple of HALF. */
TARGET void linear_many_rows_fp32_unpack(const float *tiles, const uint16_t *bias, uint16_t *y, ptrdiff_t rows,
                             ptrdiff_t out, int threads)
{
    ptrdiff_t groups = (rows + HALF - 1) / HALF;
    _Pragma("omp parallel for schedule(static) num_threads(threads) if (threads > 1)")
    for (ptrdiff_t g = 0; g < groups; g++)
        unpack(tiles + g / 3 * ROWS * out + g % 3 * HALF, bias, y + g * HALF * out,
               rows - g * HALF, out, out);
}
