/* Attention of one new token to n keys of one KV head.
 *
 * q [group, d], k and v rows of d, all bfloat16; sums, softmax and products in fp32, the result
 * rounded once. A tile of keys is scored for all query heads of its KV head while it is in the
 * cache, with an online softmax from tile to tile.
 */
#ifndef KVSTITCH_ONE_QUERY_ATTENTION_H
#define KVSTITCH_ONE_QUERY_ATTENTION_H

#include "bfloat16.h"
#include "exponential.h"

#include <math.h>
#include <stddef.h>

#define TILE 128 /* keys scored at once */
#define HEADS 4  /* query heads per block: with as many keys, one register of sums each */
#define MAX_STATE 4096 /* group * d */
#define MAX_GROUP 64

/* Scores of `keys` rows of k for `heads` rows of q, in fp32, even columns first: to
 * scores[h * TILE + key]. */
TARGET INLINE void score(const float *q, const uint16_t *k, float *scores, ptrdiff_t d, int heads,
                         int keys)
{
    __m512 sums[16];
    for (int i = 0; i < 16; i++)
        sums[i] = _mm512_setzero_ps();
    for (ptrdiff_t c = 0; c < d; c += LANES) {
        __m512 evens[4], odds[4];
        for (int i = 0; i < keys; i++) {
            __m512i packed = _mm512_loadu_si512(k + i * d + c);
            evens[i] = even_to_fp32(packed);
            odds[i] = odd_to_fp32(packed);
        }
        for (int h = 0; h < heads; h++) {
            __m512 one = _mm512_loadu_ps(q + h * d + c);
            __m512 other = _mm512_loadu_ps(q + h * d + c + LANES / 2);
            for (int i = 0; i < keys; i++) {
                __m512 *sum = &sums[h * 4 + i];
                *sum = _mm512_fmadd_ps(other, odds[i], _mm512_fmadd_ps(one, evens[i], *sum));
            }
        }
    }
    float found[16];
    _mm512_storeu_ps(found, horizontal_sums(sums));
    for (int h = 0; h < heads; h++)
        memcpy(scores + h * TILE, found + h * 4, (size_t)keys * sizeof(float));
}

/* Adds the weighted rows of v to `columns` columns, from c on, of `heads` rows of `sums` (even
 * columns first). */
TARGET INLINE void add_values(const uint16_t *v, const float *weights, float *sums, ptrdiff_t n,
                         ptrdiff_t d, ptrdiff_t c, int heads, int columns)
{
    __m512 held[HEADS][4];
    for (int h = 0; h < heads; h++)
        for (int i = 0; i < columns / 16; i++)
            held[h][i] = _mm512_loadu_ps(sums + h * d + c + i * 16);
    for (ptrdiff_t key = 0; key < n; key++) {
        __m512 value[4];
        for (int i = 0; i < columns / LANES; i++) {
            __m512i packed = _mm512_loadu_si512(v + key * d + c + i * LANES);
            value[2 * i] = even_to_fp32(packed);
            value[2 * i + 1] = odd_to_fp32(packed);
        }
        for (int h = 0; h < heads; h++) {
            __m512 weight = _mm512_set1_ps(weights[h * TILE + key]);
            for (int i = 0; i < columns / 16; i++)
                held[h][i] = _mm512_fmadd_ps(weight, value[i], held[h][i]);
        }
    }
    for (int h = 0; h < heads; h++)
        for (int i = 0; i < columns / 16; i++)
            _mm512_storeu_ps(sums + h * d + c + i * 16, held[h][i]);
}

/* State of the online softmax of one query head; scores in base 2. */
struct softmax_state {
    float highest, total;
};

