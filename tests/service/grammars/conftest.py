from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from kvstitch.service.grammars.processes import GrammarProcesses
from tests.service.grammars.forms import TOKENIZER, Forms


@pytest.fixture(scope="module")
def forms() -> Iterator[Forms]:
    with closing(GrammarProcesses(TOKENIZER)) as processes:
        yield Forms(processes)
