/* Attention of one new token per sequence over KV that lies where it was put: every sequence and KV
 * head has a run of rows of its own, of its own length.
 *
 * q [sequences, kv_heads * group, d], k and v rows of d, all bfloat16; sums, softmax and products in
 * fp32, the result rounded once. A tile of keys is scored for all query heads of a KV head while it
 * is in the cache; the softmax is kept up to date from tile to tile. A sequence's result does not
 * depend on the others nor on the number of threads.
 */
#include "bfloat16.h"
#include "exponential.h"

#include <math.h>
#include <stddef.h>

#define TILE 128 /* keys scored at once */
#define HEADS 4  /* query heads per block, one register of sums with as many keys */
#define MAX_STATE 4096 /* group * d */
#define MAX_GROUP 64

int ragged_attention_supported(void) { return __builtin_cpu_supports("avx512f") != 0; }

/* Scores of `keys` rows of k for `heads` rearranged rows of q: scores[h * TILE + key]. */
TARGET INLINE void score(const float *q, const uint16_t *k, float *scores, ptrdiff_t d, int heads,
                         int keys)
{
    __m512 sums[16];
    for (int i = 0; i < 16; i++)
        sums[i] = _mm512_setzero_ps();
    for (ptrdiff_t c = 0; c < d; c += LANES) {
        __m512 evens[4], odds[4];
        for (int i = 0; i < keys; i++) {
            __m512i narrow = _mm512_loadu_si512(k + i * d + c);
            evens[i] = even(narrow);
            odds[i] = odd(narrow);
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
    _mm512_storeu_ps(found, added_up(sums));
    for (int h = 0; h < heads; h++)
        memcpy(scores + h * TILE, found + h * 4, (size_t)keys * sizeof(float));
}

/* Adds the weighted rows of v to `heads` rearranged rows of `sums`, `columns` of them from c on. */
TARGET INLINE void weigh(const uint16_t *v, const float *weights, float *sums, ptrdiff_t n,
                         ptrdiff_t d, ptrdiff_t c, int heads, int columns)
{
    __m512 held[HEADS][4];
    for (int h = 0; h < heads; h++)
        for (int i = 0; i < columns / 16; i++)
            held[h][i] = _mm512_loadu_ps(sums + h * d + c + i * 16);
    for (ptrdiff_t key = 0; key < n; key++) {
        __m512 value[4];
        for (int i = 0; i < columns / LANES; i++) {
            __m512i narrow = _mm512_loadu_si512(v + key * d + c + i * LANES);
            value[2 * i] = even(narrow);
            value[2 * i + 1] = odd(narrow);
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

/* What the softmax of one query head knows so far, scores in base 2. */
struct seen {
    float highest, total;
};

/* Scores of n keys become weights; earlier sums are scaled to the new highest score. */
TARGET INLINE void soften(float *scores, float *sums, struct seen *seen, ptrdiff_t n, ptrdiff_t d)
{
    ptrdiff_t end = (n + 15) / 16 * 16;
    for (ptrdiff_t i = n; i < end; i++)
        scores[i] = -INFINITY;
    __m512 most = _mm512_set1_ps(seen->highest);
    for (ptrdiff_t i = 0; i < end; i += 16)
        most = _mm512_max_ps(most, _mm512_loadu_ps(scores + i));
    float highest = _mm512_reduce_max_ps(most);
    __m512 fade = exp2_of(_mm512_set1_ps(seen->highest - highest)), total = _mm512_setzero_ps();
    for (ptrdiff_t i = 0; i < end; i += 16) {
        __m512 score = _mm512_loadu_ps(scores + i);
        __m512 weight = exp2_of(_mm512_sub_ps(score, _mm512_set1_ps(highest)));
        _mm512_storeu_ps(scores + i, weight);
        total = _mm512_add_ps(total, weight);
    }
    float faded = _mm512_cvtss_f32(fade);
    seen->total = seen->total * faded + _mm512_reduce_add_ps(total);
    seen->highest = highest;
    if (faded != 1.0f)
        for (ptrdiff_t c = 0; c < d; c += 16)
            _mm512_storeu_ps(sums + c, _mm512_mul_ps(fade, _mm512_loadu_ps(sums + c)));
}

/* A tile of n keys for `heads` query heads; a constant lets the compiler keep sums in registers. */
TARGET INLINE void block(const float *q, const uint16_t *k, const uint16_t *v, float *sums,
                         struct seen *seen, ptrdiff_t n, ptrdiff_t d, int heads)
{
    float scores[HEADS * TILE];
    ptrdiff_t key = 0, c = 0;
    for (; key + 4 <= n; key += 4)
        score(q, k + key * d, scores + key, d, heads, 4);
    for (; key < n; key++)
        score(q, k + key * d, scores + key, d, heads, 1);
    for (int h = 0; h < heads; h++)
        soften(scores + h * TILE, sums + h * d, seen + h, n, d);
    for (; c + 2 * LANES <= d; c += 2 * LANES)
        weigh(v, scores, sums, n, d, c, heads, 2 * LANES);
    if (c < d)
        weigh(v, scores, sums, n, d, c, heads, LANES);
}

/* One sequence's query heads of one KV head: q and y [group, d], k and v [n, d]. */
TARGET static void attend(const uint16_t *q, const uint16_t *k, const uint16_t *v, uint16_t *y,
                          ptrdiff_t n, ptrdiff_t group, ptrdiff_t d, float scale)
{
    float asked[MAX_STATE], sums[MAX_STATE];
    struct seen seen[MAX_GROUP];
    __m512 factor = _mm512_set1_ps(scale * 1.44269504f); /* so that 2^score is e^score */
    for (ptrdiff_t c = 0; c < group * d; c += LANES) {
        __m512i narrow = _mm512_loadu_si512(q + c);
        _mm512_storeu_ps(asked + c, _mm512_mul_ps(factor, even(narrow)));
        _mm512_storeu_ps(asked + c + LANES / 2, _mm512_mul_ps(factor, odd(narrow)));
    }
    memset(sums, 0, (size_t)(group * d) * sizeof(float));
    for (ptrdiff_t h = 0; h < group; h++)
        seen[h] = (struct seen){-1e30f, 0.0f};
    for (ptrdiff_t first = 0; first < n; first += TILE) {
        ptrdiff_t keys = n - first < TILE ? n - first : TILE;
        for (ptrdiff_t h = 0; h < group; h += HEADS) {
            const uint16_t *kt = k + first * d, *vt = v + first * d;
            switch (group - h) {
            case 1: block(asked + h * d, kt, vt, sums + h * d, seen + h, keys, d, 1); break;
            case 2: block(asked + h * d, kt, vt, sums + h * d, seen + h, keys, d, 2); break;
            case 3: block(asked + h * d, kt, vt, sums + h * d, seen + h, keys, d, 3); break;
            default: block(asked + h * d, kt, vt, sums + h * d, seen + h, keys, d, 4);
            }
        }
    }
    for (ptrdiff_t h = 0; h < group; h++) {
        __m512 share = _mm512_set1_ps(1.0f / seen[h].total);
        for (ptrdiff_t c = h * d; c < (h + 1) * d; c += LANES) {
            __m512i low = rounded(_mm512_mul_ps(share, _mm512_loadu_ps(sums + c)));
            __m512i high = rounded(_mm512_mul_ps(share, _mm512_loadu_ps(sums + c + LANES / 2)));
            high = _mm512_and_si512(high, _mm512_set1_epi32((int)0xffff0000));
            _mm512_storeu_si512(y + c, _mm512_or_si512(high, _mm512_srli_epi32(low, 16)));
        }
    }
}

/* k and v point at the pool's first row; starts and lengths [sequences * kv_heads], in rows, every
 * length at least 1. q and y are contiguous. */
TARGET void ragged_attention(const uint16_t *q, const uint16_t *k, const uint16_t *v, uint16_t *y,
                             const int64_t *starts, const int64_t *lengths, ptrdiff_t runs,
                             ptrdiff_t group, ptrdiff_t d, float scale, int threads)
{
    _Pragma("omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)")
    for (ptrdiff_t i = 0; i < runs; i++)
        attend(q + i * group * d, k + starts[i] * d, v + starts[i] * d, y + i * group * d,
               lengths[i], group, d, scale);
}
