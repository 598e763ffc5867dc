/* Linear layer for many rows, with a bfloat16 weight as the checkpoint stores it, by the CPU's
 * bfloat16 dot products.
 *
 * The counterpart of `linear_many_rows_fp32.c` for CPUs on which AVX512-BF16 is faster than fp32
 * (`linear_many_rows_bf16.py` measures it). A register of a tile holds pairs: two columns of 16
 * rows of x. A pair of columns of the weight is broadcast as one number, so nothing is converted.
 * x and the intermediate values of an MLP are bfloat16, sums are fp32. A block of a few tiles
 * stays in the L2 cache while the whole weight is multiplied with it. Every sum adds the columns
 * in the same order whatever the number of rows or threads, so a row's result does not depend on
 * the other rows. Threads are those of the OpenMP library that torch has loaded.
 */
#include "bfloat16.h"
#include "exponential.h"
#include "kernels.h"
#include "tiles.h"
#include "work.h"

#include <omp.h>

#define TILES 4 /* tiles of a block: 192 rows */
/* Bytes of a block (some columns of all rows) that all threads work on at a time. */
#define ROOM (512 * 1024)

/* y += w * x for the first HALF * `wide` rows of a tile. w: OUTS rows of `columns` columns,
 * `stride` values apart, and `outs` - OUTS more rows at `other`; x [columns / 2, ROWS, 2]; y
 * [outs, ROWS], counted as zero if `fresh`. Prefetches the weights at `next`, rows `stride` values
 * apart. */
TARGET_BF16 INLINE void multiply(const uint16_t *w, const uint16_t *other, const uint16_t *x,
                                 float *y, ptrdiff_t columns, ptrdiff_t stride, int fresh, int outs,
                                 int wide, const uint16_t *next)
{
    __m512 sums[2 * OUTS][3];
    for (int i = 0; i < outs; i++)
        for (int j = 0; j < wide; j++)
            sums[i][j] = fresh ? _mm512_setzero_ps() : _mm512_loadu_ps(y + i * ROWS + j * HALF);
    for (ptrdiff_t c = 0; c < columns; c += LANES) {
        if (next)
            for (int i = 0; i < OUTS; i++)
                _mm_prefetch((const char *)(next + i * stride + c), _MM_HINT_T1);
        for (int k = 0; k < LANES; k += 2) {
            __m512 rows[3];
            for (int j = 0; j < wide; j++)
                rows[j] = _mm512_loadu_ps(x + (c + k) * ROWS + j * LANES);
            for (int i = 0; i < outs; i++) {
                const uint16_t *from = i < OUTS ? w + i * stride : other + (i - OUTS) * stride;
                __m512i weight = _mm512_set1_epi32(pair_at(from + c + k));
                for (int j = 0; j < wide; j++)
                    sums[i][j] = _mm512_dpbf16_ps(sums[i][j], (__m512bh)weight, (__m512bh)rows[j]);
            }
        }
    }
    for (int i = 0; i < outs; i++)
        for (int j = 0; j < wide; j++)
            _mm512_storeu_ps(y + i * ROWS + j * HALF, sums[i][j]);
}

/* `multiply` for OUTS rows of w; constant arguments, so that the compiler keeps the sums in
 * registers. */
TARGET_BF16 static void one_strip(const uint16_t *w, const uint16_t *x, float *y, ptrdiff_t columns,
                                  ptrdiff_t stride, int fresh, ptrdiff_t rows, const uint16_t *next)
{
    if (rows <= HALF)
        multiply(w, NULL, x, y, columns, stride, fresh, OUTS, 1, next);
    else if (rows <= 2 * HALF)
        multiply(w, NULL, x, y, columns, stride, fresh, OUTS, 2, next);
    else
        multiply(w, NULL, x, y, columns, stride, fresh, OUTS, 3, next);
}

/* `multiply` for OUTS rows at w and OUTS at `other`: of up to 16 rows, one strip alone has too few
 * sums to keep the CPU busy. */
TARGET_BF16 static void two_strips(const uint16_t *w, const uint16_t *other, const uint16_t *x,
                                   float *y, ptrdiff_t columns, ptrdiff_t stride, int fresh,
                                   ptrdiff_t rows, const uint16_t *next, const uint16_t *next_other)
{
    if (rows <= HALF) {
        multiply(w, other, x, y, columns, stride, fresh, 2 * OUTS, 1, next);
        return;
    }
    one_strip(w, x, y, columns, stride, fresh, rows, next);
    one_strip(other, x, y + OUTS * ROWS, columns, stride, fresh, rows, next_other);
}

/* x [rows, in], rows `stride` values apart, to tiles of pairs [tiles, in / 2, ROWS, 2], filled up
 * with zeros. in is a multiple of LANES. */
TARGET_BF16 void linear_many_rows_bf16_pack(const uint16_t *x, uint16_t *pairs, ptrdiff_t rows,
                                     ptrdiff_t in, ptrdiff_t stride, int threads)
{
    ptrdiff_t groups = (rows + ROWS - 1) / ROWS * (ROWS / HALF);
    _Pragma("omp parallel for schedule(static) num_threads(threads) if (threads > 1)")
    for (ptrdiff_t g = 0; g < groups; g++) {
        uint16_t *to = pairs + g / 3 * ROWS * in + g % 3 * LANES;
        for (ptrdiff_t c = 0; c < in; c += LANES) {
            __m512 v[HALF];
            for (int i = 0; i < HALF; i++) {
                ptrdiff_t row = g * HALF + i;
                v[i] = row < rows ? _mm512_loadu_ps(x + row * stride + c) : _mm512_setzero_ps();
            }
            transpose(v); /* moves each pair as one number */
            for (int i = 0; i < HALF; i++)
                _mm512_storeu_ps(to + (c + 2 * i) * ROWS, v[i]);
        }
    }
}

