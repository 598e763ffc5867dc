"""Attention rules of families with sliding windows, as transformers reads their configs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from service.worker.model.attention_rule import PLAIN, AttentionRule


def every_layer_slides(config: Any) -> list[AttentionRule]:
    """`sliding_window` holds for every layer, where there is one."""
    rule = AttentionRule(window=int(config.sliding_window)) if config.sliding_window else PLAIN
    return [rule] * int(config.num_hidden_layers)


def by_layer_types(config: Any) -> list[AttentionRule]:
    """`sliding_window` holds for the layers whose type is "sliding_attention"."""
    sliding = every_layer_slides(config)[0]
    return [sliding if kind == "sliding_attention" else PLAIN for kind in config.layer_types]


def windows_of(rules: Sequence[AttentionRule]) -> tuple[int | None, ...]:
    """The layers' windows; empty if no layer has one."""
    windows = tuple(rule.window for rule in rules)
    return windows if any(windows) else ()
