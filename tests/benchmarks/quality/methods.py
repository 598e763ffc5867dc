"""The benchmark's own methods join the service's for the whole process: here they leave again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import service.worker.methods.eviction as eviction_package
import service.worker.methods.fusion as fusion_package


@contextmanager
def folders_restored() -> Iterator[None]:
    """Whatever folders of methods are added inside are gone behind it."""
    packages = (fusion_package, eviction_package)
    before = [list(package.__path__) for package in packages]
    try:
        yield
    finally:
        for package, paths in zip(packages, before, strict=True):
            package.__path__[:] = paths
