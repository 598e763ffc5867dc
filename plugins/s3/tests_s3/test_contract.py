"""What all tiers have in common, of this one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kvstitch_s3.tier import S3Tier
from tests.kvstore.tiers.test_contract import *  # noqa: F403
from tests_s3.s3_server import S3Server


@pytest.fixture  # type: ignore[no-redef]
def tier(s3_at: S3Server) -> Iterator[S3Tier]:
    tier = S3Tier(s3_at.place())
    tier.start()
    yield tier
    tier.close()
