/* bfloat16 in AVX-512 registers. What all kernels share. */
#ifndef KVSTITCH_BFLOAT16_H
#define KVSTITCH_BFLOAT16_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define LANES 32 /* bfloat16 per register */
#define TARGET __attribute__((target("avx512f")))
#define TARGET_BF16 __attribute__((target("avx512f,avx512bf16")))
#define INLINE static inline __attribute__((always_inline))

/* With an explicit rounding mode a compiler does not fuse a product and a sum. */
#define UNFUSED _MM_FROUND_CUR_DIRECTION

INLINE float to_fp32(uint16_t value)
{
    uint32_t bits = (uint32_t)value << 16;
    float wide;
    memcpy(&wide, &bits, sizeof wide);
    return wide;
}

/* Two neighbouring bfloat16 as one number, for bfloat16 dot products. */
INLINE int32_t pair_at(const void *at)
{
    int32_t pair;
    memcpy(&pair, at, sizeof pair);
    return pair;
}

/* The 16 bfloat16 at even places of a register, in fp32. */
TARGET INLINE __m512 even_to_fp32(__m512i packed)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(packed, 16));
}

/* The 16 bfloat16 at odd places of a register, in fp32. */
TARGET INLINE __m512 odd_to_fp32(__m512i packed)
{
    return _mm512_castsi512_ps(_mm512_and_si512(packed, _mm512_set1_epi32((int)0xffff0000)));
}

/* Sum over the lanes of each of 16 registers; all are added up in the same order. */
TARGET INLINE __m512 horizontal_sums(const __m512 *v)
{
    __m512 pair[8], four[4], eight[2];
    for (int i = 0; i < 8; i++)
        pair[i] = _mm512_add_ps(_mm512_unpacklo_ps(v[2 * i], v[2 * i + 1]),
                                _mm512_unpackhi_ps(v[2 * i], v[2 * i + 1]));
    for (int i = 0; i < 4; i++) {
        __m512d a = _mm512_castps_pd(pair[2 * i]), b = _mm512_castps_pd(pair[2 * i + 1]);
        four[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)),
                                _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
    for (int i = 0; i < 2; i++)
        eight[i] = _mm512_add_ps(_mm512_shuffle_f32x4(four[2 * i], four[2 * i + 1], 0x88),
                                 _mm512_shuffle_f32x4(four[2 * i], four[2 * i + 1], 0xdd));
    return _mm512_add_ps(_mm512_shuffle_f32x4(eight[0], eight[1], 0x88),
                         _mm512_shuffle_f32x4(eight[0], eight[1], 0xdd));
}

/* Rounds to bfloat16, ties to even; NaN stays NaN. The results are the upper halves of the lanes.
 */
TARGET INLINE __m512i round_to_bf16(__m512 value)
{
    __m512i bits = _mm512_castps_si512(value), one = _mm512_set1_epi32(1);
    __m512i tie = _mm512_and_si512(_mm512_srli_epi32(bits, 16), one);
    __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(tie, _mm512_set1_epi32(0x7fff)));
    __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    return _mm512_mask_mov_epi32(up, nan, _mm512_set1_epi32(0x7fc00000));
}

/* 16 consecutive bfloat16 of memory, in fp32. */
TARGET INLINE __m512 load_fp32(const uint16_t *x)
{
    __m256i packed = _mm256_loadu_si256((const __m256i *)x);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(packed), 16));
}

/* Writes the upper halves of the 16 lanes, as `round_to_bf16` leaves them. */
TARGET INLINE void store_bf16(uint16_t *y, __m512i bits)
{
    _mm256_storeu_si256((__m256i *)y, _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16)));
}

/* sum = x + added, of so many values, a multiple of LANES / 2. */
TARGET INLINE void add_row(const uint16_t *x, const uint16_t *added, uint16_t *sum, ptrdiff_t width)
{
    for (ptrdiff_t c = 0; c < width; c += LANES / 2)
        store_bf16(sum + c, round_to_bf16(_mm512_add_ps(load_fp32(x + c), load_fp32(added + c))));
}

#endif
