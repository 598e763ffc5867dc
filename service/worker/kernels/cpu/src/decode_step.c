/* Tokens of one or several sequences through a whole decoder, all layers in one call.
 *
 * A step of a small model is thousands of operations of some microseconds. Called one by one, the
 * calls and the waking of threads take longer than the weights take to read. Here the threads are
 * woken once, share every operation, and wait for one another in between.
 *
 * The decoder is pre-norm with a gated MLP (silu), as in `service.worker.model.adapters`. Hidden
 * states are rounded to bfloat16 where these adapters round, products and sums are fp32. A
 * sequence's result does not depend on the other sequences nor on the number of threads. Threads
 * are those of the OpenMP library that torch has loaded.
 */
#include "own_cores.h" /* first: it decides what system headers declare */

#include "few_rows.h"
#include "kernels.h"
#include "norm_row.h"
#include "one_query_attention.h"
#include "rotate_row.h"
#include "work.h"

#include <omp.h>
#include <stdlib.h>

#define SHARED 5 /* operations of a layer that threads take parts of */

struct decoder {
    const struct layer *layers;
    const uint16_t *norm;
    struct weight head;
    const float *cosine, *sine; /* [positions, d / 2] */
    ptrdiff_t depth, hidden, heads, kv_heads, d, inner, vocabulary;
};

/* Hidden states of all rows between operations. */
struct step {
    const struct decoder *decoder;
    const int64_t *positions, *runs; /* [rows]; [depth, 2, rows * kv_heads]: starts, lengths */
    uint16_t *x, *normed, *qkv, *attended, *added, *gate_up, *inner, *logits;
    ptrdiff_t rows, *taken; /* taken [depth * SHARED + 1] */
    float eps, scale;
    struct barrier barrier;
};

/* What a thread has for itself; wide is NULL where bfloat16 dot products are used. */
struct thread {
    int number, threads;
    float *wide, *carried;
};

/* A weight [outs, columns] times all rows of x. */
TARGET static void multiply(struct step *s, const struct thread *t, const uint16_t *x,
                            const struct weight *w, uint16_t *y, ptrdiff_t outs,
                            ptrdiff_t columns, ptrdiff_t *taken)
{
    struct product p = {w, columns, columns * w->bits / 8, outs};
    ptrdiff_t strips = (outs + STRIP - 1) / STRIP, first, end;
    if (t->wide)
        widen(x, t->wide, s->rows * columns, w->bits);
    while (next_run(taken, strips, t->threads, &first, &end))
        for (ptrdiff_t n = first * STRIP; first < end; first++, n += STRIP)
            few_rows_strip(&p, x, t->wide, y, t->carried, s->rows, n,
                           n + STRIP < outs ? n + STRIP : outs);
}

/* silu(gate · x) * (up · x), strip by strip. */
TARGET static void gate_and_up(struct step *s, const struct thread *t, const struct layer *layer,
                               ptrdiff_t *taken)
{
    ptrdiff_t inner = s->decoder->inner, columns = s->decoder->hidden, first, end;
    const struct weight *w = &layer->gate_up;
    struct product p = {w, columns, columns * w->bits / 8, 2 * inner};
    if (t->wide)
        widen(s->normed, t->wide, s->rows * columns, w->bits);
    while (next_run(taken, inner / STRIP, t->threads, &first, &end)) {
        for (ptrdiff_t n = first * STRIP; n < end * STRIP; n += STRIP)
            few_rows_strip(&p, s->normed, t->wide, s->gate_up, t->carried, s->rows, n, n + STRIP);
        for (ptrdiff_t n = inner + first * STRIP; n < inner + end * STRIP; n += STRIP)
            few_rows_strip(&p, s->normed, t->wide, s->gate_up, t->carried, s->rows, n, n + STRIP);
        for (ptrdiff_t row = 0; row < s->rows; row++)
            for (ptrdiff_t n = first * STRIP; n < end * STRIP; n += LANES / 2) {
                const uint16_t *gate = s->gate_up + row * 2 * inner + n;
                __m512 gated = _mm512_mul_ps(silu(load_fp32(gate)), load_fp32(gate + inner));
                store_bf16(s->inner + row * inner + n, round_to_bf16(gated));
            }
    }
}

/* Adds `added` (or NULL) to the hidden states, and norms them. */
TARGET static void add_and_norm(struct step *s, const struct thread *t, const uint16_t *added,
                                const uint16_t *weight)
{
    ptrdiff_t hidden = s->decoder->hidden;
    for (ptrdiff_t row = t->number; row < s->rows; row += t->threads)
        norm_row(s->x + row * hidden, added ? added + row * hidden : NULL, weight,
                 s->x + row * hidden, s->normed + row * hidden, hidden, s->eps);
}

/* One KV head of one row. `attending` 0: its new key and value go to the pool. 1: its queries attend
 * to the run, which may hold keys of other rows of this step. */
