"""Fusion and eviction methods that the evidence does not recommend."""

from __future__ import annotations

from kvstitch.service.plugins import hookimpl


@hookimpl
def fusion_methods() -> dict[str, str]:
    return {
        "agentkvshift": "kvstitch_methods.agentkvshift:AgentKVShift",
        "fusionrag": "kvstitch_methods.question_ranked:FusionRAG",
        "infoflow": "kvstitch_methods.question_ranked:InfoFlow",
        "prophetkv": "kvstitch_methods.question_ranked:ProphetKV",
        "relaxkv": "kvstitch_methods.question_ranked:RelaxKV",
        "samkv": "kvstitch_methods.samkv.sparse_method:SamKV",
    }


@hookimpl
def eviction_methods() -> dict[str, str]:
    return {
        "gemfilter": "kvstitch_methods.eviction:GemFilter",
        "kvec": "kvstitch_methods.eviction:KVec",
    }
