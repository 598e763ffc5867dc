from tests.service.gateway.conftest import create, folder, rig, shared

__all__ = ["create", "folder", "rig", "shared"]
