/* Accumulated attention: how much the later tokens of a prompt attend to each of its tokens, and
 * the log of every query's softmax sum. A causal softmax whose weights are added up by key instead
 * of being multiplied with values.
 *
 * q [tokens, heads, d], k [kv_heads, first + tokens, d], bfloat16; scores and sums in fp32. A tile
 * of queries is scored against transposed keys in the cache, so softmax weights are never written
 * to memory. Scores use bfloat16 dot products where those are faster than fp32 (`bf16_dot`). Every
 * head has its own sums, so a result does not depend on the number of threads.
 */
#include "bfloat16.h"
#include "exponential.h"
#include "kernels.h"
#include "tiles.h"

#include <math.h>
#include <stddef.h>

#define QUERIES 6 /* queries scored at once */
#define KEYS 64   /* keys scored at once: four registers */

/* Scores of q [QUERIES, d] against KEYS keys from column `at` of `transposed` [d, keys]. */
TARGET INLINE void score(const float *q, const float *transposed, float *scores, ptrdiff_t keys,
                         ptrdiff_t at, ptrdiff_t d)
{
    __m512 sums[QUERIES][4];
    for (int row = 0; row < QUERIES; row++)
        for (int i = 0; i < 4; i++)
            sums[row][i] = _mm512_setzero_ps();
    for (ptrdiff_t c = 0; c < d; c++) {
        __m512 key[4];
        for (int i = 0; i < 4; i++)
            key[i] = _mm512_loadu_ps(transposed + c * keys + at + i * 16);
        for (int row = 0; row < QUERIES; row++) {
            __m512 one = _mm512_set1_ps(q[row * d + c]);
            for (int i = 0; i < 4; i++)
                sums[row][i] = _mm512_fmadd_ps(one, key[i], sums[row][i]);
        }
    }
    for (int row = 0; row < QUERIES; row++)
        for (int i = 0; i < 4; i++)
            _mm512_storeu_ps(scores + row * keys + at + i * 16, sums[row][i]);
}

/* The same by bfloat16 dot products, of all keys before `end`: q [QUERIES, d / 2] and `transposed`
 * [d / 2, keys] hold pairs. */
TARGET_BF16 static void bf16_score(const float *q, const float *transposed, float *scores,
                                     ptrdiff_t keys, ptrdiff_t end, ptrdiff_t d, float scale)
{
    for (ptrdiff_t at = 0; at < end; at += KEYS) {
        __m512 sums[QUERIES][4];
        for (int row = 0; row < QUERIES; row++)
            for (int i = 0; i < 4; i++)
                sums[row][i] = _mm512_setzero_ps();
        for (ptrdiff_t c = 0; c < d / 2; c++) {
            __m512bh key[4];
            for (int i = 0; i < 4; i++)
                key[i] = (__m512bh)_mm512_loadu_ps(transposed + c * keys + at + i * 16);
            for (int row = 0; row < QUERIES; row++) {
                __m512bh one = (__m512bh)_mm512_set1_epi32(pair_at(q + row * (d / 2) + c));
                for (int i = 0; i < 4; i++)
                    sums[row][i] = _mm512_dpbf16_ps(sums[row][i], one, key[i]);
            }
        }
        for (int row = 0; row < QUERIES; row++)
            for (int i = 0; i < 4; i++)
                _mm512_storeu_ps(scores + row * keys + at + i * 16,
                                 _mm512_mul_ps(sums[row][i], _mm512_set1_ps(scale)));
    }
}

/* Turns the scores (base 2) of the `seen` keys into weights; times `share` they add up to one. Then
 * the weight of the last key, which is the query itself, and those of the keys up to `end` are set
 * to 0. Returns the log of the softmax sum, base 2. */
TARGET INLINE float softmax(float *scores, ptrdiff_t seen, ptrdiff_t end, float *share)
{
    ptrdiff_t whole = (seen + 15) / 16 * 16;
    for (ptrdiff_t i = seen; i < whole; i++)
        scores[i] = -INFINITY;
    __m512 most = _mm512_set1_ps(-INFINITY), total = _mm512_setzero_ps();
    for (ptrdiff_t i = 0; i < whole; i += 16)
        most = _mm512_max_ps(most, _mm512_loadu_ps(scores + i));
    float highest = _mm512_reduce_max_ps(most);
    for (ptrdiff_t i = 0; i < whole; i += 16) {
        __m512 score = _mm512_loadu_ps(scores + i);
        __m512 weight = exp2_of(_mm512_sub_ps(score, _mm512_set1_ps(highest)));
        _mm512_storeu_ps(scores + i, weight);
        total = _mm512_add_ps(total, weight);
    }
    float sum = _mm512_reduce_add_ps(total);
    *share = 1.0f / sum;
    memset(scores + seen - 1, 0, (size_t)(end - seen + 1) * sizeof(float));
    return highest + log2f(sum);
}

