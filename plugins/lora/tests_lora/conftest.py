from tests.service.worker.conftest import any_family, any_model, model, no_gradients, one_thread

__all__ = ["any_family", "any_model", "model", "no_gradients", "one_thread"]
