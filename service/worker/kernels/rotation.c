/* Rotary embedding of bfloat16 rows, from where they are stored to where they are needed: in fp32,
 * rounded once, every product by itself, so that the result is torch's to the bit. Threads are those
 * of the OpenMP that torch has loaded.
 */
#include "bfloat16.h"

#include <stddef.h>

#define HERE _MM_FROUND_CUR_DIRECTION /* operations that no compiler joins into one */

int rotation_supported(void) { return __builtin_cpu_supports("avx512f") != 0; }

/* x and y [rows, heads, 2 * half] with strides in values, the last axis contiguous; positions
 * [rows]; cosine and sine [positions, half]. */
TARGET void rotation_rows(const uint16_t *x, uint16_t *y, const int64_t *positions,
                          const float *cosine, const float *sine, ptrdiff_t rows, ptrdiff_t heads,
                          ptrdiff_t half, ptrdiff_t x_row, ptrdiff_t x_head, ptrdiff_t y_row,
                          ptrdiff_t y_head, int threads)
{
    _Pragma("omp parallel for schedule(static) num_threads(threads) if (threads > 1)")
    for (ptrdiff_t row = 0; row < rows; row++)
        for (ptrdiff_t c = 0; c < half; c += 16) {
            __m512 cos = _mm512_loadu_ps(cosine + positions[row] * half + c);
            __m512 sin = _mm512_loadu_ps(sine + positions[row] * half + c);
            for (ptrdiff_t head = 0; head < heads; head++) {
                const uint16_t *from = x + row * x_row + head * x_head + c;
                uint16_t *to = y + row * y_row + head * y_head + c;
                __m512 left = loaded(from), right = loaded(from + half);
                __m512 first = _mm512_sub_round_ps(_mm512_mul_round_ps(left, cos, HERE),
                                                   _mm512_mul_round_ps(right, sin, HERE), HERE);
                __m512 second = _mm512_add_round_ps(_mm512_mul_round_ps(right, cos, HERE),
                                                    _mm512_mul_round_ps(left, sin, HERE), HERE);
                stored(to, rounded(first));
                stored(to + half, rounded(second));
            }
        }
}

/* Rows [rows, heads, width] as they are, strides as above; width is a multiple of LANES. */
TARGET void rotation_copy(const uint16_t *x, uint16_t *y, ptrdiff_t rows, ptrdiff_t heads,
                          ptrdiff_t width, ptrdiff_t x_row, ptrdiff_t x_head, ptrdiff_t y_row,
                          ptrdiff_t y_head)
{
    for (ptrdiff_t head = 0; head < heads; head++)
        for (ptrdiff_t row = 0; row < rows; row++)
            for (ptrdiff_t c = 0; c < width; c += LANES)
                _mm512_storeu_si512(y + row * y_row + head * y_head + c,
                                    _mm512_loadu_si512(x + row * x_row + head * x_head + c));
}
