/* How much attention the later tokens of a prompt pay each of its tokens, and every query's log
 * normaliser: a causal softmax whose weights are added up by key instead of weighing values.
 *
 * q [tokens, heads, d], k [kv_heads, first + tokens, d], bfloat16; scores and sums in fp32. A tile
 * of queries is scored against keys that lie transposed in the cache, so no weight is ever written
 * to memory; by bfloat16 dot products where those are faster than fp32 (`narrow`). A result does not depend on the number of threads: each head has sums of its own.
 */
#include "bfloat16.h"
#include "exponential.h"
#include "tiles.h"

#include <math.h>
#include <stddef.h>

#define ASKED 6  /* queries scored at once */
#define WIDTH 64 /* keys scored at once, four registers */

int accumulated_attention_supported(void) { return __builtin_cpu_supports("avx512f") != 0; }

/* Scores of ASKED rows of q [ASKED, d] against WIDTH keys from column `at` of turned [d, keys]. */
TARGET INLINE void score(const float *q, const float *turned, float *scores, ptrdiff_t keys,
                         ptrdiff_t at, ptrdiff_t d)
{
    __m512 sums[ASKED][4];
    for (int row = 0; row < ASKED; row++)
        for (int i = 0; i < 4; i++)
            sums[row][i] = _mm512_setzero_ps();
    for (ptrdiff_t c = 0; c < d; c++) {
        __m512 key[4];
        for (int i = 0; i < 4; i++)
            key[i] = _mm512_loadu_ps(turned + c * keys + at + i * 16);
        for (int row = 0; row < ASKED; row++) {
            __m512 one = _mm512_set1_ps(q[row * d + c]);
            for (int i = 0; i < 4; i++)
                sums[row][i] = _mm512_fmadd_ps(one, key[i], sums[row][i]);
        }
    }
    for (int row = 0; row < ASKED; row++)
        for (int i = 0; i < 4; i++)
            _mm512_storeu_ps(scores + row * keys + at + i * 16, sums[row][i]);
}

/* The same by bfloat16 dot products: q [ASKED, d / 2] and turned [d / 2, keys] are pairs. */
TARGET_BF16 static void narrow_score(const float *q, const float *turned, float *scores,
                                     ptrdiff_t keys, ptrdiff_t end, ptrdiff_t d, float scale)
{
    for (ptrdiff_t at = 0; at < end; at += WIDTH) {
        __m512 sums[ASKED][4];
        for (int row = 0; row < ASKED; row++)
            for (int i = 0; i < 4; i++)
                sums[row][i] = _mm512_setzero_ps();
        for (ptrdiff_t c = 0; c < d / 2; c++) {
            __m512bh key[4];
            for (int i = 0; i < 4; i++)
                key[i] = (__m512bh)_mm512_loadu_ps(turned + c * keys + at + i * 16);
            for (int row = 0; row < ASKED; row++) {
                __m512bh one = (__m512bh)_mm512_set1_epi32(pair_at(q + row * (d / 2) + c));
                for (int i = 0; i < 4; i++)
                    sums[row][i] = _mm512_dpbf16_ps(sums[row][i], one, key[i]);
            }
        }
        for (int row = 0; row < ASKED; row++)
            for (int i = 0; i < 4; i++)
                _mm512_storeu_ps(scores + row * keys + at + i * 16,
                                 _mm512_mul_ps(sums[row][i], _mm512_set1_ps(scale)));
    }
}

/* Scores of `seen` keys in base 2 become weights, which `share` makes add up to one with the last
 * key's: that is the query itself and gets 0, as all keys up to `end` do. Returns the log
 * normaliser, base 2. */
TARGET INLINE float soften(float *scores, ptrdiff_t seen, ptrdiff_t end, float *share)
{
    ptrdiff_t whole = (seen + 15) / 16 * 16;
    for (ptrdiff_t i = seen; i < whole; i++)
        scores[i] = -INFINITY;
    __m512 most = _mm512_set1_ps(-INFINITY), total = _mm512_setzero_ps();
    for (ptrdiff_t i = 0; i < whole; i += 16)
        most = _mm512_max_ps(most, _mm512_loadu_ps(scores + i));
    float highest = _mm512_reduce_max_ps(most);
    for (ptrdiff_t i = 0; i < whole; i += 16) {
        __m512 weight = exp2_of(_mm512_sub_ps(_mm512_loadu_ps(scores + i), _mm512_set1_ps(highest)));
        _mm512_storeu_ps(scores + i, weight);
        total = _mm512_add_ps(total, weight);
    }
    float sum = _mm512_reduce_add_ps(total);
    *share = 1.0f / sum;
    memset(scores + seen - 1, 0, (size_t)(end - seen + 1) * sizeof(float));
    return highest + log2f(sum);
}

