/* Attention of many rows of a prompt. Each row sees the first keys, up to a number of its own.
 *
 * q [m, heads, d], k and v [kv_heads, n, d], bfloat16; scores, softmax and sums in fp32, the
 * result rounded once. A tile of queries of one KV head lies transposed, one query per lane, so
 * that one operation of the softmax serves 16 queries and no sum runs across lanes. A query's
 * result does not depend on the number of threads.
 *
 * Where the CPU's bfloat16 dot products are faster than fp32 (`bf16_dot`) they compute the scores
 * and the weighted values, with softmax weights rounded to bfloat16.
 *
 * On request the kernel also adds up how much attention each key gets. For that, a tile's weights
 * are kept until its softmax sums are known.
 */
#include "attention_bf16.h"
#include "attention_fp32.h"
#include "attention_tile.h"
#include "exponential.h"
#include "kernels.h"

#define UNSEEN -1e30f

/* Softmax weights of key i for 16 queries, added to their totals and copied to all_weights (or
 * NULL). */
TARGET INLINE __m512 weight_of(const float *scores, ptrdiff_t i, __m512 scale, __m512 most,
                               float *all_weights, __m512 *total)
{
    __m512 weight = exp2_of(_mm512_fmsub_ps(_mm512_loadu_ps(scores + i * QUERIES), scale, most));
    if (all_weights)
        _mm512_storeu_ps(all_weights + i * QUERIES, weight);
    *total = _mm512_add_ps(*total, weight);
    return weight;
}

/* The weights of two keys as pairs of bfloat16. */
TARGET INLINE __m512i bf16_pair(__m512 one, __m512 other)
{
    const __m512i half = _mm512_set1_epi32(0x8000), upper = _mm512_set1_epi32((int)0xffff0000);
    __m512i low = _mm512_srli_epi32(_mm512_add_epi32(_mm512_castps_si512(one), half), 16);
    __m512i high = _mm512_add_epi32(_mm512_castps_si512(other), half);
    return _mm512_or_si512(_mm512_and_si512(high, upper), low);
}

/* One step of an online softmax: turns the scores of `count` keys from `first` on into weights, for
 * 16 queries. Returns whether earlier sums must be rescaled by `fade`. */
TARGET INLINE int online_softmax(struct tile *tile, int lane, ptrdiff_t first, ptrdiff_t count,
                                 int hide)
{
    float *scores = tile->scores + lane;
    float *all_weights = tile->all_weights ? tile->all_weights + first * QUERIES + lane : NULL;
    const __m512 scale = _mm512_set1_ps(tile->scale);
    __m512 before = _mm512_loadu_ps(tile->highest + lane), most = _mm512_set1_ps(UNSEEN);
    __m512i seen = _mm512_loadu_si512(tile->seen + lane);
    for (ptrdiff_t i = 0; i < count; i++) {
        __m512 score = _mm512_loadu_ps(scores + i * QUERIES);
        if (hide) {
            __mmask16 visible = _mm512_cmpgt_epi32_mask(seen, _mm512_set1_epi32((int)(first + i)));
            score = _mm512_mask_mov_ps(_mm512_set1_ps(UNSEEN), visible, score);
            _mm512_storeu_ps(scores + i * QUERIES, score);
        }
        most = _mm512_max_ps(most, score);
    }
    most = _mm512_max_ps(before, _mm512_mul_ps(most, scale));
    __m512 fade = exp2_of(_mm512_sub_ps(before, most));
    __m512 total = _mm512_mul_ps(fade, _mm512_loadu_ps(tile->total + lane));
    for (ptrdiff_t i = 0; !tile->bf16_dot && i < count; i++)
        _mm512_storeu_ps(scores + i * QUERIES,
                         weight_of(scores, i, scale, most, all_weights, &total));
    for (ptrdiff_t i = 0; tile->bf16_dot && i < count; i += 2) {
        __m512 one = weight_of(scores, i, scale, most, all_weights, &total);
        __m512 other = _mm512_setzero_ps();
        if (i + 1 < count)
            other = weight_of(scores, i + 1, scale, most, all_weights, &total);
        _mm512_storeu_si512(scores + i / 2 * QUERIES, bf16_pair(one, other));
    }
    if (all_weights)
        _mm512_storeu_ps(tile->block_highest + first / KEYS * QUERIES + lane, most);
    _mm512_storeu_ps(tile->highest + lane, most);
    _mm512_storeu_ps(tile->total + lane, total);
    _mm512_storeu_ps(tile->fade + lane, fade);
    return _mm512_cmp_ps_mask(fade, _mm512_set1_ps(1.0f), _CMP_NEQ_UQ) != 0;
}