TARGET static void run_head(struct step *s, const struct layer *layer, const int64_t *runs,
                            ptrdiff_t run, int attending)
{
    const struct decoder *m = s->decoder;
    ptrdiff_t d = m->d, group = m->heads / m->kv_heads, row = run / m->kv_heads;
    ptrdiff_t head = run % m->kv_heads, start = runs[run];
    ptrdiff_t length = runs[s->rows * m->kv_heads + run], last = (start + length - 1) * d;
    uint16_t *rows = s->qkv + row * (m->heads + 2 * m->kv_heads) * d;
    uint16_t *q = rows + head * group * d, *k = rows + (m->heads + head) * d;
    const uint16_t *v = k + m->kv_heads * d;
    const float *cosine = m->cosine + s->positions[row] * (d / 2);
    const float *sine = m->sine + s->positions[row] * (d / 2);
    if (!attending) {
        if (layer->k_norm)
            norm_row(k, NULL, layer->k_norm, NULL, k, d, s->eps);
        rotate_row(k, layer->k + last, cosine, sine, 1, d / 2, d, d);
        memcpy(layer->v + last, v, (size_t)d * sizeof *v);
        return;
    }
    for (ptrdiff_t i = 0; layer->q_norm && i < group; i++)
        norm_row(q + i * d, NULL, layer->q_norm, NULL, q + i * d, d, s->eps);
    rotate_row(q, q, cosine, sine, group, d / 2, d, d);
    attend(q, layer->k + start * d, layer->v + start * d,
           s->attended + (row * m->heads + head * group) * d, length, group, d, s->scale);
}

TARGET static void run_layer(struct step *s, const struct thread *t, ptrdiff_t number)
{
    const struct decoder *m = s->decoder;
    const struct layer *layer = m->layers + number;
    ptrdiff_t *taken = s->taken + number * SHARED, runs = s->rows * m->kv_heads;
    ptrdiff_t width = m->heads * m->d, first, end;
    add_and_norm(s, t, number ? s->added : NULL, layer->norm);
    wait_for_all(&s->barrier, t->threads);
    multiply(s, t, s->normed, &layer->qkv, s->qkv, width + 2 * m->kv_heads * m->d, m->hidden,
             taken);
    wait_for_all(&s->barrier, t->threads);
    for (ptrdiff_t run = t->number; run < runs; run += t->threads)
        run_head(s, layer, s->runs + number * 2 * runs, run, 0);
    wait_for_all(&s->barrier, t->threads);
    while (next_run(taken + 1, runs, t->threads, &first, &end))
        for (; first < end; first++)
            run_head(s, layer, s->runs + number * 2 * runs, first, 1);
    wait_for_all(&s->barrier, t->threads);
    multiply(s, t, s->attended, &layer->o, s->added, m->hidden, width, taken + 2);
    wait_for_all(&s->barrier, t->threads);
    add_and_norm(s, t, s->added, layer->mlp_norm);
    wait_for_all(&s->barrier, t->threads);
    gate_and_up(s, t, layer, taken + 3);
    wait_for_all(&s->barrier, t->threads);
    multiply(s, t, s->inner, &layer->down, s->added, m->hidden, m->inner, taken + 4);
    wait_for_all(&s->barrier, t->threads);
}

TARGET static void run_all(struct step *s, const struct thread *t)
{
    const struct decoder *m = s->decoder;
    for (ptrdiff_t layer = 0; layer < m->depth; layer++)
        run_layer(s, t, layer);
    add_and_norm(s, t, s->added, m->norm);
    wait_for_all(&s->barrier, t->threads);
    multiply(s, t, s->normed, &m->head, s->logits, m->vocabulary, m->hidden,
             s->taken + m->depth * SHARED);
}

/* x [rows, hidden] are the tokens' embeddings, and are overwritten; logits [rows, vocabulary]. Every
 * run includes the row of the new token. hidden, inner and d are multiples of STRIP. Returns 0, or
 * -1 where there is no memory. */
TARGET int decode_step(const struct decoder *m, uint16_t *x, const int64_t *positions,
                       const int64_t *runs, uint16_t *logits, ptrdiff_t rows, float eps,
                       float scale, int bf16_dot, int threads)
{
    ptrdiff_t width = m->heads * m->d, most = m->inner > width ? m->inner : width;
    most = m->hidden > most ? m->hidden : most;
    ptrdiff_t values = 2 * m->hidden + 2 * width + 2 * m->kv_heads * m->d + 3 * m->inner;
    ptrdiff_t own = rows * ((bf16_dot ? 0 : most) + STRIP * LANES / 2), parts = m->depth * SHARED + 1;
    size_t bytes = (size_t)(rows * values) * sizeof *x + (size_t)(threads * own) * sizeof(float) +
                   (size_t)parts * sizeof *runs + (size_t)(7 + 2 * threads) * 64;
    char *memory = aligned_alloc(64, (bytes + 63) / 64 * 64), *rest = memory;
    if (!memory)
        return -1;
    struct step s = {.decoder = m, .positions = positions, .runs = runs, .x = x, .logits = logits,
                     .rows = rows, .eps = eps, .scale = scale};
    s.taken = cut(&rest, parts, sizeof *s.taken);
    memset(s.taken, 0, (size_t)parts * sizeof *s.taken);
    s.normed = cut(&rest, rows * m->hidden, sizeof *x);
    s.added = cut(&rest, rows * m->hidden, sizeof *x);
    s.attended = cut(&rest, rows * width, sizeof *x);
    s.qkv = cut(&rest, rows * (width + 2 * m->kv_heads * m->d), sizeof *x);
    s.gate_up = cut(&rest, rows * 2 * m->inner, sizeof *x);
    s.inner = cut(&rest, rows * m->inner, sizeof *x);
    float *for_threads = cut(&rest, threads * own, sizeof *for_threads);
    cpu_set_t cores;
    int apart = as_many_cores(&cores, threads);
    _Pragma("omp parallel num_threads(threads) if (threads > 1)")
    {
        if (apart)
            take_core(&cores, omp_get_thread_num());
        float *mine = for_threads + omp_get_thread_num() * own;
        float *wide = bf16_dot ? NULL : mine + rows * STRIP * LANES / 2;
        struct thread t = {omp_get_thread_num(), omp_get_num_threads(), wide, mine};
        run_all(&s, &t);
    }
    if (apart)
        leave_core(&cores);
    free(memory);
    return 0;
}
