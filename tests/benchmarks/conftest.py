"""One tiny model for what does not depend on the family."""

from __future__ import annotations

import pytest
import torch

from tests.service.worker.tiny import Tiny, tiny


@pytest.fixture(scope="session")
def model() -> Tiny:
    torch.set_num_threads(1)
    return tiny("llama", "llama3")
