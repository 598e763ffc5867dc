/* RMSNorm of one bfloat16 row, or of the sum of two, in one pass over memory.
 *
 * Rounds where transformers' modules round: y = bfloat16(weight * bfloat16(x / sqrt(mean(x^2) +
 * eps))), all else in fp32. Only the order in which the squares are added differs. It depends on
 * the width alone, so a row's result does not depend on the other rows.
 */
#ifndef KVSTITCH_NORM_ROW_H
#define KVSTITCH_NORM_ROW_H

#include "bfloat16.h"

#include <stddef.h>

#define SQUARES 4 /* independent sums, enough to hide the latency of an addition */

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
    __m128 root = _mm_sqrt_ss(_mm_set_ss(total / (float)width + eps));
    __m512 scale = _mm512_set1_ps(1 / _mm_cvtss_f32(root));
    for (ptrdiff_t c = 0; c < width; c += LANES / 2) {
        __m512 normed_16 = odd_to_fp32(round_to_bf16(_mm512_mul_ps(load_fp32(normed + c), scale)));
        store_bf16(y + c, round_to_bf16(_mm512_mul_ps(load_fp32(weight + c), normed_16)));
    }
}

#endif
