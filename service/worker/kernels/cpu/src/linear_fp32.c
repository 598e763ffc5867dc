/* Linear layer of fp32 rows on a CPU with AVX2, with a weight as it is stored: fp32, bfloat16, int8
 * or int4 (`layer.h`).
 *
 * Few rows are multiplied with weights that are widened in registers, at memory speed. Of more, a
 * block of the weight is widened into the L2 cache and nowhere else, and all rows are multiplied
 * with it. Every sum adds the columns in the same order whatever the number of rows or threads, so
 * a row's result does not depend on the other rows; of int4, FEW rows do not depend on one another.
 */
#include "bfloat16.h"
#include "kernels.h"
#include "layer.h"

#define TARGET_AVX2 __attribute__((target("avx2,fma")))
#define ROWS 3     /* of x, multiplied at once with WEIGHTS rows of w: a register for each sum */
#define WEIGHTS 4
#define FEW 32     /* rows that are multiplied with int4 in registers: a batch of sequences */
#define OUTS 48    /* rows of a block */
#define DEPTH 1024 /* columns of a block, with OUTS rows 192 KiB in fp32; ROWS of x are 12 */
#define AHEAD 6    /* rows of w */

/* Some columns of rows of w and x, `stride` bytes and x_stride values apart; scales of int4. */
struct block {
    const char *w;
    const float *scales, *x;
    float *y;
    ptrdiff_t stride, groups, x_stride, y_stride, outs, columns;
    int fresh;
};

/* Values c + 8 * part.. of row n of w in fp32; c is a multiple of LANES. int8 without its scale,
 * int4 as 0..15. */
TARGET_AVX2 INLINE __m256 eight(const struct block *b, ptrdiff_t n, ptrdiff_t c, int part, int bits)
{
    ptrdiff_t bytes = bits == 4 ? c / 2 + part % 2 * 8 : (c + 8 * part) * bits / 8;
    const void *at = b->w + n * b->stride + bytes;
    if (bits == 32)
        return _mm256_loadu_ps(at);
    if (bits == 16)
        return _mm256_castsi256_ps(
            _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(at)), 16));
    if (bits == 8)
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(at)));
    __m256i pairs = _mm256_cvtepu8_epi32(_mm_loadl_epi64(at)), low = _mm256_set1_epi32(15);
    pairs = part < 2 ? _mm256_and_si256(pairs, low) : _mm256_srli_epi32(pairs, 4);
    return _mm256_cvtepi32_ps(pairs);
}

/* LANES values of int4 times x, less 8 times x, all times their scale. */
TARGET_AVX2 INLINE __m256 scaled_group(const struct block *b, ptrdiff_t n, ptrdiff_t c,
                                       const __m256 *values, const float *x)
{
    __m256 sum[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()}, all = sum[0];
    for (int part = 0; part < 4; part++) {
        __m256 row = _mm256_loadu_ps(x + 8 * part);
        all = _mm256_add_ps(all, row);
        sum[part % 2] = _mm256_fmadd_ps(values[part], row, sum[part % 2]);
    }
    __m256 whole = _mm256_fmadd_ps(_mm256_set1_ps(-8), all, _mm256_add_ps(sum[0], sum[1]));
    return _mm256_mul_ps(_mm256_broadcast_ss(b->scales + n * b->groups + c / LANES), whole);
}