/* y = w * x + bias. x: tiles of pairs [tiles, in / 2, ROWS, 2] with `rows` rows in use; w [out,
 * in], rows `stride` values apart; bias [out] or NULL; y [rows, out] bfloat16, rows `y_stride`
 * values apart; scratch [min(tiles, TILES), out, ROWS]. in is a multiple of LANES, out of HALF. */
TARGET_BF16 void linear_many_rows_bf16_product(const uint16_t *x, const uint16_t *w,
                                              const uint16_t *bias, uint16_t *y, float *scratch,
                                              ptrdiff_t rows, ptrdiff_t in, ptrdiff_t out,
                                              ptrdiff_t stride, ptrdiff_t y_stride, int threads)
{
    ptrdiff_t whole = rows < TILES * ROWS ? rows : TILES * ROWS;
    ptrdiff_t parts = (in * whole * 2 + ROOM - 1) / ROOM, step = 2 * OUTS;
    ptrdiff_t width = ((in + parts - 1) / parts + LANES - 1) / LANES * LANES;
    ptrdiff_t strips = out / step, taken = 0; /* taken by all threads, over all blocks */
    _Pragma("omp parallel num_threads(threads) if (threads > 1)")
    for (ptrdiff_t from = 0, all = 0; from < rows; from += TILES * ROWS) {
        ptrdiff_t count = rows - from < TILES * ROWS ? rows - from : TILES * ROWS;
        /* All threads work on the same columns. */
        for (ptrdiff_t c = 0; c < in; c += width, all += strips) {
            ptrdiff_t columns = in - c < width ? in - c : width, s, end;
            while (next_run(&taken, all + strips, threads, &s, &end))
                for (; s < end; s++) {
                    ptrdiff_t at = (s - all) * step;
                    const uint16_t *one = w + at * stride + c, *other = one + OUTS * stride;
                    const uint16_t *next = s + 1 < end ? one + step * stride : NULL;
                    const uint16_t *tile = x + from * in + c * ROWS;
                    float *y = scratch + at * ROWS;
                    ptrdiff_t row = 0; /* a strip of w stays in the L1 cache for all tiles */
                    for (; row + HALF < count; row += ROWS)
                        one_strip(one, tile + row * in, y + row * out, columns, stride, !c,
                                  count - row, row ? NULL : other);
                    for (row = 0; row + HALF < count; row += ROWS)
                        one_strip(other, tile + row * in, y + row * out + OUTS * ROWS, columns,
                                  stride, !c, count - row, row ? NULL : next);
                    if (row < count)
                        two_strips(one, other, tile + row * in, y + row * out, columns, stride, !c,
                                   count - row, row ? NULL : next, NULL);
                }
            _Pragma("omp barrier")
        }
        _Pragma("omp for schedule(static)")
        for (ptrdiff_t row = 0; row < count; row += HALF)
            unpack(scratch + row / ROWS * ROWS * out + row % ROWS, bias,
                   y + (from + row) * y_stride, count - row, out, y_stride);
    }
}

/* silu(gate) * up for OUTS columns and the first `rows` rows of a tile [OUTS, ROWS], rounded once,
 * to pairs [OUTS / 2, ROWS, 2]. */
TARGET_BF16 INLINE void gate_and_pair(const float *gate, const float *up, uint16_t *pairs,
                                      ptrdiff_t rows)
{
    for (ptrdiff_t at = 0; at < OUTS * ROWS; at += 2 * ROWS)
        for (ptrdiff_t j = 0; j < ROWS && j < rows; j += HALF) {
            __m512i pair[2];
            for (int odd_one = 0; odd_one < 2; odd_one++) {
                ptrdiff_t i = at + odd_one * ROWS + j;
                pair[odd_one] = round_to_bf16(_mm512_mul_ps(silu(_mm512_load_ps(gate + i)),
                                                      _mm512_load_ps(up + i)));
            }
            __m512i high = _mm512_and_si512(pair[1], _mm512_set1_epi32((int)0xffff0000));
            _mm512_storeu_si512(pairs + at + 2 * j,
                                _mm512_or_si512(high, _mm512_srli_epi32(pair[0], 16)));
        }
}

/* inner = silu(gate * x) * (up * x) for columns first..last, rounded once. x as above; gate and up
 * [out, in]; inner: tiles of pairs [tiles, out / 2, ROWS, 2]. first and last are multiples of
 * OUTS. */
TARGET_BF16 void linear_many_rows_bf16_gated(const uint16_t *x, const uint16_t *gate,
                                             const uint16_t *up, uint16_t *inner, ptrdiff_t rows,
                                             ptrdiff_t in, ptrdiff_t out, ptrdiff_t first,
                                             ptrdiff_t last, ptrdiff_t stride, int threads)
{
    ptrdiff_t taken = first / OUTS;
    _Pragma("omp parallel num_threads(threads) if (threads > 1)")
    for (ptrdiff_t s, end; next_run(&taken, last / OUTS, threads, &s, &end);)
        for (; s < end; s++) {
            const uint16_t *one = gate + s * OUTS * stride, *other = up + s * OUTS * stride;
            for (ptrdiff_t row = 0; row < rows; row += ROWS) {
                float y[2][OUTS * ROWS] __attribute__((aligned(64)));
                ptrdiff_t ahead = !row && s + 1 < end ? OUTS * stride : 0; /* the next strip */
                two_strips(one, other, x + row * in, y[0], in, stride, 1, rows - row,
                           ahead ? one + ahead : NULL, ahead ? other + ahead : NULL);
                gate_and_pair(y[0], y[1], inner + row * out + s * OUTS * ROWS, rows - row);
            }
        }
}
