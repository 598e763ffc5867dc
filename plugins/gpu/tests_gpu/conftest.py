from tests.service.worker.conftest import model, no_gradients, one_thread

__all__ = ["model", "no_gradients", "one_thread"]
