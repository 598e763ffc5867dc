"""Fusion and eviction methods that the evidence does not recommend."""

from __future__ import annotations

from service.plugins import hookimpl

FUSION = ("agentkvshift", "fusionrag", "infoflow", "prophetkv", "relaxkv", "samkv")
EVICTION = ("gemfilter", "kvec")


@hookimpl
def fusion_methods() -> dict[str, str]:
    return {name: f"kvstitch_methods.fusion.{name}:Method" for name in FUSION}


@hookimpl
def eviction_methods() -> dict[str, str]:
    return {name: f"kvstitch_methods.eviction.{name}:Method" for name in EVICTION}
