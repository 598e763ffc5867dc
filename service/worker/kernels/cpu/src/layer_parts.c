/* The two parts of a layer of prompt rows, before and after its attention, in one call each.
 *
 * They are what the kernels for products compute one by one, with torch's operations between them,
 * bit by bit: of a small model and a few hundred rows, the calls took longer than the work. `few`
 * rows are multiplied by `linear_few_rows`, more by `linear_many_rows_bf16`, whose weights are not
 * quantised. Threads are those of the OpenMP library that torch has loaded.
 */
#include "exponential.h"
#include "kernels.h"
#include "layer.h"
#include "norm_row.h"
#include "work.h"

#include <stdlib.h>

/* The same constants as in the sources and the Python modules of these kernels. */
#define STRIP 32
#define TILE 48
#define TILES 4
#define ROOM (800 * 1024)
#define PARTS 6 /* of the memory at most, each rounded up to 64 bytes, and the whole down */
#define MIN_PARALLEL (1 << 18)
#define MIN_PARALLEL_WEIGHT (1 << 19)

/* Rows, how they are multiplied, and scratch for that. wide: NULL where bfloat16 dot products are
 * used, and for many rows. */
struct rows {
    ptrdiff_t count;
    int few, threads;
    float *wide, *sums;
    uint16_t *pairs;
};

/* Returns memory for `values` numbers of 2 bytes, from *rest on, and before them for products with
 * up to `outs` and `columns`; NULL if there is none. */
static void *memory_for(struct rows *r, ptrdiff_t outs, ptrdiff_t columns, int bf16_dot,
                        ptrdiff_t values, char **rest)
{
    ptrdiff_t padded = (r->count + TILE - 1) / TILE * TILE;
    ptrdiff_t whole = padded < TILES * TILE ? padded : TILES * TILE;
    ptrdiff_t sums = r->few ? r->threads * r->count * STRIP * LANES / 2 : whole * outs;
    ptrdiff_t packed = r->few ? 2 * r->count * columns : padded * columns;
    size_t bytes = (size_t)sums * sizeof(float) + (size_t)(packed + values) * 2 + PARTS * 64;
    char *memory = aligned_alloc(64, bytes / 64 * 64);
    if (!memory)
        return NULL;
    *rest = memory;
    r->sums = cut(rest, sums, sizeof *r->sums);
    r->pairs = cut(rest, packed, sizeof *r->pairs);
    r->wide = r->few && !bf16_dot ? (float *)r->pairs : NULL;
    return memory;
}

static int threads_for(const struct rows *r, ptrdiff_t values, ptrdiff_t least)
{
    return values >= least ? r->threads : 1;
}

/* y = w * x. */
static void multiply(const struct rows *r, const struct weight *w, const uint16_t *x, uint16_t *y,
                     ptrdiff_t outs, ptrdiff_t columns)
{
    if (r->few) {
        linear_few_rows(x, w->values, w->bias, w->scales, y, r->wide, r->sums, r->count, outs,
                        columns, columns * w->bits / 8, w->bits,
                        threads_for(r, outs * columns, MIN_PARALLEL_WEIGHT));
        return;
    }
    linear_many_rows_bf16_pack(x, r->pairs, r->count, columns, columns,
                               threads_for(r, r->count * columns, MIN_PARALLEL));
    linear_many_rows_bf16_product(r->pairs, w->values, w->bias, y, r->sums, r->count, columns, outs,
                                  columns, outs, r->threads);
}

/* y = norm(x), or sum = x + added, y = norm(sum), of rows of `width` values that are `stride` values
 * apart. */
TARGET static void normalise(const struct rows *r, ptrdiff_t count, const uint16_t *x,
                             const uint16_t *added, const uint16_t *weight, uint16_t *sum,
                             uint16_t *y, ptrdiff_t width, float eps)
{
    int threads = threads_for(r, count * width, MIN_PARALLEL);
    _Pragma("omp parallel for schedule(static) num_threads(threads) if (threads > 1)")
    for (ptrdiff_t at = 0; at < count * width; at += width)
        norm_row_as_torch(x + at, added ? added + at : NULL, weight, sum + at, y + at, width, eps);
}

/* y [rows, (heads + 2 * kv_heads) * d]: queries, keys and values of x [rows, hidden]. All widths are
 * multiples of LANES, those of norms below 2^13. Returns 0, or -1 where there is no memory. */
