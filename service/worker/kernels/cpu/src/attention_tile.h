/* State of the attention of one tile of queries (one query per lane) over blocks of keys. All
 * queries of a tile belong to one KV head. */
#ifndef KVSTITCH_ATTENTION_TILE_H
#define KVSTITCH_ATTENTION_TILE_H

#include "bfloat16.h"

#include <stddef.h>

#define QUERIES 48 /* queries of a tile: three registers */
#define KEYS 96    /* keys of a block */
#define SCORED 8   /* keys scored at once: 24 registers of sums */
#define SUMMED 6   /* queries whose values are summed at once, four registers of columns each */

/* Working memory of a tile. The arrays hold fp32; with bfloat16 dot products three of them hold
 * pairs of bfloat16 instead: queries [d / 2, QUERIES], values [KEYS / 2, d], and weights
 * [KEYS / 2, QUERIES]. */
struct tile {
    float *queries; /* [d, QUERIES], columns in the order that `widen` gives */
    float *keys;   /* [KEYS, d] */
    float *values; /* [KEYS, d] */
    float *scores; /* [KEYS, QUERIES]; become softmax weights in place */
    float *sums;   /* [QUERIES, d] */
    float highest[QUERIES], total[QUERIES], fade[QUERIES], share[QUERIES];
    int32_t seen[QUERIES];
    float scale;
    int bf16_dot; /* whether to use bfloat16 dot products */
    /* NULL, or: the weights of all keys so far [n, QUERIES], those of each block relative to the
     * highest score seen up to that block; and these highest scores [n / KEYS, QUERIES]. */
    float *all_weights, *block_highest;
};

#endif
