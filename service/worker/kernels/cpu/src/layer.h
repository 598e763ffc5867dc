/* A layer's parameters. */
#ifndef KVSTITCH_LAYER_H
#define KVSTITCH_LAYER_H

#include <stddef.h>
#include <stdint.h>

/* A weight [outs, columns]. bits: 16 for bfloat16. 8 for int8 times a scale for each row, scales
 * [outs]. 4 for numbers in 0..15, less 8, times a scale for every LANES columns, scales [outs, columns
 * / LANES]; of these columns the first half lies in the lower halves of bytes. bias [outs] or NULL. */
struct weight {
    const void *values;
    const uint16_t *bias;
    const float *scales;
    ptrdiff_t bits;
};

/* A layer's parameters, and its part of the KV pool, rows of d. The norms of queries and keys may be
 * NULL. gate_up: the rows of gate, then those of up. Prompts' KV is not in a pool. */
struct layer {
    const uint16_t *norm, *q_norm, *k_norm, *mlp_norm;
    struct weight qkv, o, gate_up, down;
    uint16_t *k, *v;
};

#endif
