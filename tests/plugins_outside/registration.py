"""What registers the four: this module is loaded at every start, theirs where they are used."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from kvstitch.service.plugins import FileFormat, TierKind, hookimpl

HERE = "tests.plugins_outside"


class OutsideSettings(BaseModel):
    shelf_mib: int = Field(0, ge=0, description="shelf behind memory; 0: none")
    counting_index: bool = Field(False, description="count what is searched")


@hookimpl
def settings() -> type[BaseModel]:
    return OutsideSettings


@hookimpl
def fusion_methods() -> dict[str, str]:
    return {"last_rows": f"{HERE}.a_method:Method"}


@hookimpl
def kv_tiers() -> list[TierKind]:
    return [
        TierKind(
            "shelf",
            f"{HERE}.a_tier:make",
            is_set=lambda settings: settings.shelf_mib > 0,
            first_read_s=2e-3,
            bytes_per_s=50e6,
            shown_as="s3",
        )
    ]


@hookimpl
def file_formats() -> list[FileFormat]:
    return [FileFormat("talk", "text/x-talk", (".talk",), f"{HERE}.a_format:parse", text=True)]


@hookimpl
def vector_index(settings: Any) -> Any:
    if not settings.counting_index:
        return None
    from tests.plugins_outside.an_index import CountingIndex

    return CountingIndex()
