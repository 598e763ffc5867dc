/* Rotary embedding of bfloat16 rows, from where they are stored to where they are needed. Computed
 * in fp32 and rounded once, without fused multiply-add, so that the result equals torch's bit by
 * bit. Threads are those of the OpenMP library that torch has loaded. */
#include "bfloat16.h"

#include <stddef.h>

/* With an explicit rounding mode a compiler does not fuse a product and a sum. */
#define UNFUSED _MM_FROUND_CUR_DIRECTION

int rotation_supported(void) { return __builtin_cpu_supports("avx512f") != 0; }

/* One row: x and y [heads, 2 * half], heads x_head and y_head values apart. */
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

/* x and y [rows, heads, 2 * half] with strides in values, the last axis contiguous; positions
 * [rows]; cosine and sine [positions, half]. */
TARGET void rotation_rows(const uint16_t *x, uint16_t *y, const int64_t *positions,
                          const float *cosine, const float *sine, ptrdiff_t rows, ptrdiff_t heads,
                          ptrdiff_t half, ptrdiff_t x_row, ptrdiff_t x_head, ptrdiff_t y_row,
                          ptrdiff_t y_head, int threads)
{
    _Pragma("omp parallel for schedule(static) num_threads(threads) if (threads > 1)")
    for (ptrdiff_t row = 0; row < rows; row++)
        rotate_row(x + row * x_row, y + row * y_row, cosine + positions[row] * half,
               sine + positions[row] * half, heads, half, x_head, y_head);
}

/* A segment to be copied into a cache: k before RoPE and v [rows, heads, 2 * half], strides in
 * values. It goes to the cache's rows from `start` on. */
struct segment {
    const uint16_t *k, *v;
    ptrdiff_t start, rows, k_row, k_head, v_row, v_head;
};

/* A layer's cache: k and v [heads, .., 2 * half], heads k_head and v_head values apart. */
struct layer {
    uint16_t *k, *v;
    ptrdiff_t heads, half, k_head, v_head;
};

/* Row `row` of a segment to row `at` of the cache: the key rotated, the value as it is. */
TARGET INLINE void place_row(const struct segment *s, ptrdiff_t row, const struct layer *to,
                          ptrdiff_t at, const float *cosine, const float *sine)
{
    ptrdiff_t d = 2 * to->half;
    rotate_row(s->k + row * s->k_row, to->k + at * d, cosine, sine, to->heads, to->half, s->k_head,
           to->k_head);
    for (ptrdiff_t head = 0; head < to->heads; head++)
        for (ptrdiff_t c = 0; c < d; c += LANES)
            _mm512_storeu_si512(to->v + head * to->v_head + at * d + c,
                                _mm512_loadu_si512(s->v + row * s->v_row + head * s->v_head + c));
}

/* Segments into a layer's cache; positions [rows of the cache] of the keys. */
TARGET void rotation_place_segments(const struct segment *segments, ptrdiff_t count,
                                    const struct layer *layer, const int64_t *positions,
                                    const float *cosine, const float *sine, int threads)
{
    const struct layer to = *layer;
    ptrdiff_t total = 0;
    for (ptrdiff_t i = 0; i < count; i++)
        total += segments[i].rows;
    _Pragma("omp parallel for schedule(static) num_threads(threads) if (threads > 1)")
    for (int part = 0; part < threads; part++) {
        ptrdiff_t from = total * part / threads, end = total * (part + 1) / threads, before = 0;
        for (ptrdiff_t i = 0; i < count; before += segments[i++].rows) {
            const struct segment s = segments[i];
            ptrdiff_t first = from > before ? from - before : 0;
            ptrdiff_t last = end - before < s.rows ? end - before : s.rows;
            for (ptrdiff_t row = first; row < last; row++) {
                ptrdiff_t at = s.start + row, angle = positions[at] * to.half;
                place_row(&s, row, &to, at, cosine + angle, sine + angle);
            }
        }
    }
}

/* The rows of one segment to the rows `at` [rows] of a layer's cache; a key's position is the
 * number of its row there. */
TARGET void rotation_write_rows(const struct segment *segment, const struct layer *layer,
                                const int64_t *at, const float *cosine, const float *sine)
{
    const struct segment s = *segment;
    const struct layer to = *layer;
    for (ptrdiff_t row = 0; row < s.rows; row++)
        place_row(&s, row, &to, at[row], cosine + at[row] * to.half, sine + at[row] * to.half);
}
