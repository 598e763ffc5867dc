/* Scores and weighted values of a tile in fp32. Each block of keys and values is converted once. */
#ifndef KVSTITCH_ATTENTION_FP32_H
#define KVSTITCH_ATTENTION_FP32_H

#include "attention_tile.h"

/* Puts a query into lane i. */
TARGET INLINE void fp32_load_query(struct tile *tile, ptrdiff_t i, const uint16_t *row, ptrdiff_t d)
{
    for (ptrdiff_t c = 0; c < d; c += LANES)
        for (int j = 0; j < LANES / 2; j++) {
            tile->queries[(c + j) * QUERIES + i] = to_fp32(row[c + 2 * j]);
            tile->queries[(c + LANES / 2 + j) * QUERIES + i] = to_fp32(row[c + 2 * j + 1]);
        }
}

/* Converts `count` rows to fp32, of every 32 columns the even ones first, and fills up with zero
 * rows to a multiple of SCORED. */
TARGET INLINE void widen(const uint16_t *rows, float *out, ptrdiff_t count, ptrdiff_t d)
{
    for (ptrdiff_t i = 0; i < count * d; i += LANES) {
        __m512i packed = _mm512_loadu_si512(rows + i);
        _mm512_storeu_ps(out + i, even_to_fp32(packed));
        _mm512_storeu_ps(out + i + LANES / 2, odd_to_fp32(packed));
    }
    ptrdiff_t missing = (count + SCORED - 1) / SCORED * SCORED - count;
    memset(out + count * d, 0, (size_t)(missing * d) * sizeof(float));
}

TARGET INLINE void fp32_score(const float *queries, const float *keys, float *scores, ptrdiff_t d)
{
    __m512 sums[SCORED][3];
    for (int i = 0; i < SCORED; i++)
        for (int j = 0; j < 3; j++)
            sums[i][j] = _mm512_setzero_ps();
    for (ptrdiff_t c = 0; c < d; c++) {
        __m512 query[3];
        for (int j = 0; j < 3; j++)
            query[j] = _mm512_loadu_ps(queries + c * QUERIES + j * 16);
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

/* Unscaled scores of the keys k [count, d]. */
TARGET static void fp32_scores(struct tile *tile, const uint16_t *k, ptrdiff_t count, ptrdiff_t d)
{
    widen(k, tile->keys, count, d);
    for (ptrdiff_t i = 0; i < count; i += SCORED)
        fp32_score(tile->queries, tile->keys + i * d, tile->scores + i * QUERIES, d);
}

/* Adds weighted values to `columns` columns of the sums of SUMMED queries. */
TARGET INLINE void fp32_add_values(const float *weights, const float *values, float *sums,
                              ptrdiff_t count, ptrdiff_t d, int columns)
{
    __m512 held[SUMMED][4];
    for (int i = 0; i < SUMMED; i++)
        for (int j = 0; j < columns / 16; j++)
            held[i][j] = _mm512_loadu_ps(sums + i * d + j * 16);
    for (ptrdiff_t key = 0; key < count; key++) {
        __m512 value[4];
        for (int j = 0; j < columns / 16; j++)
            value[j] = _mm512_loadu_ps(values + key * d + j * 16);
        for (int i = 0; i < SUMMED; i++) {
            __m512 weight = _mm512_set1_ps(weights[key * QUERIES + i]);
            for (int j = 0; j < columns / 16; j++)
                held[i][j] = _mm512_fmadd_ps(weight, value[j], held[i][j]);
        }
    }
    for (int i = 0; i < SUMMED; i++)
        for (int j = 0; j < columns / 16; j++)
            _mm512_storeu_ps(sums + i * d + j * 16, held[i][j]);
}

/* Adds the values v [count, d], times their softmax weights, to the sums. */
TARGET static void fp32_sums(struct tile *tile, const uint16_t *v, ptrdiff_t count, ptrdiff_t d)
{
    widen(v, tile->values, count, d);
    for (int i = 0; i < QUERIES; i += SUMMED) {
        const float *weights = tile->scores + i;
        float *sums = tile->sums + i * d;
        ptrdiff_t c = 0;
        for (; c + 64 <= d; c += 64)
            fp32_add_values(weights, tile->values + c, sums + c, count, d, 64);
        if (c < d)
            fp32_add_values(weights, tile->values + c, sums + c, count, d, 32);
    }
}

#endif
