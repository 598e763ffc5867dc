/* Rotary embedding of many rows (`rotate_row.h`), from where they are stored to where they are
 * needed. Threads are those of the OpenMP library that torch has loaded. */
#include "rotate_row.h"
#include "kernels.h"

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

/* Row `row` of a segment to row `at` of the cache: the key rotated, the value as it is. */
TARGET INLINE void place_row(const struct segment *s, ptrdiff_t row, const struct cache_layer *to,
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
                                    const struct cache_layer *layer, const int64_t *positions,
                                    const float *cosine, const float *sine, int threads)
{
    const struct cache_layer to = *layer;
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

/* The rows of one segment to the rows `at` [rows] of a layer's cache, and `rotation_rows` of the
 * same rows' queries; a key's position is the number of its row there. */
TARGET void rotation_write_with_queries(const struct segment *segment,
                                        const struct cache_layer *layer, const int64_t *at,
                                        const float *cosine, const float *sine, const uint16_t *q,
                                        uint16_t *y, ptrdiff_t heads, ptrdiff_t q_row,
                                        ptrdiff_t q_head, int threads)
{
    const struct segment s = *segment;
    const struct cache_layer to = *layer;
    for (ptrdiff_t row = 0; row < s.rows; row++)
        place_row(&s, row, &to, at[row], cosine + at[row] * to.half, sine + at[row] * to.half);
    rotation_rows(q, y, at, cosine, sine, s.rows, heads, to.half, q_row, q_head,
                  heads * 2 * to.half, 2 * to.half, threads);
}
