/* Scores and weighted values of a tile by bfloat16 dot products, two columns or two keys at once.
 *
 * Queries and keys are bfloat16 as they are; weights are rounded to it, sums are fp32.
 */
#ifndef KVSTITCH_ATTENTION_BF16_H
#define KVSTITCH_ATTENTION_BF16_H

#include "attention_tile.h"

/* A query's row into lane i. */
INLINE void narrow_ask(struct tile *tile, ptrdiff_t i, const uint16_t *row, ptrdiff_t d)
{
    for (ptrdiff_t c = 0; c < d; c += 2)
        memcpy(tile->asked + c / 2 * QUERIES + i, row + c, sizeof(int32_t));
}

TARGET_BF16 INLINE void narrow_score(const float *asked, const uint16_t *k, float *scores,
                                     ptrdiff_t d)
{
    __m512 sums[SCORED][3];
    for (int i = 0; i < SCORED; i++)
        for (int j = 0; j < 3; j++)
            sums[i][j] = _mm512_setzero_ps();
    for (ptrdiff_t c = 0; c < d; c += 2) {
        __m512bh query[3];
        for (int j = 0; j < 3; j++)
            query[j] = (__m512bh)_mm512_loadu_ps(asked + c / 2 * QUERIES + j * 16);
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

/* Scores of `count` keys k [count, d], before they are scaled. */
TARGET_BF16 static void narrow_scores(struct tile *tile, const uint16_t *k, ptrdiff_t count,
                                      ptrdiff_t d)
{
    ptrdiff_t whole = count / SCORED * SCORED, rest = count - whole;
    for (ptrdiff_t i = 0; i < whole; i += SCORED)
        narrow_score(tile->asked, k + i * d, tile->scores + i * QUERIES, d);
    if (!rest)
        return;
    uint16_t *keys = (uint16_t *)tile->keys; /* nothing may lie behind the last key */
    memset(keys, 0, (size_t)(SCORED * d) * sizeof *keys);
    memcpy(keys, k + whole * d, (size_t)(rest * d) * sizeof *keys);
    narrow_score(tile->asked, keys, tile->scores + whole * QUERIES, d);
}

/* Adds weighted values to the sums of WEIGHED queries, `columns` of them. */
TARGET_BF16 INLINE void narrow_weigh(const float *weights, const float *values, float *sums,
                                     ptrdiff_t pairs, ptrdiff_t d, int columns)
{
    __m512 held[WEIGHED][4];
    for (int i = 0; i < WEIGHED; i++)
        for (int j = 0; j < columns / 16; j++)
            held[i][j] = _mm512_loadu_ps(sums + i * d + j * 16);
    for (ptrdiff_t at = 0; at < pairs; at++) {
        __m512bh value[4];
        for (int j = 0; j < columns / 16; j++)
            value[j] = (__m512bh)_mm512_loadu_ps(values + at * d + j * 16);
        for (int i = 0; i < WEIGHED; i++) {
            __m512bh weight = (__m512bh)_mm512_set1_epi32(pair_at(weights + at * QUERIES + i));
            for (int j = 0; j < columns / 16; j++)
                held[i][j] = _mm512_dpbf16_ps(held[i][j], weight, value[j]);
        }
    }
    for (int i = 0; i < WEIGHED; i++)
        for (int j = 0; j < columns / 16; j++)
            _mm512_storeu_ps(sums + i * d + j * 16, held[i][j]);
}

/* Two rows column by column: of every 32 columns the pairs of the even ones first. */
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

/* Adds the values v [count, d], weighted, to the sums. */
TARGET_BF16 static void narrow_sums(struct tile *tile, const uint16_t *v, ptrdiff_t count,
                                    ptrdiff_t d)
{
    ptrdiff_t pairs = (count + 1) / 2;
    for (ptrdiff_t i = 0; i < pairs; i++)
        join_rows(v + 2 * i * d, 2 * i + 1 < count ? v + (2 * i + 1) * d : NULL,
                  tile->values + i * d, d);
    for (int i = 0; i < QUERIES; i += WEIGHED) {
        const float *weights = tile->scores + i;
        float *sums = tile->sums + i * d;
        ptrdiff_t c = 0;
        for (; c + 64 <= d; c += 64)
            narrow_weigh(weights, tile->values + c, sums + c, pairs, d, 64);
        if (c < d)
            narrow_weigh(weights, tile->values + c, sums + c, pairs, d, 32);
    }
}

#endif
