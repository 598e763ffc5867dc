"""A plugin for a hook that there is not."""

from kvstitch.service.plugins import hookimpl


@hookimpl
def make_coffee() -> None: ...
