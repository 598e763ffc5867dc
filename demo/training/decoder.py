"""A Llama-architecture decoder in plain torch, written for training speed on a CPU.

Parameters, names and arithmetic are those of `transformers.LlamaForCausalLM` with tied embeddings;
`tests/demo` compares the two. It takes any additive mask and any positions.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

EMBEDDING_STD = 0.25
FINAL_GAIN = 0.1


@dataclass(frozen=True)
class DecoderConfig:
    """Sizes of the model, in Hugging Face's names."""

    vocab_size: int = 1536
    hidden_size: int = 256
    intermediate_size: int = 384
    num_hidden_layers: int = 12
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5
    max_position_embeddings: int = 1024

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


class Attention(nn.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.heads = config.num_attention_heads
        self.kv_heads = config.num_key_value_heads
        self.head_dim = config.head_dim
        width = config.hidden_size
        self.q_proj = nn.Linear(width, self.heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(width, self.kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(width, self.kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head_dim, width, bias=False)

    def forward(self, x: Tensor, mask: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        rows, tokens, _ = x.shape
        group = self.heads // self.kv_heads
        q = self.q_proj(x).view(rows, tokens, self.heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(rows, tokens, self.kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(rows, tokens, self.kv_heads, self.head_dim).transpose(1, 2)
        q = rotate(q, cos, sin)
        k = rotate(k, cos, sin).repeat_interleave(group, dim=1)
        v = v.repeat_interleave(group, dim=1)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.o_proj(out.transpose(1, 2).reshape(rows, tokens, -1))  # type: ignore[no-any-return]


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]


class Block(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, mask: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), mask, cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """Embedding, blocks and final norm; the output head is the transposed embedding."""

    def __init__(self, config: DecoderConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self._initialise(torch.Generator().manual_seed(seed))

    @torch.no_grad()
    def _initialise(self, generator: torch.Generator) -> None:
        """Draws the parameters.

        Embeddings are large compared with what the blocks add, so that a word can be recognised in
        every layer. The small gain of the final norm still keeps the logits small.
        """
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.02, generator=generator)
        nn.init.normal_(self.embed_tokens.weight, std=EMBEDDING_STD, generator=generator)
        nn.init.constant_(self.norm.weight, FINAL_GAIN)

    def forward(
        self, ids: Tensor, positions: Tensor, mask: Tensor, streams: list[Tensor] | None = None
    ) -> Tensor:
        """Computes the final hidden states.

        Args:
            ids: `[rows, tokens]`.
            positions: `[rows, tokens]`.
            mask: Added to the attention scores, `[rows, 1, tokens, tokens]`.
            streams: The input of every layer, `[rows, tokens, hidden]`, is appended to it.

        Returns:
            `[rows, tokens, hidden]`.
        """
        x = self.embed_tokens(ids)
        cos, sin = rotary(positions, self.config, x.dtype)
        for layer in self.layers:
            if streams is not None:
                streams.append(x)
            x = layer(x, mask, cos, sin)
        return self.norm(x)  # type: ignore[no-any-return]

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits `[..., vocabulary]` of hidden states `[..., hidden]`."""
        return hidden @ self.embed_tokens.weight.T


def rotary(positions: Tensor, config: DecoderConfig, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine `[rows, 1, tokens, head_dim]`; both halves are the same, as in Llama."""
    device = positions.device
    half = torch.arange(0, config.head_dim, 2, dtype=torch.float32, device=device) / config.head_dim
    angles = positions[:, None, :, None].float() * (1.0 / config.rope_theta**half)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin
