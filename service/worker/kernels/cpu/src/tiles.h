/* Tiles of ROWS prompt rows each, transposed: the rows lie side by side. */
#ifndef KVSTITCH_TILES_H
#define KVSTITCH_TILES_H

#include "bfloat16.h"

#include <stddef.h>

#define ROWS 48 /* rows of a tile: three registers */
#define OUTS 8  /* rows of a weight multiplied at once: 24 registers of sums */
#define HALF (LANES / 2)

/* Transposes the 16 x 16 values of v in place. */
TARGET INLINE void transpose(__m512 *v)
{
    __m512 a[HALF], b[HALF];
    for (int i = 0; i < HALF; i += 2) {
        a[i] = _mm512_unpacklo_ps(v[i], v[i + 1]);
        a[i + 1] = _mm512_unpackhi_ps(v[i], v[i + 1]);
    }
    for (int i = 0; i < HALF; i += 4)
        for (int j = 0; j < 2; j++) {
            __m512d one = _mm512_castps_pd(a[i + j]), other = _mm512_castps_pd(a[i + j + 2]);
            b[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(one, other));
            b[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(one, other));
        }
    for (int j = 0; j < 4; j++) {
        __m512 low = _mm512_shuffle_f32x4(b[j], b[j + 4], 0x88);
        __m512 high = _mm512_shuffle_f32x4(b[j], b[j + 4], 0xdd);
        __m512 low2 = _mm512_shuffle_f32x4(b[j + 8], b[j + 12], 0x88);
        __m512 high2 = _mm512_shuffle_f32x4(b[j + 8], b[j + 12], 0xdd);
        v[j] = _mm512_shuffle_f32x4(low, low2, 0x88);
        v[j + 8] = _mm512_shuffle_f32x4(low, low2, 0xdd);
        v[j + 4] = _mm512_shuffle_f32x4(high, high2, 0x88);
        v[j + 12] = _mm512_shuffle_f32x4(high, high2, 0xdd);
    }
}

/* Transposes HALF rows of a tile [out, ROWS] back into rows of y, bfloat16, `stride` values apart.
 * Only the first `rows` are written. bias [out] (or NULL) is added before rounding. out is a
 * multiple of HALF. */
TARGET INLINE void unpack(const float *tile, const uint16_t *bias, uint16_t *y, ptrdiff_t rows,
                          ptrdiff_t out, ptrdiff_t stride)
{
    for (ptrdiff_t c = 0; c < out; c += HALF) {
        __m512 v[HALF];
        for (int i = 0; i < HALF; i++) {
            v[i] = _mm512_loadu_ps(tile + (c + i) * ROWS);
            if (bias)
                v[i] = _mm512_add_ps(v[i], _mm512_set1_ps(to_fp32(bias[c + i])));
        }
        transpose(v);
        for (ptrdiff_t i = 0; i < HALF && i < rows; i++)
            _mm256_storeu_si256((__m256i *)(y + i * stride + c),
                                _mm512_cvtepi32_epi16(_mm512_srli_epi32(round_to_bf16(v[i]), 16)));
    }
}

#endif