TARGET int layer_qkv(const struct layer *layer, const uint16_t *x, uint16_t *y, ptrdiff_t rows,
                     ptrdiff_t hidden, ptrdiff_t heads, ptrdiff_t kv_heads, ptrdiff_t d, float eps,
                     int few, int bf16_dot, int threads)
{
    struct rows r = {.count = rows, .few = few, .threads = threads};
    ptrdiff_t outs = (heads + 2 * kv_heads) * d;
    char *rest, *memory = memory_for(&r, outs, hidden, bf16_dot, rows * hidden, &rest);
    if (!memory)
        return -1;
    uint16_t *normed = cut(&rest, rows * hidden, sizeof *x);
    normalise(&r, rows, x, NULL, layer->norm, normed, normed, hidden, eps);
    multiply(&r, &layer->qkv, normed, y, outs, hidden);
    for (ptrdiff_t row = 0; layer->q_norm && row < rows; row++) {
        uint16_t *q = y + row * outs, *k = q + heads * d;
        normalise(&r, heads, q, NULL, layer->q_norm, q, q, d, eps);
        normalise(&r, kv_heads, k, NULL, layer->k_norm, k, k, d, eps);
    }
    free(memory);
    return 0;
}

/* inner = silu(gate) * up, each product rounded as torch does, which makes -0 of large negative
 * numbers. gate_up [rows, 2 * width]; inner [rows, width]. */
TARGET static void gate_as_torch(const uint16_t *gate_up, uint16_t *inner, ptrdiff_t rows,
                                 ptrdiff_t width)
{
    const __m512 least = _mm512_set1_ps(-88.7f), zero = _mm512_set1_ps(-0.0f);
    for (ptrdiff_t row = 0; row < rows; row++, gate_up += 2 * width, inner += width)
        for (ptrdiff_t c = 0; c < width; c += LANES / 2) {
            __m512 gate = load_fp32(gate_up + c), up = load_fp32(gate_up + width + c);
            __mmask16 vanishes = _mm512_cmp_ps_mask(gate, least, _CMP_LT_OQ);
            __m512 gated = _mm512_mask_mov_ps(silu(gate), vanishes, zero);
            gated = odd_to_fp32(round_to_bf16(gated));
            store_bf16(inner + c, round_to_bf16(_mm512_mul_ps(gated, up)));
        }
}

/* y = x + o * attended, then y += down * (silu(gate * norm(y)) * up * norm(y)). attended [rows,
 * width]; x and y [rows, hidden]. Returns 0, or -1 where there is no memory. */
TARGET int layer_finish(const struct layer *layer, const uint16_t *x, const uint16_t *attended,
                        uint16_t *y, ptrdiff_t rows, ptrdiff_t hidden, ptrdiff_t width,
                        ptrdiff_t inner, float eps, int few, int bf16_dot, int threads)
{
    struct rows r = {.count = rows, .few = few, .threads = threads};
    ptrdiff_t most = inner > width ? inner : width, fit = ROOM / (2 * TILE * hidden);
    most = hidden > most ? hidden : most;
    ptrdiff_t outs = few ? 2 * inner : hidden, block = rows;
    if (!few) /* as many rows at a time as fit into the L2 cache */
        block = TILE * (fit < 1 ? 1 : fit > TILES ? TILES : fit);
    ptrdiff_t gates = few ? 3 * rows * inner : block * inner;
    char *rest, *memory;
    memory = memory_for(&r, outs, most, bf16_dot, 2 * rows * hidden + gates, &rest);
    if (!memory)
        return -1;
    uint16_t *normed = cut(&rest, rows * hidden, sizeof *x);
    uint16_t *added = cut(&rest, rows * hidden, sizeof *x);
    uint16_t *gated = cut(&rest, gates, sizeof *x);
    multiply(&r, &layer->o, attended, added, hidden, width);
    normalise(&r, rows, x, added, layer->mlp_norm, y, normed, hidden, eps);
    if (few) {
        multiply(&r, &layer->gate_up, normed, gated + rows * inner, 2 * inner, hidden);
        gate_as_torch(gated + rows * inner, gated, rows, inner);
        multiply(&r, &layer->down, gated, added, hidden, inner);
    }
    for (ptrdiff_t at = 0; !few && at < rows; at += block) {
        const uint16_t *gate = layer->gate_up.values, *down = layer->down.values;
        ptrdiff_t count = rows - at < block ? rows - at : block;
        linear_many_rows_bf16_pack(normed + at * hidden, r.pairs, count, hidden, hidden,
                                   threads_for(&r, count * hidden, MIN_PARALLEL));
        linear_many_rows_bf16_gated(r.pairs, gate, gate + inner * hidden, gated, count, hidden,
                                    inner, 0, inner, hidden, threads);
        linear_many_rows_bf16_product(gated, down, NULL, added + at * hidden, r.sums, count, inner,
                                      hidden, inner, hidden, threads);
    }
    for (ptrdiff_t row = 0; row < rows; row++)
        add_row(y + row * hidden, added + row * hidden, y + row * hidden, hidden);
    free(memory);
    return 0;
}
