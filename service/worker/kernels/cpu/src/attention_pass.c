/* A few rows of a prompt through several layers in one call, over KV that is placed layer by layer,
 * and how much attention they pay to each key. It computes what the kernels compute that are called
 * one by one, and their calls took as long as the work of a small model.
 */
#include "attention_tile.h"
#include "kernels.h"
#include "layer.h"
#include "work.h"

#include <stdlib.h>

#define MIN_PARALLEL (1 << 18)

/* A layer, its part of the prompt's cache, and the segments that are placed there first. key_scores:
 * as of `prefill_attention`, NULL where the layer does not count. */
struct pass_layer {
    const struct layer *weights;
    const float *cosine, *sine;
    struct cache_layer cache;
    const struct segment *segments;
    ptrdiff_t segment_count;
    float *key_scores;
};

/* `count` layers, of which the last may end with its attention; sizes of the model; rows of x, and
 * tokens of the prompt. */
struct pass {
    ptrdiff_t count, ends, hidden, heads, kv_heads, d, inner, rows, tokens;
};

/* x [rows, hidden] is overwritten. at, seen [rows]: their places in the prompt, and how many of the
 * first keys they see; positions [tokens] of stored keys. Returns 0, or -1 where there is no
 * memory. */
int attention_pass(const struct pass *pass, const struct pass_layer *layers, uint16_t *x,
                   const int64_t *at, const int64_t *seen, const int64_t *positions,
                   const float *row_weights, float eps, float scale, int few, int bf16_dot,
                   int threads)
{
    const struct pass p = *pass;
    ptrdiff_t width = p.heads * p.d, kv_width = p.kv_heads * p.d, outs = width + 2 * kv_width;
    ptrdiff_t room = (2 * QUERIES + 2 * KEYS) * p.d + KEYS * QUERIES +
                     (p.tokens + p.tokens / KEYS + 1) * QUERIES;
    size_t values = (size_t)(p.rows * (outs + 2 * width)) * sizeof *x;
    size_t bytes = (size_t)(threads * room) * sizeof(float) + values + 5 * 64;
    char *memory = aligned_alloc(64, bytes / 64 * 64), *rest = memory;
    int failed = !memory;
    if (failed)
        return -1;
    float *scratch = cut(&rest, threads * room, sizeof *scratch);
    uint16_t *qkv = cut(&rest, p.rows * outs, sizeof *x);
    uint16_t *q = cut(&rest, p.rows * width, sizeof *x);
    uint16_t *attended = cut(&rest, p.rows * width, sizeof *x);
    const struct segment fresh = {qkv + width, qkv + width + kv_width, 0, p.rows,
                                  outs, p.d, outs, p.d};
    for (ptrdiff_t i = 0; i < p.count && !failed; i++) {
        const struct pass_layer *l = layers + i;
        rotation_place_segments(l->segments, l->segment_count, &l->cache, positions, l->cosine,
                                l->sine, kv_width * p.tokens < MIN_PARALLEL ? 1 : threads);
        failed = layer_qkv(l->weights, x, qkv, p.rows, p.hidden, p.heads, p.kv_heads, p.d, eps, few,
                           bf16_dot, threads);
        rotation_write_with_queries(&fresh, &l->cache, at, l->cosine, l->sine, qkv, q, p.heads,
                                    outs, p.d, p.rows * width < MIN_PARALLEL ? 1 : threads);
        prefill_attention(q, l->cache.k, l->cache.v, attended, seen, row_weights, l->key_scores,
                          scratch, p.rows, p.tokens, p.heads, p.heads / p.kv_heads, p.d, width,
                          l->cache.k_head, l->cache.v_head, scale, room, bf16_dot, threads);
        if (!failed && !(p.ends && i + 1 == p.count))
            failed = layer_finish(l->weights, x, attended, x, p.rows, p.hidden, width, p.inner, eps,
                                  few, bf16_dot, threads);
    }
    free(memory);
    return failed;
}
