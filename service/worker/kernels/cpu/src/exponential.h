/* The exponential function of a softmax, and silu, in AVX-512 registers. */
#ifndef KVSTITCH_EXPONENTIAL_H
#define KVSTITCH_EXPONENTIAL_H

#include "bfloat16.h"

/* 2^x for x <= 0, with an error of at most 2e-7; 0 for x below -150. */
TARGET INLINE __m512 exp2_of(__m512 x)
{
    x = _mm512_max_ps(_mm512_set1_ps(-160.0f), x); /* keeps NaN */
    __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 f = _mm512_sub_ps(x, whole);
    __m512 y = _mm512_set1_ps(1.5403530e-4f);
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(1.3333558e-3f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(9.6181291e-3f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(5.5504109e-2f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(2.4022651e-1f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(6.9314718e-1f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(y, whole);
}

/* x / (1 + e^-x) */
TARGET INLINE __m512 silu(__m512 x)
{
    const __m512 one = _mm512_set1_ps(1.0f);
    __m512 least = _mm512_min_ps(x, _mm512_sub_ps(_mm512_setzero_ps(), x));
    __m512 e = exp2_of(_mm512_mul_ps(least, _mm512_set1_ps(1.44269504f)));
    __mmask16 negative = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ);
    return _mm512_div_ps(_mm512_mul_ps(x, _mm512_mask_mov_ps(one, negative, e)),
                         _mm512_add_ps(one, e));
}

#endif
