/* By how much stored keys and values are wrong where fresh ones are known. */
#include "bfloat16.h"
#include "kernels.h"

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
