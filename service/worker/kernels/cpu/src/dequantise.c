/* A weight of 8 or 4 bits (`few_rows.h`) in bfloat16, for kernels that multiply many rows: they use
 * every value so often that unpacking it first takes little beside. */
#include "few_rows.h"
#include "kernels.h"

TARGET void dequantise(const void *values, const float *scales, uint16_t *y, ptrdiff_t outs,
                       ptrdiff_t columns, ptrdiff_t bits, int threads)
{
    struct weight weight = {values, NULL, scales, bits};
    struct product p = {&weight, columns, columns * bits / 8, outs};
    _Pragma("omp parallel for schedule(static) num_threads(threads) if (threads > 1)")
    for (ptrdiff_t n = 0; n < outs; n++)
        for (ptrdiff_t c = 0; c < columns; c += LANES) {
            __m512 part[2], scale = _mm512_set1_ps(bits == 8 ? scales[n] : 1.0f);
            load_weights(&p, n, c, (int)bits, &part[0], &part[1]);
            for (int i = 0; i < 2; i++)
                store_bf16(y + n * columns + c + i * LANES / 2,
                           round_to_bf16(_mm512_mul_ps(part[i], scale)));
        }
}
