/* Attention of many rows of a prompt, each of which sees the first keys up to a number of its own.
 *
 * q [m, heads, d], k and v [kv_heads, n, d], bfloat16; scores, softmax and sums in fp32, the result
 * rounded once. A tile of queries of one KV head lies transposed, a query to a lane: scores come out
 * with a key to a row, so that a softmax is one operation for sixteen queries and never adds up
 * within a register. A query's result does not depend on the number of threads.
 *
 * On request it also adds up, by key, what the queries look at: the keys are scored a second time,
 * when the sums of all softmaxes are known, so that no weight is written to memory.
 */
#include "bfloat16.h"
#include "exponential.h"

#include <stddef.h>

#define QUERIES 48 /* of a tile: three registers */
#define KEYS 96    /* of a block */
#define SCORED 8   /* keys scored at once: 24 registers of sums */
#define WEIGHED 6  /* queries whose values are summed at once, by four registers of columns */
#define UNSEEN -1e30f

int prefill_attention_supported(void) { return __builtin_cpu_supports("avx512f") != 0; }

/* What a tile needs beside its input. */
struct tile {
    float *asked;  /* [d, QUERIES], columns in the order that `widen` gives */
    float *keys;   /* [KEYS, d] */
    float *values; /* [KEYS, d] */
    float *scores; /* [KEYS, QUERIES] */
    float *sums;   /* [QUERIES, d] */
    float highest[QUERIES], total[QUERIES], fade[QUERIES], share[QUERIES];
    int32_t seen[QUERIES];
};

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

TARGET INLINE void score(const float *asked, const float *keys, float *scores, ptrdiff_t d)
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

/* Scores of keys first.. of sixteen queries become weights. Returns whether earlier sums fade. */
TARGET INLINE int soften(struct tile *tile, int lane, ptrdiff_t first, ptrdiff_t count, int hide)
{
    float *scores = tile->scores + lane;
    __m512 before = _mm512_loadu_ps(tile->highest + lane), most = before;
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
    __m512 fade = exp2_of(_mm512_sub_ps(before, most));
    __m512 total = _mm512_mul_ps(fade, _mm512_loadu_ps(tile->total + lane));
    for (ptrdiff_t i = 0; i < count; i++) {
        __m512 weight = exp2_of(_mm512_sub_ps(_mm512_loadu_ps(scores + i * QUERIES), most));
        _mm512_storeu_ps(scores + i * QUERIES, weight);
        total = _mm512_add_ps(total, weight);
    }
    _mm512_storeu_ps(tile->highest + lane, most);
    _mm512_storeu_ps(tile->total + lane, total);
    _mm512_storeu_ps(tile->fade + lane, fade);
    return _mm512_cmp_ps_mask(fade, _mm512_set1_ps(1.0f), _CMP_NEQ_UQ) != 0;
}

/* Adds weighted values to the sums of WEIGHED queries, `columns` of them. */
TARGET INLINE void weigh(const float *weights, const float *values, float *sums, ptrdiff_t count,
                         ptrdiff_t d, int columns)
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

/* Keys first..first + count of every query of the tile. */
TARGET static void block(struct tile *tile, ptrdiff_t first, ptrdiff_t count, ptrdiff_t d, int hide)
{
    for (ptrdiff_t i = 0; i < count; i += SCORED)
        score(tile->asked, tile->keys + i * d, tile->scores + i * QUERIES, d);
    int fades = 0;
    for (int lane = 0; lane < QUERIES; lane += 16)
        fades |= soften(tile, lane, first, count, hide);
    for (int i = 0; fades && i < QUERIES; i++)
        for (ptrdiff_t c = 0; c < d; c += 16) {
            __m512 sum = _mm512_loadu_ps(tile->sums + i * d + c);
            sum = _mm512_mul_ps(sum, _mm512_set1_ps(tile->fade[i]));
            _mm512_storeu_ps(tile->sums + i * d + c, sum);
        }
    for (int i = 0; i < QUERIES; i += WEIGHED) {
        ptrdiff_t c = 0;
        for (; c + 64 <= d; c += 64)
            weigh(tile->scores + i, tile->values + c, tile->sums + i * d + c, count, d, 64);
        if (c < d)
            weigh(tile->scores + i, tile->values + c, tile->sums + i * d + c, count, d, 32);
    }
}

/* Scores of keys first..first + count, added up by key as weights, each query's times its share. */
TARGET static void add_up(struct tile *tile, float *told, ptrdiff_t first, ptrdiff_t count)
{
    for (ptrdiff_t i = 0; i < count; i += 16) {
        ptrdiff_t keys = count - i < 16 ? count - i : 16;
        __m512 sums[16];
        for (ptrdiff_t key = 0; key < 16; key++) {
            sums[key] = _mm512_setzero_ps();
            for (int lane = 0; key < keys && lane < QUERIES; lane += 16) {
                const float *scores = tile->scores + (i + key) * QUERIES + lane;
                __m512 highest = _mm512_loadu_ps(tile->highest + lane);
                __mmask16 visible =
                    _mm512_cmpgt_epi32_mask(_mm512_loadu_si512(tile->seen + lane),
                                            _mm512_set1_epi32((int)(first + i + key)));
                __m512 weight = exp2_of(_mm512_sub_ps(_mm512_loadu_ps(scores), highest));
                sums[key] = _mm512_mask3_fmadd_ps(weight, _mm512_loadu_ps(tile->share + lane),
                                                  sums[key], visible);
            }
        }
        _mm512_mask_storeu_ps(told + first + i, (__mmask16)((1u << keys) - 1), added_up(sums));
    }
}