/* Keys k [n, d] into turned: [d, keys], or pairs [d / 2, keys]. */
TARGET static void turn(const uint16_t *k, float *turned, ptrdiff_t n, ptrdiff_t keys, ptrdiff_t d,
                        int narrow)
{
    memset(turned, 0, (size_t)((narrow ? d / 2 : d) * keys) * sizeof(float));
    ptrdiff_t whole = narrow && d % LANES == 0 ? n / HALF * HALF : 0;
    for (ptrdiff_t j = 0; j < whole; j += HALF)
        for (ptrdiff_t c = 0; c < d; c += LANES) {
            __m512 v[HALF];
            for (int i = 0; i < HALF; i++)
                v[i] = _mm512_loadu_ps(k + (j + i) * d + c);
            transpose(v); /* a pair is moved as one number */
            for (int i = 0; i < HALF; i++)
                _mm512_storeu_ps(turned + (c / 2 + i) * keys + j, v[i]);
        }
    for (ptrdiff_t j = whole; j < n; j++)
        for (ptrdiff_t c = 0; c < d; c += narrow ? 2 : 1)
            if (narrow)
                memcpy(turned + c / 2 * keys + j, k + j * d + c, 2 * sizeof *k);
            else
                turned[c * keys + j] = widened(k[j * d + c]);
}

/* One head. turned: its keys; scores [ASKED, keys] is scratch, keys = n rounded up to WIDTH. */
TARGET static void head(const uint16_t *q, float *mass, float *norm, const float *turned,
                        float *scores, ptrdiff_t tokens, ptrdiff_t n, ptrdiff_t keys, ptrdiff_t d,
                        ptrdiff_t q_stride, float scale, int narrow)
{
    float *asked = scores + ASKED * keys;
    ptrdiff_t first = n - tokens;
    memset(mass, 0, (size_t)keys * sizeof(float));
    for (ptrdiff_t row = 0; row < tokens; row += ASKED) {
        ptrdiff_t rows = tokens - row < ASKED ? tokens - row : ASKED, last = first + row + rows;
        ptrdiff_t end = (last + WIDTH - 1) / WIDTH * WIDTH;
        memset(asked, 0, (size_t)(ASKED * d) * sizeof(float));
        for (ptrdiff_t r = 0; r < rows; r++) {
            const uint16_t *from = q + (row + r) * q_stride;
            if (narrow)
                memcpy(asked + r * (d / 2), from, (size_t)d * sizeof *from);
            for (ptrdiff_t c = 0; !narrow && c < d; c++)
                asked[r * d + c] = widened(from[c]) * scale;
        }
        if (narrow)
            narrow_score(asked, turned, scores, keys, end, d, scale);
        for (ptrdiff_t at = 0; !narrow && at < end; at += WIDTH)
            score(asked, turned, scores, keys, at, d);
        float share[ASKED];
        for (ptrdiff_t r = 0; r < rows; r++)
            norm[row + r] = soften(scores + r * keys, first + row + r + 1, end, share + r);
        for (ptrdiff_t at = 0; at < end; at += 16) {
            __m512 sum = _mm512_loadu_ps(mass + at);
            for (ptrdiff_t r = 0; r < rows; r++)
                sum = _mm512_fmadd_ps(_mm512_loadu_ps(scores + r * keys + at),
                                      _mm512_set1_ps(share[r]), sum);
            _mm512_storeu_ps(mass + at, sum);
        }
    }
}

/* mass [heads, keys] and norm [heads, tokens], base 2; scratch: (d + ASKED) * keys + ASKED * d floats
 * per thread. Strides in values; rows of k and of a head of q are contiguous. narrow: d is even. */
TARGET void accumulated_attention_rows(const uint16_t *q, const uint16_t *k, float *mass, float *norm,
                                float *scratch, ptrdiff_t tokens, ptrdiff_t n, ptrdiff_t keys,
                                ptrdiff_t heads, ptrdiff_t group, ptrdiff_t d, ptrdiff_t q_stride,
                                ptrdiff_t k_stride, float scale, int narrow, int threads)
{
    ptrdiff_t room = (d + ASKED) * keys + ASKED * d;
    _Pragma("omp parallel for schedule(static) num_threads(threads) if (threads > 1)")
    for (int part = 0; part < threads; part++) {
        float *turned = scratch + part * room;
        ptrdiff_t last = -1;
        for (ptrdiff_t h = part; h < heads; h += threads) {
            if (h / group != last) {
                last = h / group;
                turn(k + last * k_stride, turned, n, keys, d, narrow);
            }
            head(q + h * d, mass + h * keys, norm + h * tokens, turned, turned + d * keys, tokens,
                 n, keys, d, q_stride, scale * 1.44269504f, narrow);
        }
    }
}
