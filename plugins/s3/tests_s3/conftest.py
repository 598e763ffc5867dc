from collections.abc import Iterator

import pytest

from tests.e2e.conftest import corpus, model
from tests_s3.s3_server import ENVIRONMENT, S3Server, s3_server

__all__ = ["corpus", "model"]


@pytest.fixture(scope="session")
def shared_s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def s3_at(shared_s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """A running server with an empty bucket, and its credentials in the environment."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    shared_s3.empty()
    return shared_s3
