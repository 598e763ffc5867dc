"""A plugin whose hook asks for what the seam does not hand on."""

from kvstitch.service.plugins import hookimpl


@hookimpl
def gateway_part(kitchen: object) -> None: ...