/* Transposes k [n, d] to [d, keys] fp32, or with bf16_dot to pairs [d / 2, keys]. */
TARGET static void transpose_keys(const uint16_t *k, float *transposed, ptrdiff_t n,
                                  ptrdiff_t keys, ptrdiff_t d, int bf16_dot)
{
    memset(transposed, 0, (size_t)((bf16_dot ? d / 2 : d) * keys) * sizeof(float));
    ptrdiff_t whole = bf16_dot && d % LANES == 0 ? n / HALF * HALF : 0;
    for (ptrdiff_t j = 0; j < whole; j += HALF)
        for (ptrdiff_t c = 0; c < d; c += LANES) {
            __m512 v[HALF];
            for (int i = 0; i < HALF; i++)
                v[i] = _mm512_loadu_ps(k + (j + i) * d + c);
            transpose(v); /* moves each pair as one number */
            for (int i = 0; i < HALF; i++)
                _mm512_storeu_ps(transposed + (c / 2 + i) * keys + j, v[i]);
        }
    for (ptrdiff_t j = whole; j < n; j++)
        for (ptrdiff_t c = 0; c < d; c += bf16_dot ? 2 : 1)
            if (bf16_dot)
                memcpy(transposed + c / 2 * keys + j, k + j * d + c, 2 * sizeof *k);
            else
                transposed[c * keys + j] = to_fp32(k[j * d + c]);
}

/* One head. `scores` [QUERIES, keys] is scratch; keys is n rounded up to a multiple of KEYS. */
TARGET static void head(const uint16_t *q, float *key_sums, float *norm, const float *transposed,
                        float *scores, ptrdiff_t tokens, ptrdiff_t n, ptrdiff_t keys, ptrdiff_t d,
                        ptrdiff_t q_stride, float scale, int bf16_dot)
{
    float *query_rows = scores + QUERIES * keys;
    ptrdiff_t first = n - tokens;
    memset(key_sums, 0, (size_t)keys * sizeof(float));
    for (ptrdiff_t row = 0; row < tokens; row += QUERIES) {
        ptrdiff_t rows = tokens - row < QUERIES ? tokens - row : QUERIES, last = first + row + rows;
        ptrdiff_t end = (last + KEYS - 1) / KEYS * KEYS;
        memset(query_rows, 0, (size_t)(QUERIES * d) * sizeof(float));
        for (ptrdiff_t r = 0; r < rows; r++) {
            const uint16_t *from = q + (row + r) * q_stride;
            if (bf16_dot)
                memcpy(query_rows + r * (d / 2), from, (size_t)d * sizeof *from);
            for (ptrdiff_t c = 0; !bf16_dot && c < d; c++)
                query_rows[r * d + c] = to_fp32(from[c]) * scale;
        }
        if (bf16_dot)
            bf16_score(query_rows, transposed, scores, keys, end, d, scale);
        for (ptrdiff_t at = 0; !bf16_dot && at < end; at += KEYS)
            score(query_rows, transposed, scores, keys, at, d);
        float share[QUERIES];
        for (ptrdiff_t r = 0; r < rows; r++)
            norm[row + r] = softmax(scores + r * keys, first + row + r + 1, end, share + r);
        for (ptrdiff_t at = 0; at < end; at += 16) {
            __m512 sum = _mm512_loadu_ps(key_sums + at);
            for (ptrdiff_t r = 0; r < rows; r++)
                sum = _mm512_fmadd_ps(_mm512_loadu_ps(scores + r * keys + at),
                                      _mm512_set1_ps(share[r]), sum);
            _mm512_storeu_ps(key_sums + at, sum);
        }
    }
}

/* key_sums [heads, keys] and norm [heads, tokens], base 2, are the results. scratch: (d + QUERIES)
 * * keys + QUERIES * d floats per thread. Strides are in values; rows of k and of a head of q are
 * contiguous. With bf16_dot, d must be even. */
TARGET void accumulated_attention(const uint16_t *q, const uint16_t *k, float *key_sums,
                                float *norm,
                                float *scratch, ptrdiff_t tokens, ptrdiff_t n, ptrdiff_t keys,
                                ptrdiff_t heads, ptrdiff_t group, ptrdiff_t d, ptrdiff_t q_stride,
                                ptrdiff_t k_stride, float scale, int bf16_dot, int threads)
{
    ptrdiff_t room = (d + QUERIES) * keys + QUERIES * d;
    _Pragma("omp parallel for schedule(static) num_threads(threads) if (threads > 1)")
    for (int part = 0; part < threads; part++) {
        float *transposed = scratch + part * room;
        ptrdiff_t last = -1;
        for (ptrdiff_t h = part; h < heads; h += threads) {
            if (h / group != last) {
                last = h / group;
                transpose_keys(k + last * k_stride, transposed, n, keys, d, bf16_dot);
            }
            head(q + h * d, key_sums + h * keys, norm + h * tokens, transposed,
                 transposed + d * keys, tokens, n, keys, d, q_stride, scale * 1.44269504f,
                 bf16_dot);
        }
    }
}