/* Turns the scores of n keys into weights, and rescales earlier sums to the new highest score. */
TARGET INLINE void online_softmax(float *scores, float *sums, struct softmax_state *state,
                                  ptrdiff_t n, ptrdiff_t d)
{
    ptrdiff_t end = (n + 15) / 16 * 16;
    for (ptrdiff_t i = n; i < end; i++)
        scores[i] = -INFINITY;
    __m512 most = _mm512_set1_ps(state->highest);
    for (ptrdiff_t i = 0; i < end; i += 16)
        most = _mm512_max_ps(most, _mm512_loadu_ps(scores + i));
    float highest = _mm512_reduce_max_ps(most);
    __m512 fade = exp2_of(_mm512_set1_ps(state->highest - highest)), total = _mm512_setzero_ps();
    for (ptrdiff_t i = 0; i < end; i += 16) {
        __m512 score = _mm512_loadu_ps(scores + i);
        __m512 weight = exp2_of(_mm512_sub_ps(score, _mm512_set1_ps(highest)));
        _mm512_storeu_ps(scores + i, weight);
        total = _mm512_add_ps(total, weight);
    }
    float faded = _mm512_cvtss_f32(fade);
    state->total = state->total * faded + _mm512_reduce_add_ps(total);
    state->highest = highest;
    if (faded != 1.0f)
        for (ptrdiff_t c = 0; c < d; c += 16)
            _mm512_storeu_ps(sums + c, _mm512_mul_ps(fade, _mm512_loadu_ps(sums + c)));
}

/* A tile of n keys for `heads` query heads, a constant, so that the compiler keeps sums in
 * registers. */
TARGET INLINE void block(const float *q, const uint16_t *k, const uint16_t *v, float *sums,
                         struct softmax_state *state, ptrdiff_t n, ptrdiff_t d, int heads)
{
    float scores[HEADS * TILE];
    ptrdiff_t key = 0, c = 0;
    for (; key + 4 <= n; key += 4)
        score(q, k + key * d, scores + key, d, heads, 4);
    for (; key < n; key++)
        score(q, k + key * d, scores + key, d, heads, 1);
    for (int h = 0; h < heads; h++)
        online_softmax(scores + h * TILE, sums + h * d, state + h, n, d);
    for (; c + 2 * LANES <= d; c += 2 * LANES)
        add_values(v, scores, sums, n, d, c, heads, 2 * LANES);
    if (c < d)
        add_values(v, scores, sums, n, d, c, heads, LANES);
}

/* The query heads of one KV head of one sequence: q and y [group, d], k and v [n, d]. */
TARGET static void attend(const uint16_t *q, const uint16_t *k, const uint16_t *v, uint16_t *y,
                          ptrdiff_t n, ptrdiff_t group, ptrdiff_t d, float scale)
{
    float queries[MAX_STATE], sums[MAX_STATE];
    struct softmax_state state[MAX_GROUP];
    __m512 factor = _mm512_set1_ps(scale * 1.44269504f); /* log2(e): so that 2^score is e^score */
    for (ptrdiff_t c = 0; c < group * d; c += LANES) {
        __m512i packed = _mm512_loadu_si512(q + c);
        _mm512_storeu_ps(queries + c, _mm512_mul_ps(factor, even_to_fp32(packed)));
        _mm512_storeu_ps(queries + c + LANES / 2, _mm512_mul_ps(factor, odd_to_fp32(packed)));
    }
    memset(sums, 0, (size_t)(group * d) * sizeof(float));
    for (ptrdiff_t h = 0; h < group; h++)
        state[h] = (struct softmax_state){-1e30f, 0.0f};
    for (ptrdiff_t first = 0; first < n; first += TILE) {
        ptrdiff_t keys = n - first < TILE ? n - first : TILE;
        for (ptrdiff_t h = 0; h < group; h += HEADS) {
            const uint16_t *kt = k + first * d, *vt = v + first * d;
            switch (group - h) {
            case 1: block(queries + h * d, kt, vt, sums + h * d, state + h, keys, d, 1); break;
            case 2: block(queries + h * d, kt, vt, sums + h * d, state + h, keys, d, 2); break;
            case 3: block(queries + h * d, kt, vt, sums + h * d, state + h, keys, d, 3); break;
            default: block(queries + h * d, kt, vt, sums + h * d, state + h, keys, d, 4);
            }
        }
    }
    for (ptrdiff_t h = 0; h < group; h++) {
        __m512 share = _mm512_set1_ps(1.0f / state[h].total);
        for (ptrdiff_t c = h * d; c < (h + 1) * d; c += LANES) {
            __m512 evens = _mm512_loadu_ps(sums + c), odds = _mm512_loadu_ps(sums + c + LANES / 2);
            __m512i low = round_to_bf16(_mm512_mul_ps(share, evens));
            __m512i high = round_to_bf16(_mm512_mul_ps(share, odds));
            high = _mm512_and_si512(high, _mm512_set1_epi32((int)0xffff0000));
            _mm512_storeu_si512(y + c, _mm512_or_si512(high, _mm512_srli_epi32(low, 16)));
        }
    }
}

#endif