/* Adds the keys first..first + count to every query of the tile. hide: some query does not see all
 * of them. */
TARGET static void block(struct tile *tile, const uint16_t *k, const uint16_t *v, ptrdiff_t first,
                         ptrdiff_t count, ptrdiff_t d, int hide)
{
    (tile->bf16_dot ? bf16_scores : fp32_scores)(tile, k + first * d, count, d);
    int fades = 0;
    for (int lane = 0; lane < QUERIES; lane += 16)
        fades |= online_softmax(tile, lane, first, count, hide);
    for (int i = 0; fades && i < QUERIES; i++)
        for (ptrdiff_t c = 0; c < d; c += 16) {
            __m512 sum = _mm512_loadu_ps(tile->sums + i * d + c);
            sum = _mm512_mul_ps(sum, _mm512_set1_ps(tile->fade[i]));
            _mm512_storeu_ps(tile->sums + i * d + c, sum);
        }
    (tile->bf16_dot ? bf16_sums : fp32_sums)(tile, v + first * d, count, d);
}

/* Adds up, by key, the weights of a block of keys, each query's times its share. */
TARGET static void add_key_scores(struct tile *tile, float *key_scores, ptrdiff_t first,
                                  ptrdiff_t count)
{
    __m512 share[3];
    for (int j = 0; j < 3; j++) {
        __m512 highest = _mm512_loadu_ps(tile->highest + j * 16);
        __m512 then = _mm512_loadu_ps(tile->block_highest + first / KEYS * QUERIES + j * 16);
        __m512 fade = exp2_of(_mm512_sub_ps(then, highest));
        share[j] = _mm512_mul_ps(fade, _mm512_loadu_ps(tile->share + j * 16));
    }
    for (ptrdiff_t i = 0; i < count; i += 16) {
        ptrdiff_t keys = count - i < 16 ? count - i : 16;
        __m512 sums[16];
        for (ptrdiff_t key = 0; key < 16; key++) {
            const float *weights = tile->all_weights + (first + i + key) * QUERIES;
            sums[key] = _mm512_setzero_ps();
            for (int j = 0; key < keys && j < 3; j++)
                sums[key] = _mm512_fmadd_ps(_mm512_loadu_ps(weights + j * 16), share[j], sums[key]);
        }
        _mm512_mask_storeu_ps(key_scores + first + i, (__mmask16)((1u << keys) - 1),
                              horizontal_sums(sums));
    }
}

/* Queries at..at + count of one KV head, numbered row by row; q and y point at its first head. */
TARGET static void attend(struct tile *tile, const uint16_t *q, const uint16_t *k,
                          const uint16_t *v, uint16_t *y, const int64_t *seen,
                          const float *row_weights, float *key_scores, ptrdiff_t at,
                          ptrdiff_t count, ptrdiff_t group, ptrdiff_t d, ptrdiff_t q_stride,
                          ptrdiff_t y_stride)
{
    int32_t least = INT32_MAX, most = 0;
    for (ptrdiff_t i = 0; i < QUERIES; i++) {
        ptrdiff_t query = at + (i < count ? i : count - 1); /* spare lanes repeat the last query */
        const uint16_t *row = q + query / group * q_stride + query % group * d;
        if (tile->bf16_dot)
            bf16_load_query(tile, i, row, d);
        else
            fp32_load_query(tile, i, row, d);
        tile->seen[i] = (int32_t)seen[query / group];
        tile->highest[i] = UNSEEN;
        tile->total[i] = 0.0f;
        least = tile->seen[i] < least ? tile->seen[i] : least;
        most = tile->seen[i] > most ? tile->seen[i] : most;
    }
    memset(tile->sums, 0, (size_t)(QUERIES * d) * sizeof(float));
    for (ptrdiff_t first = 0; first < most; first += KEYS) {
        ptrdiff_t keys = most - first < KEYS ? most - first : KEYS;
        block(tile, k, v, first, keys, d, first + keys > least);
    }
    for (ptrdiff_t i = 0; i < count; i++) {
        uint16_t *out = y + (at + i) / group * y_stride + (at + i) % group * d;
        __m512 share = _mm512_set1_ps(1.0f / tile->total[i]);
        for (ptrdiff_t c = 0; c < d; c += LANES) {
            const float *sum = tile->sums + i * d + c;
            __m512i low = round_to_bf16(_mm512_mul_ps(share, _mm512_loadu_ps(sum)));
            __m512i high = round_to_bf16(_mm512_mul_ps(share, _mm512_loadu_ps(sum + LANES / 2)));
            high = _mm512_and_si512(high, _mm512_set1_epi32((int)0xffff0000));
            _mm512_storeu_si512(out + c, _mm512_or_si512(high, _mm512_srli_epi32(low, 16)));
        }
    }
    for (ptrdiff_t i = 0; key_scores && i < QUERIES; i++) /* spare lanes must not count */
        tile->share[i] = i < count ? row_weights[(at + i) / group] / tile->total[i] : 0.0f;
    for (ptrdiff_t first = 0; key_scores && first < most; first += KEYS) {
        ptrdiff_t keys = most - first < KEYS ? most - first : KEYS;
        add_key_scores(tile, key_scores, first, keys);
    }
}

