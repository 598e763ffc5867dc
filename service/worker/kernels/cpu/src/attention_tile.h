/* A tile of queries of one KV head, a query to a lane, and the block of keys it is at. */
#ifndef KVSTITCH_ATTENTION_TILE_H
#define KVSTITCH_ATTENTION_TILE_H

#include "bfloat16.h"

#include <stddef.h>

#define QUERIES 48 /* of a tile: three registers */
#define KEYS 96    /* of a block */
#define SCORED 8   /* keys scored at once: 24 registers of sums */
#define WEIGHED 6  /* queries whose values are summed at once, by four registers of columns */

/* What a tile needs beside its input. By bfloat16 dot products the arrays hold pairs of bfloat16:
 * asked [d / 2, QUERIES], values [KEYS / 2, d], weights [KEYS / 2, QUERIES]; else fp32. */
struct tile {
    float *asked;  /* [d, QUERIES], columns in the order that `widen` gives */
    float *keys;   /* [KEYS, d] */
    float *values; /* [KEYS, d] */
    float *scores; /* [KEYS, QUERIES], which become weights in place */
    float *sums;   /* [QUERIES, d] */
    float highest[QUERIES], total[QUERIES], fade[QUERIES], share[QUERIES];
    int32_t seen[QUERIES];
    float scale;
    int narrow; /* by bfloat16 dot products */
    /* NULL, or the weights of all keys [n, QUERIES], each block's against its own highest scores
     * so far [n / KEYS, QUERIES], and those. */
    float *kept, *against;
};

#endif
