"""A bucket of S3 as the last tier of the KV store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvstitch.service.plugins import TierKind, hookimpl

if TYPE_CHECKING:
    from pydantic import BaseModel


@hookimpl
def settings() -> type[BaseModel]:
    from kvstitch_s3.bucket_settings import BucketSettings

    return BucketSettings


@hookimpl
def kv_tiers() -> list[TierKind]:
    return [
        TierKind(
            "s3",
            "kvstitch_s3.tier:make",
            is_set=_is_set,
            first_read_s=4e-2,  # whatever its size
            bytes_per_s=100e6,
            shown_as="s3",
        )
    ]


def _is_set(settings: Any) -> bool:
    return bool(settings.s3_url)
