/* What the Python module (`module.c`) calls. Pointers are to tensors in host memory; the comment
 * beside each function's definition says which. */
#ifndef KVSTITCH_KERNELS_H
#define KVSTITCH_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#define INTERFACE 8 /* the same number as in `native.py` */

struct decoder;
struct layer;
struct pass;
struct pass_layer;
struct stored_chunk;

/* Keys before RoPE and values [rows, heads, 2 * half] of a segment, strides in values. They go to a
 * cache's rows from `start` on. */
struct segment {
    const uint16_t *k, *v;
    ptrdiff_t start, rows, k_row, k_head, v_row, v_head;
};

/* A layer's cache: k and v [heads, .., 2 * half], heads k_head and v_head values apart. */
struct cache_layer {
    uint16_t *k, *v;
    ptrdiff_t heads, half, k_head, v_head;
};

int decode_step(const struct decoder *m, uint16_t *x, const int64_t *positions,
                const int64_t *runs, uint16_t *logits, ptrdiff_t rows, float eps, float scale,
                int bf16_dot, int threads);

int layer_qkv(const struct layer *layer, const uint16_t *x, uint16_t *y, ptrdiff_t rows,
              ptrdiff_t hidden, ptrdiff_t heads, ptrdiff_t kv_heads, ptrdiff_t d, float eps,
              int few, int bf16_dot, int threads);
int layer_finish(const struct layer *layer, const uint16_t *x, const uint16_t *attended,
                 uint16_t *y, ptrdiff_t rows, ptrdiff_t hidden, ptrdiff_t width, ptrdiff_t inner,
                 float eps, int few, int bf16_dot, int threads);

int attention_pass(const struct pass *pass, const struct pass_layer *layers, uint16_t *x,
                   const int64_t *at, const int64_t *seen, const int64_t *positions,
                   const float *row_weights, float eps, float scale, int few, int bf16_dot,
                   int threads);

void linear_few_rows(const uint16_t *x, const void *w, const uint16_t *bias, const float *scales,
                     uint16_t *y, float *wide, float *carried, ptrdiff_t rows, ptrdiff_t outs,
                     ptrdiff_t columns, ptrdiff_t stride, ptrdiff_t bits, int threads);

void linear_fp32(const float *x, const void *values, const float *scales, float *y, ptrdiff_t rows,
                 ptrdiff_t outs, ptrdiff_t columns, ptrdiff_t bits, int threads);

void dequantise(const void *values, const float *scales, uint16_t *y, ptrdiff_t outs,
                ptrdiff_t columns, ptrdiff_t bits, int threads);

void linear_many_rows_bf16_pack(const uint16_t *x, uint16_t *pairs, ptrdiff_t rows, ptrdiff_t in,
                                ptrdiff_t stride, int threads);
void linear_many_rows_bf16_product(const uint16_t *x, const uint16_t *w, const uint16_t *bias,
                                   uint16_t *y, float *scratch, ptrdiff_t rows, ptrdiff_t in,
                                   ptrdiff_t out, ptrdiff_t stride, ptrdiff_t y_stride,
                                   int threads);
void linear_many_rows_bf16_gated(const uint16_t *x, const uint16_t *gate, const uint16_t *up,
                                 uint16_t *inner, ptrdiff_t rows, ptrdiff_t in, ptrdiff_t out,
                                 ptrdiff_t first, ptrdiff_t last, ptrdiff_t stride, int threads);

void linear_many_rows_fp32_product(const float *x, const uint16_t *w, float *y, ptrdiff_t rows,
                                   ptrdiff_t in, ptrdiff_t out, ptrdiff_t stride, int threads);
void linear_many_rows_fp32_pack(const uint16_t *x, float *tiles, ptrdiff_t rows, ptrdiff_t in,
                                int threads);
void linear_many_rows_fp32_unpack(const float *tiles, const uint16_t *bias, uint16_t *y,
                                  ptrdiff_t rows, ptrdiff_t out, int threads);

void prefill_attention(const uint16_t *q, const uint16_t *k, const uint16_t *v, uint16_t *y,
                       const int64_t *seen, const float *row_weights, float *key_scores,
                       float *scratch, ptrdiff_t m, ptrdiff_t n, ptrdiff_t heads, ptrdiff_t group,
                       ptrdiff_t d, ptrdiff_t q_stride, ptrdiff_t k_stride, ptrdiff_t v_stride,
                       float scale, ptrdiff_t room, int bf16_dot, int threads);

void decode_stored_layer(const struct stored_chunk *chunk, ptrdiff_t layer, uint16_t *k,
                         uint16_t *v);

void rotation_rows(const uint16_t *x, uint16_t *y, const int64_t *positions, const float *cosine,
                   const float *sine, ptrdiff_t rows, ptrdiff_t heads, ptrdiff_t half,
                   ptrdiff_t x_row, ptrdiff_t x_head, ptrdiff_t y_row, ptrdiff_t y_head,
                   int threads);
void rotation_place_segments(const struct segment *segments, ptrdiff_t count,
                             const struct cache_layer *layer, const int64_t *positions,
                             const float *cosine, const float *sine, int threads);
void rotation_write_with_queries(const struct segment *segment, const struct cache_layer *layer,
                                 const int64_t *at, const float *cosine, const float *sine,
                                 const uint16_t *q, uint16_t *y, ptrdiff_t heads, ptrdiff_t q_row,
                                 ptrdiff_t q_head, int threads);

void shift_gaps(const struct segment *stored, ptrdiff_t documents, const struct segment *fresh,
                const int64_t *tokens, const int64_t *places, float *gaps, ptrdiff_t count,
                ptrdiff_t heads, ptrdiff_t d);
void shift_rows(const uint16_t *keys, const uint16_t *values, const int64_t *document_of,
                const uint16_t *weights, const int64_t *positions, ptrdiff_t first,
                ptrdiff_t count, const struct cache_layer *layer, const float *cosine,
                const float *sine, int threads);

#endif
