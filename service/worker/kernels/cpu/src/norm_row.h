/* RMSNorm of one bfloat16 row, or of the sum of two.
 *
 * Rounds where transformers' modules round: y = bfloat16(weight * bfloat16(x / sqrt(mean(x^2) +
 * eps))), all else in fp32. `norm_row` takes one pass over memory, and only the order in which it
 * adds the squares differs; `norm_row_as_torch` adds them as torch does on a CPU, so that results
 * are the same bit by bit. The order depends on the width alone, so a row's result does not depend
 * on the other rows.
 */
#ifndef KVSTITCH_NORM_ROW_H
#define KVSTITCH_NORM_ROW_H

#include "bfloat16.h"

#include <stddef.h>

#define SQUARES 4 /* independent sums, enough to hide the latency of an addition */
#define STEPS 16

/* y = weight * x / sqrt(squares / width + eps). */
TARGET INLINE void scale_row(const uint16_t *x, const uint16_t *weight, uint16_t *y,
                             ptrdiff_t width, float squares, float eps)
{
    __m128 root = _mm_sqrt_ss(_mm_set_ss(squares / (float)width + eps));
    __m512 scale = _mm512_set1_ps(1 / _mm_cvtss_f32(root));
    for (ptrdiff_t c = 0; c < width; c += LANES / 2) {
        __m512 normed = odd_to_fp32(round_to_bf16(_mm512_mul_ps(load_fp32(x + c), scale)));
        store_bf16(y + c, round_to_bf16(_mm512_mul_ps(load_fp32(weight + c), normed)));
    }
}

/* Of x, or where `added` is not NULL of x + added, which is written to `sum`. width is a multiple of
 * LANES / 2; x and y may be the same. */
TARGET INLINE void norm_row(const uint16_t *x, const uint16_t *added, const uint16_t *weight,
                          uint16_t *sum, uint16_t *y, ptrdiff_t width, float eps)
{
    __m512 squares[SQUARES] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(),
                            _mm512_setzero_ps()};
    const uint16_t *normed = added ? sum : x;
    for (ptrdiff_t c = 0; c < width; c += SQUARES * LANES / 2)
        for (int i = 0; i < SQUARES; i++) {
            ptrdiff_t at = c + i * LANES / 2;
            if (at >= width)
                break;
            __m512 value = load_fp32(x + at);
            if (added) {
                __m512i both = round_to_bf16(_mm512_add_ps(value, load_fp32(added + at)));
                store_bf16(sum + at, both);
                value = odd_to_fp32(both);
            }
            squares[i] = _mm512_fmadd_ps(value, value, squares[i]);
        }
    float total = _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(squares[0], squares[1]),
                                                     _mm512_add_ps(squares[2], squares[3])));
    scale_row(normed, weight, y, width, total, eps);
}

/* Adds the squares of x as torch adds fp32 numbers on a CPU: 32 sums side by side, each of them set
 * aside after every STEPS additions. width is a multiple of LANES below 2^13. */
TARGET INLINE float squares_as_torch(const uint16_t *x, ptrdiff_t width)
{
    __m512 sums[2], aside[2];
    for (int i = 0; i < 2; i++)
        sums[i] = aside[i] = _mm512_setzero_ps();
    for (ptrdiff_t c = 0, step = 1; c < width; c += LANES, step++)
        for (int i = 0; i < 2; i++) {
            __m512 value = load_fp32(x + c + i * LANES / 2);
            sums[i] = _mm512_add_ps(sums[i], _mm512_mul_round_ps(value, value, UNFUSED));
            if (step % STEPS == 0) {
                aside[i] = _mm512_add_ps(aside[i], sums[i]);
                sums[i] = _mm512_setzero_ps();
            }
        }
    float parts[4][8], total = 0;
    for (int i = 0; i < 2; i++)
        _mm512_storeu_ps(parts[2 * i], _mm512_add_ps(sums[i], aside[i]));
    for (int lane = 0; lane < 8; lane++)
        total += parts[0][lane] + parts[1][lane] + parts[2][lane] + parts[3][lane];
    return total;
}

/* `norm_row` with the squares added as torch does; width as there and here. */
TARGET INLINE void norm_row_as_torch(const uint16_t *x, const uint16_t *added,
                                     const uint16_t *weight, uint16_t *sum, uint16_t *y,
                                     ptrdiff_t width, float eps)
{
    if (added)
        add_row(x, added, sum, width);
    const uint16_t *normed = added ? sum : x;
    scale_row(normed, weight, y, width, squares_as_torch(normed, width), eps);
}

#endif
