from tests.service.gateway.conftest import create, folder, rig

__all__ = ["create", "folder", "rig"]
