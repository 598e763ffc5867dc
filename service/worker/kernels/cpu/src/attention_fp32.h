/* Scores and weighted values of a tile in fp32: keys and values are widened once a block. */
#ifndef KVSTITCH_ATTENTION_FP32_H
#define KVSTITCH_ATTENTION_FP32_H

#include "attention_tile.h"

/* A query's row into lane i. */
TARGET INLINE void wide_ask(struct tile *tile, ptrdiff_t i, const uint16_t *row, ptrdiff_t d)
{
    for (ptrdiff_t c = 0; c < d; c += LANES)
        for (int j = 0; j < LANES / 2; j++) {
            tile->asked[(c + j) * QUERIES + i] = widened(row[c + 2 * j]);
            tile->asked[(c + LANES / 2 + j) * QUERIES + i] = widened(row[c + 2 * j + 1]);
        }
}

/* `count` rows in fp32, of every 32 columns the even ones first; then zeros up to a whole SCORED. */
TARGET INLINE void widen(const uint16_t *rows, float *out, ptrdiff_t count, ptrdiff_t d)
{
    for (ptrdiff_t i = 0; i < count * d; i += LANES) {
        __m512i narrow = _mm512_loadu_si512(rows + i);
        _mm512_storeu_ps(out + i, even(narrow));
        _mm512_storeu_ps(out + i + LANES / 2, odd(narrow));
    }
    ptrdiff_t missing = (count + SCORED - 1) / SCORED * SCORED - count;
    memset(out + count * d, 0, (size_t)(missing * d) * sizeof(float));
}

TARGET INLINE void wide_score(const float *asked, const float *keys, float *scores, ptrdiff_t d)
{
    __m512 sums[SCORED][3];
    for (int i = 0; i < SCORED; i++)
        for (int j = 0; j < 3; j++)
            sums[i][j] = _mm512_setzero_ps();
    for (ptrdiff_t c = 0; c < d; c++) {
        __m512 query[3];
        for (int j = 0; j < 3; j++)
            query[j] = _mm512_loadu_ps(asked + c * QUERIES + j * 16);
        for (int i = 0; i < SCORED; i++) {
            __m512 key = _mm512_set1_ps(keys[i * d + c]);
            for (int j = 0; j < 3; j++)
                sums[i][j] = _mm512_fmadd_ps(key, query[j], sums[i][j]);
        }
    }
    for (int i = 0; i < SCORED; i++)
        for (int j = 0; j < 3; j++)
            _mm512_storeu_ps(scores + i * QUERIES + j * 16, sums[i][j]);
}

/* Scores of `count` keys k [count, d], before they are scaled. */
TARGET static void wide_scores(struct tile *tile, const uint16_t *k, ptrdiff_t count, ptrdiff_t d)
{
    widen(k, tile->keys, count, d);
    for (ptrdiff_t i = 0; i < count; i += SCORED)
        wide_score(tile->asked, tile->keys + i * d, tile->scores + i * QUERIES, d);
}

/* Adds weighted values to the sums of WEIGHED queries, `columns` of them. */
TARGET INLINE void wide_weigh(const float *weights, const float *values, float *sums,
                              ptrdiff_t count, ptrdiff_t d, int columns)
{
    __m512 held[WEIGHED][4];
    for (int i = 0; i < WEIGHED; i++)
        for (int j = 0; j < columns / 16; j++)
            held[i][j] = _mm512_loadu_ps(sums + i * d + j * 16);
    for (ptrdiff_t key = 0; key < count; key++) {
        __m512 value[4];
        for (int j = 0; j < columns / 16; j++)
            value[j] = _mm512_loadu_ps(values + key * d + j * 16);
        for (int i = 0; i < WEIGHED; i++) {
            __m512 weight = _mm512_set1_ps(weights[key * QUERIES + i]);
            for (int j = 0; j < columns / 16; j++)
                held[i][j] = _mm512_fmadd_ps(weight, value[j], held[i][j]);
        }
    }
    for (int i = 0; i < WEIGHED; i++)
        for (int j = 0; j < columns / 16; j++)
            _mm512_storeu_ps(sums + i * d + j * 16, held[i][j]);
}

/* Adds the values v [count, d], weighted, to the sums. */
TARGET static void wide_sums(struct tile *tile, const uint16_t *v, ptrdiff_t count, ptrdiff_t d)
{
    widen(v, tile->values, count, d);
    for (int i = 0; i < QUERIES; i += WEIGHED) {
        const float *weights = tile->scores + i;
        float *sums = tile->sums + i * d;
        ptrdiff_t c = 0;
        for (; c + 64 <= d; c += 64)
            wide_weigh(weights, tile->values + c, sums + c, count, d, 64);
        if (c < d)
            wide_weigh(weights, tile->values + c, sums + c, count, d, 32);
    }
}

#endif
