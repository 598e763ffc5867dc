/* A layer of a chunk that is stored in 8 bits, as `codecs.py` of the KV store says, to bfloat16.
 * One pass and no tensors in between: decoding a prompt's chunks in torch took a quarter of a small
 * model's first token. */
#include "bfloat16.h"
#include "kernels.h"

/* Where layer 0 of a chunk [tokens, heads, d] lies, and how many bytes a layer has. Keys: unsigned
 * codes, k_scale and k_least bfloat16 for every `group` tokens [.., heads, d]; or, without k_least,
 * as values: signed codes, with a float16 scale for each token and head. */
struct stored_chunk {
    const uint8_t *k, *v, *k_scale, *v_scale, *k_least;
    ptrdiff_t layer_bytes, tokens, heads, d, group;
};

TARGET static void scale_heads(const uint8_t *codes, const uint8_t *scales, uint16_t *y,
                               ptrdiff_t heads, ptrdiff_t d)
{
    for (ptrdiff_t head = 0; head < heads; head++) {
        int16_t bits;
        memcpy(&bits, scales + 2 * head, sizeof bits);
        const __m512 scale = _mm512_cvtph_ps(_mm256_set1_epi16(bits));
        for (ptrdiff_t c = head * d; c < head * d + d; c += LANES / 2) {
            __m512i code = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(codes + c)));
            store_bf16(y + c, round_to_bf16(_mm512_mul_ps(_mm512_cvtepi32_ps(code), scale)));
        }
    }
}

/* k, v [tokens, heads, d]; d is a multiple of LANES / 2. */
TARGET void decode_stored_layer(const struct stored_chunk *chunk, ptrdiff_t layer, uint16_t *k,
                                uint16_t *v)
{
    const struct stored_chunk s = *chunk;
    const ptrdiff_t width = s.heads * s.d, from = layer * s.layer_bytes;
    if (!s.k_least)
        scale_heads(s.k + from, s.k_scale + from, k, s.tokens * s.heads, s.d);
    for (ptrdiff_t at = 0; s.k_least && at < s.tokens * width; at += width) {
        const ptrdiff_t group = at / width / s.group * width;
        const uint16_t *scale = (const uint16_t *)(s.k_scale + from) + group;
        const uint16_t *least = (const uint16_t *)(s.k_least + from) + group;
        for (ptrdiff_t c = 0; c < width; c += LANES / 2) {
            const __m128i *codes = (const __m128i *)(s.k + from + at + c);
            __m512 code = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(codes)));
            __m512 sum = _mm512_add_ps(_mm512_mul_ps(code, load_fp32(scale + c)),
                                       load_fp32(least + c)); /* the product is exact */
            store_bf16(k + at + c, round_to_bf16(sum));
        }
    }
    scale_heads(s.v + from, s.v_scale + from, v, s.tokens * s.heads, s.d);
}
