"""Which models are served, and why others are not. Importable without torch, for the CLI's checks.

A `model_type` that is in neither table is only unknown: the sentence then says which are served.
"""

from __future__ import annotations

from typing import Any

FAMILIES = {
    "cohere": "dense.Cohere",
    "cohere2": "dense.Cohere2",
    "deepseek_v2": "latent.DeepseekV2",
    "deepseek_v3": "latent.DeepseekV3",
    "gemma": "dense.Gemma",
    "gemma2": "dense.Gemma2",
    "gemma3_text": "dense.Gemma3",
    "gemma4_text": "gemma4.Gemma4",
    "glm4_moe_lite": "latent.Glm4MoeLite",
    "gpt_oss": "experts.GptOss",
    "granite": "dense.Granite",
    "granitemoehybrid": "mamba.GraniteMoeHybrid",
    "lfm2": "convolutional.Lfm2",
    "lfm2_moe": "convolutional.Lfm2Moe",
    "llama": "dense.Llama",
    "ministral": "dense.Ministral",
    "mistral": "dense.Mistral",
    "mixtral": "experts.Mixtral",
    "nemotron_h": "mamba.NemotronH",
    "olmo2": "dense.Olmo2",
    "olmo3": "dense.Olmo3",
    "phi3": "dense.Phi3",
    "qwen2": "dense.Qwen2",
    "qwen2_moe": "experts.Qwen2Moe",
    "qwen3": "dense.Qwen3",
    "qwen3_5_moe_text": "delta.Qwen35Moe",
    "qwen3_5_text": "delta.Qwen35",
    "qwen3_moe": "experts.Qwen3Moe",
    "qwen3_next": "delta.Qwen3Next",
    "smollm3": "dense.SmolLM3",
}
"""The module and class in `families` that computes a family, by its `model_type`."""

# RoPE types whose frequencies are fixed by the config.
STATIC_ROPE_TYPES = ("default", "linear", "yarn", "llama3", "proportional")
# Those that are fixed up to the length that the model was trained for. Beyond it they change with
# the prompt's length, so a key rotated for a short prompt would be wrong in a long one.
ROPE_TYPES_UP_TO_A_LENGTH = ("dynamic", "longrope")

# Families that may rotate only a part of every head, as their config says.
PARTIAL_ROTATION = ("gemma4_text", "phi3", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next")
# Families whose `sliding_window` holds for every layer, and for those that `layer_types` names.
# Others do not look at it.
WINDOW_IN_EVERY_LAYER = ("mistral", "mixtral", "phi3", "qwen3_moe")
WINDOW_BY_LAYER = (
    *("cohere2", "gemma2", "gemma3_text", "gemma4_text", "gpt_oss", "ministral", "olmo3"),
    *("qwen2", "qwen2_moe", "qwen3", "smollm3"),
)

_VISION = "reads images, and kvstitch serves models that read text only"
_AUDIO = "reads or makes sound, and kvstitch serves models that read text only"
_ENCODER_DECODER = (
    "is an encoder-decoder: its answer attends to another network's states, which are not the KV "
    "of a prompt that documents could be stitched into"
)
_ENCODER = "is an encoder: it writes no answers"
_STATE = (
    "keeps a state instead of a key and value per token in some or all of its layers, of a kind "
    "that is not served"
)
_LATENT = "stores compressed keys (multi-head latent attention) in a way that is not served"

_REASONS = {
    _VISION: (
        "aria", "aya_vision", "blip", "blip_2", "chameleon", "cohere2_vision", "deepseek_vl",
        "emu3", "fuyu", "gemma3n", "glm4v", "got_ocr2", "idefics", "idefics2",
        "idefics3", "internvl", "janus", "kosmos2", "llama4", "llava", "llava_next",
        "llava_next_video", "llava_onevision", "mistral3", "mllama", "molmo2", "paligemma",
        "phi4_multimodal", "pixtral", "qwen2_5_vl", "qwen2_vl", "qwen3_vl", "qwen3_vl_moe",
        "smolvlm", "video_llava",
    ),
    _AUDIO: ("granite_speech", "moshi", "qwen2_5_omni", "qwen2_audio", "voxtral", "whisper"),
    _ENCODER_DECODER: (
        "bart", "bigbird_pegasus", "blenderbot", "encoder_decoder", "led", "longt5", "m2m_100",
        "marian", "mbart", "mt5", "nllb", "pegasus", "prophetnet", "switch_transformers", "t5",
        "t5gemma", "umt5",
    ),
    _ENCODER: (
        "albert", "bert", "camembert", "deberta", "deberta_v2", "distilbert", "electra", "mpnet",
        "modernbert", "nomic_bert", "roberta", "xlm_roberta",
    ),
    _STATE: (
        "bamba", "falcon_h1", "falcon_mamba", "jamba", "kimi_linear", "mamba", "mamba2", "minimax",
        "olmo_hybrid", "recurrent_gemma", "rwkv", "xlstm", "zamba", "zamba2",
    ),
    _LATENT: ("deepseek_v32", "minicpm3", "mistral4"),
}  # fmt: skip
_BY_NAME = {name: reason for reason, names in _REASONS.items() for name in names}
# What a text decoder that is part of a larger model says of itself: it is served without the rest.
TEXT_ALONE = {
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
}


def why_not_served(config: dict[str, Any]) -> str | None:
    """Return why models of this kind are not served, as the end of a sentence, or None."""
    known = _BY_NAME.get(str(config.get("model_type")))
    if known is not None:
        return known
    if config.get("vision_config") is not None:
        return _VISION
    if config.get("audio_config") is not None:
        return _AUDIO
    if config.get("is_encoder_decoder"):
        return _ENCODER_DECODER
    if config.get("add_cross_attention"):
        return "attends to states of another network (cross-attention)"
    if config.get("model_type") in FAMILIES:
        return None
    mixed = {"linear_attention", "mamba", "recurrent", "conv"}
    if mixed.intersection(map(str, config.get("layer_types") or ())):
        return _STATE
    return None


def keeps_states(config: dict[str, Any]) -> bool:
    """Return whether layers of a served model keep a state instead of a key and value per token."""
    family = FAMILIES.get(str(config.get("model_type")), "")
    return family.startswith(("convolutional.", "delta.", "mamba."))


def what_instead() -> str:
    return f"give a model of the families {', '.join(FAMILIES)}"
