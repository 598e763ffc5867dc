"""LoRA adapters as PEFT saves them."""

from __future__ import annotations

from kvstitch.service.plugins import Adapters, hookimpl


@hookimpl
def adapters() -> Adapters:
    return Adapters("kvstitch_lora.folder:examine", "kvstitch_lora.load:add_lora")