/* seen [m]: how many of the first keys a row sees, at least 1. scale > 0. Strides are in values:
 * between q's rows, and between the KV heads of k and v; y [m, heads, d] is contiguous. scratch:
 * `room` floats per thread, (2 * QUERIES + 2 * KEYS) * d + KEYS * QUERIES, and with key_scores
 * (n + n / KEYS + 1) * QUERIES more. key_scores: NULL, or [heads / group, tiles, n] zeros, whose
 * first n become the sums over all queries of their weights times row_weights [m]. */
TARGET void prefill_attention(const uint16_t *q, const uint16_t *k, const uint16_t *v,
                                     uint16_t *y, const int64_t *seen, const float *row_weights,
                                     float *key_scores, float *scratch, ptrdiff_t m, ptrdiff_t n,
                                     ptrdiff_t heads, ptrdiff_t group, ptrdiff_t d,
                                     ptrdiff_t q_stride, ptrdiff_t k_stride, ptrdiff_t v_stride,
                                     float scale, ptrdiff_t room, int bf16_dot, int threads)
{
    ptrdiff_t query_count = m * group, tiles = (query_count + QUERIES - 1) / QUERIES, next = 0;
    _Pragma("omp parallel for schedule(static) num_threads(threads) if (threads > 1)")
    for (int part = 0; part < threads; part++) {
        struct tile tile;
        tile.bf16_dot = bf16_dot;
        tile.scale = scale * 1.44269504f; /* in base 2 */
        tile.queries = scratch + part * room;
        tile.sums = tile.queries + QUERIES * d;
        tile.keys = tile.sums + QUERIES * d;
        tile.values = tile.keys + KEYS * d;
        tile.scores = tile.values + KEYS * d;
        tile.all_weights = key_scores ? tile.scores + KEYS * QUERIES : NULL;
        tile.block_highest = key_scores ? tile.all_weights + n * QUERIES : NULL;
        for (;;) {
            /* A thread that is done takes the next tile. The last rows see the most keys and take
             * longest, so they come first. */
            ptrdiff_t taken = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED);
            if (taken >= tiles * (heads / group))
                break;
            ptrdiff_t kv = taken % (heads / group), index = tiles - 1 - taken / (heads / group);
            ptrdiff_t at = index * QUERIES;
            ptrdiff_t count = query_count - at < QUERIES ? query_count - at : QUERIES;
            attend(&tile, q + kv * group * d, k + kv * k_stride, v + kv * v_stride,
                   y + kv * group * d, seen, row_weights,
                   key_scores ? key_scores + (kv * tiles + index) * n : NULL, at, count, group, d,
                   q_stride, heads * d);
        }
    }
    for (ptrdiff_t tile = 1; key_scores && tile < tiles * (heads / group); tile++)
        for (ptrdiff_t i = 0; i < n; i++)
            key_scores[i] += key_scores[tile * n + i];
}
