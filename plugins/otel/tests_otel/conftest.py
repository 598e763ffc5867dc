"""Services of the tests end to end."""

from __future__ import annotations

from tests.e2e.conftest import corpus, model, serve, twelve

__all__ = ["corpus", "model", "serve", "twelve"]
