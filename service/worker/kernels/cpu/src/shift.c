/* By how much stored keys and values are wrong where fresh ones are known, and the others' shift by
 * that. Threads are those of the OpenMP library that torch has loaded. */
#include "kernels.h"
#include "rotate_row.h"

#define MOST 512 /* dimensions of a head */

TARGET INLINE void subtract(const uint16_t *x, const uint16_t *y, float *gap, ptrdiff_t d)
{
    for (ptrdiff_t c = 0; c < d; c += LANES / 2)
        _mm512_storeu_ps(gap + c, _mm512_sub_ps(load_fp32(x + c), load_fp32(y + c)));
}

/* gaps [2, count, heads, d]: fresh minus stored keys, then values, of `count` tokens. A document's
 * are those from its `start` on, up to the next document's: tokens [count] numbers them in the
 * document, places [count] among the fresh rows. */
TARGET void shift_gaps(const struct segment *stored, ptrdiff_t documents,
                       const struct segment *fresh, const int64_t *tokens, const int64_t *places,
                       float *gaps, ptrdiff_t count, ptrdiff_t heads, ptrdiff_t d)
{
    const struct segment now = *fresh;
    for (ptrdiff_t i = 0, document = 0; i < count; i++) {
        while (document + 1 < documents && stored[document + 1].start <= i)
            document++;
        const struct segment old = stored[document];
        for (ptrdiff_t head = 0; head < heads; head++) {
            float *gap = gaps + (i * heads + head) * d;
            subtract(now.k + places[i] * now.k_row + head * now.k_head,
                     old.k + tokens[i] * old.k_row + head * old.k_head, gap, d);
            subtract(now.v + places[i] * now.v_row + head * now.v_head,
                     old.v + tokens[i] * old.v_row + head * old.v_head, gap + count * heads * d, d);
        }
    }
}

/* x += by * weight, of one head, after rotation if there are angles; rounded where torch rounds. */
TARGET INLINE void shift_head(uint16_t *x, const uint16_t *by, uint16_t weight, const float *cosine,
                              const float *sine, ptrdiff_t half)
{
    uint16_t moved[MOST];
    const __m512 times = _mm512_set1_ps(to_fp32(weight));
    for (ptrdiff_t c = 0; c < 2 * half; c += LANES / 2)
        store_bf16(moved + c, round_to_bf16(_mm512_mul_ps(load_fp32(by + c), times)));
    if (cosine)
        rotate_row(moved, moved, cosine, sine, 1, half, 0, 0);
    add_row(x, moved, x, 2 * half);
}

/* Shifts rows first..first + count of a layer's cache by what their document's keys and values
 * [documents, heads, 2 * half] (or NULL) say, times weights [count]. document_of, positions [count]. */
TARGET void shift_rows(const uint16_t *keys, const uint16_t *values, const int64_t *document_of,
                       const uint16_t *weights, const int64_t *positions, ptrdiff_t first,
                       ptrdiff_t count, const struct cache_layer *layer, const float *cosine,
                       const float *sine, int threads)
{
    const struct cache_layer to = *layer;
    const ptrdiff_t half = to.half, d = 2 * half;
    _Pragma("omp parallel for schedule(static) num_threads(threads) if (threads > 1)")
    for (ptrdiff_t row = 0; row < count; row++)
        for (ptrdiff_t head = 0; head < to.heads; head++) {
            ptrdiff_t at = (first + row) * d, from = (document_of[row] * to.heads + head) * d;
            ptrdiff_t angle = positions[row] * half;
            if (keys)
                shift_head(to.k + head * to.k_head + at, keys + from, weights[row],
                           cosine + angle, sine + angle, half);
            if (values)
                shift_head(to.v + head * to.v_head + at, values + from, weights[row], NULL, NULL,
                           half);
        }
}