/* y (or where not `fresh`, more of it) = x * w for WEIGHTS rows of w from n on. */
TARGET_AVX2 INLINE void multiply(const struct block *b, ptrdiff_t n, int rows, int bits)
{
    __m256 sums[ROWS][WEIGHTS], values[WEIGHTS][4];
    for (int i = 0; i < rows * WEIGHTS; i++)
        sums[i / WEIGHTS][i % WEIGHTS] = _mm256_setzero_ps();
    for (ptrdiff_t c = 0; c < b->columns; c += LANES) {
        for (int k = 0; bits < 32 && c * bits % 512 == 0 && k < WEIGHTS; k++)
            _mm_prefetch(b->w + (n + k + AHEAD) * b->stride + c * bits / 8, _MM_HINT_T0);
        for (int k = 0; bits == 4 && k < WEIGHTS; k++) {
            for (int part = 0; part < 4; part++)
                values[k][part] = eight(b, n + k, c, part, bits);
            for (int m = 0; m < rows; m++)
                sums[m][k] = _mm256_add_ps(sums[m][k], scaled_group(b, n + k, c, values[k],
                                                                    b->x + m * b->x_stride + c));
        }
        for (int part = 0; bits > 4 && part < 4; part++) {
            for (int k = 0; k < WEIGHTS; k++)
                values[k][part] = eight(b, n + k, c, part, bits);
            for (int m = 0; m < rows; m++) {
                __m256 row = _mm256_loadu_ps(b->x + m * b->x_stride + c + 8 * part);
                for (int k = 0; k < WEIGHTS; k++)
                    sums[m][k] = _mm256_fmadd_ps(row, values[k][part], sums[m][k]);
            }
        }
    }
    for (int m = 0; m < rows; m++) {
        __m256 two = _mm256_hadd_ps(_mm256_hadd_ps(sums[m][0], sums[m][1]),
                                    _mm256_hadd_ps(sums[m][2], sums[m][3]));
        float *y = b->y + m * b->y_stride + n;
        __m128 four = _mm_add_ps(_mm256_castps256_ps128(two), _mm256_extractf128_ps(two, 1));
        _mm_storeu_ps(y, b->fresh ? four : _mm_add_ps(_mm_loadu_ps(y), four));
    }
}

/* All rows of x; `bits` is a constant here, so that the compiler keeps the sums in registers. */
TARGET_AVX2 INLINE void all_rows(struct block b, ptrdiff_t rows, int bits)
{
    for (; rows > 0; rows -= ROWS, b.x += ROWS * b.x_stride, b.y += ROWS * b.y_stride)
        for (ptrdiff_t n = 0; n < b.outs; n += WEIGHTS)
            if (rows == 1)
                multiply(&b, n, 1, bits);
            else if (rows == 2)
                multiply(&b, n, 2, bits);
            else
                multiply(&b, n, ROWS, bits);
}

TARGET_AVX2 static void all_wide(struct block b, ptrdiff_t rows) { all_rows(b, rows, 32); }

/* The same, of many rows after the block is widened, to `wide` [OUTS, DEPTH]. */
TARGET_AVX2 INLINE void multiply_block(struct block b, ptrdiff_t rows, float *wide, int bits)
{
    if (rows <= (bits == 4 ? FEW : bits == 32 ? rows : ROWS)) {
        all_rows(b, rows, bits);
        return;
    }
    for (ptrdiff_t n = 0; n < b.outs; n++)
        for (ptrdiff_t c = 0; c < b.columns; c += 8) {
            __m256 values = eight(&b, n, c / LANES * LANES, c % LANES / 8, bits);
            if (bits == 4) {
                __m256 scale = _mm256_broadcast_ss(b.scales + n * b.groups + c / LANES);
                values = _mm256_mul_ps(_mm256_sub_ps(values, _mm256_set1_ps(8)), scale);
            }
            _mm256_store_ps(wide + n * DEPTH + c, values);
        }
    b.w = (const char *)wide, b.stride = DEPTH * sizeof(float);
    all_wide(b, rows);
}

/* y [rows, outs] = x [rows, columns] * w [outs, columns]. outs is a multiple of WEIGHTS, columns of
 * LANES. */
TARGET_AVX2 void linear_fp32(const float *x, const void *values, const float *scales, float *y,
                             ptrdiff_t rows, ptrdiff_t outs, ptrdiff_t columns, ptrdiff_t bits,
                             int threads)
{
    _Pragma("omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)")
    for (ptrdiff_t n = 0; n < outs; n += OUTS) {
        float wide[OUTS * DEPTH] __attribute__((aligned(64)));
        ptrdiff_t count = outs - n < OUTS ? outs - n : OUTS;
        for (ptrdiff_t c = 0; c < columns; c += DEPTH) {
            ptrdiff_t at = n * columns + c, depth = columns - c < DEPTH ? columns - c : DEPTH;
            struct block b = {(const char *)values + at * bits / 8, scales + at / LANES, x + c,
                              y + n, columns * bits / 8, columns / LANES, columns, outs, count,
                              depth, !c};
            switch (bits) {
            case 32: multiply_block(b, rows, wide, 32); break;
            case 16: multiply_block(b, rows, wide, 16); break;
            case 8: multiply_block(b, rows, wide, 8); break;
            default: multiply_block(b, rows, wide, 4);
            }
        }
        for (ptrdiff_t m = 0; bits == 8 && m < rows; m++)
            for (ptrdiff_t i = n; i < n + count; i++)
                y[m * outs + i] *= scales[i];
    }
}
