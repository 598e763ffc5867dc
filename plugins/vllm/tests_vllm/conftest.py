from tests.e2e.conftest import corpus, model, twelve

__all__ = ["corpus", "model", "twelve"]
