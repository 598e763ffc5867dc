"""Plugins for one test, without installing them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kvstitch.service.gateway.documents.parsing import file_kinds
from kvstitch.service.gateway.http.routes import pages
from kvstitch.service.plugins import VARIABLE, manager
from kvstitch.service.settings import loading
from kvstitch.service.worker.kernels import device_kernels
from kvstitch.service.worker.methods import registry


def forget_plugins() -> None:
    """Clear what was made of plugins in this process."""
    for cached in (
        manager._manager,
        manager.tiers,
        loading.all_settings,
        file_kinds.formats,
        file_kinds.media_type_of_suffix,
        file_kinds.kind_of_media_type,
        file_kinds.suffixes_in_folders,
        pages.console_page,
        registry._of_plugins,
        device_kernels.kernels_of,
    ):
        cached.cache_clear()


@contextmanager
def plugins(*modules: str) -> Iterator[None]:
    """Have these modules as plugins."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, ",".join(modules))
        forget_plugins()
        yield
    forget_plugins()
