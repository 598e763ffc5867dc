/* Rotary embedding of one bfloat16 row. Computed in fp32 and rounded once, without fused
 * multiply-add, so that the result equals torch's bit by bit. */
#ifndef KVSTITCH_ROTATE_ROW_H
#define KVSTITCH_ROTATE_ROW_H

#include "bfloat16.h"

#include <stddef.h>

/* x and y [heads, 2 * half], heads x_head and y_head values apart; they may be the same. */
TARGET INLINE void rotate_row(const uint16_t *x, uint16_t *y, const float *cosine,
                              const float *sine, ptrdiff_t heads, ptrdiff_t half, ptrdiff_t x_head,
                              ptrdiff_t y_head)
{
    for (ptrdiff_t c = 0; c < half; c += 16) {
        __m512 cos = _mm512_loadu_ps(cosine + c), sin = _mm512_loadu_ps(sine + c);
        for (ptrdiff_t head = 0; head < heads; head++) {
            const uint16_t *from = x + head * x_head + c;
            uint16_t *to = y + head * y_head + c;
            __m512 left = load_fp32(from), right = load_fp32(from + half);
            __m512 first = _mm512_sub_round_ps(_mm512_mul_round_ps(left, cos, UNFUSED),
                                               _mm512_mul_round_ps(right, sin, UNFUSED), UNFUSED);
            __m512 second = _mm512_add_round_ps(_mm512_mul_round_ps(right, cos, UNFUSED),
                                                _mm512_mul_round_ps(left, sin, UNFUSED), UNFUSED);
            store_bf16(to, round_to_bf16(first));
            store_bf16(to + half, round_to_bf16(second));
        }
    }
}

#endif
