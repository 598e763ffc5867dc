"""The models that the worker's tests use, for the tests of the references themselves."""

from __future__ import annotations

from tests.service.worker.conftest import any_family, any_model, model, no_gradients, one_thread

__all__ = ["any_family", "any_model", "model", "no_gradients", "one_thread"]
