/* Scores and weighted values of a tile, by bfloat16 dot products: two columns or keys at once.
 *
 * Queries, keys and values are used as they are. Softmax weights are rounded to bfloat16, sums are
 * fp32.
 */
#ifndef KVSTITCH_ATTENTION_BF16_H
#define KVSTITCH_ATTENTION_BF16_H

#include "attention_tile.h"

/* Puts a query into lane i. */
INLINE void bf16_load_query(struct tile *tile, ptrdiff_t i, const uint16_t *row, ptrdiff_t d)
{
    for (ptrdiff_t c = 0; c < d; c += 2)
        memcpy(tile->queries + c / 2 * QUERIES + i, row + c, sizeof(int32_t));
}

TARGET_BF16 INLINE void bf16_score(const float *queries, const uint16_t *k, float *scores,
                                     ptrdiff_t d)
{
    __m512 sums[SCORED][3];
    for (int i = 0; i < SCORED; i++)
        for (int j = 0; j < 3; j++)
            sums[i][j] = _mm512_setzero_ps();
    for (ptrdiff_t c = 0; c < d; c += 2) {
        __m512bh query[3];
        for (int j = 0; j < 3; j++)
            query[j] = (__m512bh)_mm512_loadu_ps(queries + c / 2 * QUERIES + j * 16);
        for (int i = 0; i < SCORED; i++) {
            __m512bh key = (__m512bh)_mm512_set1_epi32(pair_at(k + i * d + c));
            for (int j = 0; j < 3; j++)
                sums[i][j] = _mm512_dpbf16_ps(sums[i][j], key, query[j]);
        }
    }
    for (int i = 0; i < SCORED; i++)
        for (int j = 0; j < 3; j++)
            _mm512_storeu_ps(scores + i * QUERIES + j * 16, sums[i][j]);
}

/* Unscaled scores of the keys k [count, d]. */
TARGET_BF16 static void bf16_scores(struct tile *tile, const uint16_t *k, ptrdiff_t count,
                                      ptrdiff_t d)
{
    ptrdiff_t whole = count / SCORED * SCORED, rest = count - whole;
    for (ptrdiff_t i = 0; i < whole; i += SCORED)
        bf16_score(tile->queries, k + i * d, tile->scores + i * QUERIES, d);
    if (!rest)
        return;
    uint16_t *keys = (uint16_t *)tile->keys; /* a copy: reading past the last key is not allowed */
    memset(keys, 0, (size_t)(SCORED * d) * sizeof *keys);
    memcpy(keys, k + whole * d, (size_t)(rest * d) * sizeof *keys);
    bf16_score(tile->queries, keys, tile->scores + whole * QUERIES, d);
}

/* Adds weighted values to `columns` columns of the sums of SUMMED queries. */
TARGET_BF16 INLINE void bf16_add_values(const float *weights, const float *values, float *sums,
                                     ptrdiff_t pairs, ptrdiff_t d, int columns)
{
    __m512 held[SUMMED][4];
    for (int i = 0; i < SUMMED; i++)
        for (int j = 0; j < columns / 16; j++)
            held[i][j] = _mm512_loadu_ps(sums + i * d + j * 16);
    for (ptrdiff_t at = 0; at < pairs; at++) {
        __m512bh value[4];
        for (int j = 0; j < columns / 16; j++)
            value[j] = (__m512bh)_mm512_loadu_ps(values + at * d + j * 16);
        for (int i = 0; i < SUMMED; i++) {
            __m512bh weight = (__m512bh)_mm512_set1_epi32(pair_at(weights + at * QUERIES + i));
            for (int j = 0; j < columns / 16; j++)
                held[i][j] = _mm512_dpbf16_ps(held[i][j], weight, value[j]);
        }
    }
    for (int i = 0; i < SUMMED; i++)
        for (int j = 0; j < columns / 16; j++)
            _mm512_storeu_ps(sums + i * d + j * 16, held[i][j]);
}

/* Interleaves two rows into pairs, column by column; of every 32 columns the even ones first. */
TARGET INLINE void join_rows(const uint16_t *one, const uint16_t *other, float *out, ptrdiff_t d)
{
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000);
    for (ptrdiff_t c = 0; c < d; c += LANES) {
        __m512i a = _mm512_loadu_si512(one + c);
        __m512i b = other ? _mm512_loadu_si512(other + c) : _mm512_setzero_si512();
        _mm512_storeu_si512(out + c, _mm512_or_si512(_mm512_slli_epi32(b, 16),
                                                     _mm512_andnot_si512(upper, a)));
        _mm512_storeu_si512(out + c + LANES / 2, _mm512_or_si512(_mm512_and_si512(b, upper),
                                                                 _mm512_srli_epi32(a, 16)));
    }
}

/* Adds the values v [count, d], times their softmax weights, to the sums. */
TARGET_BF16 static void bf16_sums(struct tile *tile, const uint16_t *v, ptrdiff_t count,
                                    ptrdiff_t d)
{
    ptrdiff_t pairs = (count + 1) / 2;
    for (ptrdiff_t i = 0; i < pairs; i++)
        join_rows(v + 2 * i * d, 2 * i + 1 < count ? v + (2 * i + 1) * d : NULL,
                  tile->values + i * d, d);
    for (int i = 0; i < QUERIES; i += SUMMED) {
        const float *weights = tile->scores + i;
        float *sums = tile->sums + i * d;
        ptrdiff_t c = 0;
        for (; c + 64 <= d; c += 64)
            bf16_add_values(weights, tile->values + c, sums + c, pairs, d, 64);
        if (c < d)
            bf16_add_values(weights, tile->values + c, sums + c, pairs, d, 32);
    }
}

#endif
