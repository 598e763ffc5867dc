/* Rotary embedding of bfloat16 rows, from where they are stored to where they are needed: in fp32,
 * rounded once, every product by itself, so that the result is torch's to the bit.
 */
#include "bfloat16.h"

#include <stddef.h>

#define HERE _MM_FROUND_CUR_DIRECTION /* operations that no compiler joins into one */

int rotation_supported(void) { return __builtin_cpu_supports("avx512f") != 0; }

TARGET INLINE __m512 loaded(const uint16_t *x)
{
    __m256i narrow = _mm256_loadu_si256((const __m256i *)x);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16));
}

TARGET INLINE void stored(uint16_t *y, __m512 value)
{
    __m512i bits = _mm512_srli_epi32(rounded(value), 16);
    _mm256_storeu_si256((__m256i *)y, _mm512_cvtepi32_epi16(bits));
}

/* x and y [rows, heads, 2 * half] with strides in values, the last axis contiguous; positions
 * [rows]; cosine and sine [positions, half]. */
TARGET void rotation(const uint16_t *x, uint16_t *y, const int64_t *positions, const float *cosine,
                     const float *sine, ptrdiff_t rows, ptrdiff_t heads, ptrdiff_t half,
                     ptrdiff_t x_row, ptrdiff_t x_head, ptrdiff_t y_row, ptrdiff_t y_head)
{
    for (ptrdiff_t row = 0; row < rows; row++)
        for (ptrdiff_t c = 0; c < half; c += 16) {
            __m512 cos = _mm512_loadu_ps(cosine + positions[row] * half + c);
            __m512 sin = _mm512_loadu_ps(sine + positions[row] * half + c);
            for (ptrdiff_t head = 0; head < heads; head++) {
                const uint16_t *from = x + row * x_row + head * x_head + c;
                uint16_t *to = y + row * y_row + head * y_head + c;
                __m512 left = loaded(from), right = loaded(from + half);
                stored(to, _mm512_sub_round_ps(_mm512_mul_round_ps(left, cos, HERE),
                                               _mm512_mul_round_ps(right, sin, HERE), HERE));
                stored(to + half, _mm512_add_round_ps(_mm512_mul_round_ps(right, cos, HERE),
                                                      _mm512_mul_round_ps(left, sin, HERE), HERE));
            }
        }
}
