/* RMSNorm of many rows (`norm_row.h`). Threads are those of the OpenMP library that torch has
 * loaded. */
#include "norm_row.h"
#include "kernels.h"

/* x [rows, heads, width] with strides in values, the last axis contiguous; y contiguous. width is a
 * multiple of LANES / 2. */
TARGET void rms_norm_rows(const uint16_t *x, const uint16_t *weight, uint16_t *y, ptrdiff_t rows,
                          ptrdiff_t heads, ptrdiff_t width, ptrdiff_t x_row, ptrdiff_t x_head,
                          float eps, int threads)
{
    _Pragma("omp parallel for schedule(static) num_threads(threads) if (threads > 1)")
    for (ptrdiff_t row = 0; row < rows; row++)
        for (ptrdiff_t head = 0; head < heads; head++)
            norm_row(x + row * x_row + head * x_head, NULL, weight, NULL,
                     y + (row * heads + head) * width, width, eps);
}

/* x and added [rows, width] with strides in values; sum and y contiguous. */
TARGET void rms_norm_of_sums(const uint16_t *x, const uint16_t *added, const uint16_t *weight,
                             uint16_t *sum, uint16_t *y, ptrdiff_t rows, ptrdiff_t width,
                             ptrdiff_t x_row, ptrdiff_t added_row, float eps, int threads)
{
    _Pragma("omp parallel for schedule(static) num_threads(threads) if (threads > 1)")
    for (ptrdiff_t row = 0; row < rows; row++)
        norm_row(x + row * x_row, added + row * added_row, weight, sum + row * width,
                 y + row * width, width, eps);
}
