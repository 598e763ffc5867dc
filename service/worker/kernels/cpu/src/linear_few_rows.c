/* Linear layer for few rows (`few_rows.h`). Threads are those of the OpenMP library that torch has
 * loaded. */
#include "few_rows.h"
#include "kernels.h"

#include <omp.h>

TARGET void linear_few_rows(const uint16_t *x, const void *w, const uint16_t *bias,
                            const float *scales, uint16_t *y, float *wide, float *carried,
                            ptrdiff_t rows, ptrdiff_t outs, ptrdiff_t columns, ptrdiff_t stride,
                            ptrdiff_t bits, int threads)
{
    struct weight weight = {w, bias, scales, bits};
    struct product p = {&weight, columns, stride, outs};
    ptrdiff_t strips = (outs + STRIP - 1) / STRIP;
    if (wide)
        widen(x, wide, rows * columns, bits);
    _Pragma("omp parallel for schedule(static) num_threads(threads) if (threads > 1)")
    for (ptrdiff_t s = 0; s < strips; s++) {
        float *mine = carried + omp_get_thread_num() * rows * STRIP * (LANES / 2);
        ptrdiff_t n = s * STRIP, last = n + STRIP < outs ? n + STRIP : outs;
        few_rows_strip(&p, x, wide, y, mine, rows, n, last);
    }
}