/* Queries at..at + count of one KV head, counted row by row; q and y point at its first head. */
TARGET static void attend(struct tile *tile, const uint16_t *q, const uint16_t *k,
                          const uint16_t *v, uint16_t *y, const int64_t *seen, const float *share,
                          float *told, ptrdiff_t at, ptrdiff_t count, ptrdiff_t group, ptrdiff_t d,
                          ptrdiff_t q_stride, ptrdiff_t y_stride, float scale)
{
    int32_t least = INT32_MAX, most = 0;
    for (ptrdiff_t i = 0; i < QUERIES; i++) {
        ptrdiff_t query = at + (i < count ? i : count - 1); /* lanes without one repeat the last */
        const uint16_t *row = q + query / group * q_stride + query % group * d;
        for (ptrdiff_t c = 0; c < d; c += LANES)
            for (int j = 0; j < LANES / 2; j++) {
                tile->asked[(c + j) * QUERIES + i] = widened(row[c + 2 * j]) * scale;
                tile->asked[(c + LANES / 2 + j) * QUERIES + i] =
                    widened(row[c + 2 * j + 1]) * scale;
            }
        tile->seen[i] = (int32_t)seen[query / group];
        tile->highest[i] = UNSEEN;
        tile->total[i] = 0.0f;
        least = tile->seen[i] < least ? tile->seen[i] : least;
        most = tile->seen[i] > most ? tile->seen[i] : most;
    }
    memset(tile->sums, 0, (size_t)(QUERIES * d) * sizeof(float));
    for (ptrdiff_t first = 0; first < most; first += KEYS) {
        ptrdiff_t keys = most - first < KEYS ? most - first : KEYS;
        widen(k + first * d, tile->keys, keys, d);
        widen(v + first * d, tile->values, keys, d);
        block(tile, first, keys, d, first + keys > least);
    }
    for (ptrdiff_t i = 0; i < count; i++) {
        uint16_t *out = y + (at + i) / group * y_stride + (at + i) % group * d;
        __m512 share = _mm512_set1_ps(1.0f / tile->total[i]);
        for (ptrdiff_t c = 0; c < d; c += LANES) {
            const float *sum = tile->sums + i * d + c;
            __m512i low = rounded(_mm512_mul_ps(share, _mm512_loadu_ps(sum)));
            __m512i high = rounded(_mm512_mul_ps(share, _mm512_loadu_ps(sum + LANES / 2)));
            high = _mm512_and_si512(high, _mm512_set1_epi32((int)0xffff0000));
            _mm512_storeu_si512(out + c, _mm512_or_si512(high, _mm512_srli_epi32(low, 16)));
        }
    }
    for (ptrdiff_t i = 0; told && i < QUERIES; i++) /* lanes without a query tell nothing */
        tile->share[i] = i < count ? share[(at + i) / group] / tile->total[i] : 0.0f;
    for (ptrdiff_t first = 0; told && first < most; first += KEYS) {
        ptrdiff_t keys = most - first < KEYS ? most - first : KEYS;
        widen(k + first * d, tile->keys, keys, d);
        for (ptrdiff_t i = 0; i < keys; i += SCORED)
            score(tile->asked, tile->keys + i * d, tile->scores + i * QUERIES, d);
        add_up(tile, told, first, keys);
    }
}

/* seen [m]: how many keys a row sees, at least 1. Strides in values: of q's rows, of k's and v's KV
 * heads; y [m, heads, d] is contiguous. scratch: (2 * QUERIES + 2 * KEYS) * d + KEYS * QUERIES
 * floats per thread. told may be NULL, else [heads / group, tiles, n] zeros: what every tile of
 * queries looks at, a row of share [m] as much as that. */
TARGET void prefill_attention(const uint16_t *q, const uint16_t *k, const uint16_t *v, uint16_t *y,
                              const int64_t *seen, const float *share, float *told, float *scratch,
                              ptrdiff_t m, ptrdiff_t n, ptrdiff_t heads, ptrdiff_t group,
                              ptrdiff_t d, ptrdiff_t q_stride, ptrdiff_t k_stride,
                              ptrdiff_t v_stride, float scale, int threads)
{
    ptrdiff_t queries = m * group, tiles = (queries + QUERIES - 1) / QUERIES;
    ptrdiff_t room = (2 * QUERIES + 2 * KEYS) * d + KEYS * QUERIES, next = 0;
    _Pragma("omp parallel for schedule(static) num_threads(threads) if (threads > 1)")
    for (int part = 0; part < threads; part++) {
        struct tile tile;
        tile.asked = scratch + part * room;
        tile.sums = tile.asked + QUERIES * d;
        tile.keys = tile.sums + QUERIES * d;
        tile.values = tile.keys + KEYS * d;
        tile.scores = tile.values + KEYS * d;
        for (;;) {
            /* Whoever is done takes the next; the last rows see most, and come first. */
            ptrdiff_t taken = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED);
            if (taken >= tiles * (heads / group))
                break;
            ptrdiff_t kv = taken % (heads / group), index = tiles - 1 - taken / (heads / group);
            ptrdiff_t at = index * QUERIES;
            ptrdiff_t count = queries - at < QUERIES ? queries - at : QUERIES;
            attend(&tile, q + kv * group * d, k + kv * k_stride, v + kv * v_stride,
                   y + kv * group * d, seen, share, told ? told + (kv * tiles + index) * n : NULL,
                   at, count, group, d, q_stride, heads * d, scale * 1.44269504f);
        }
    }
}
