from tests.service.gateway.conftest import folder, rig

__all__ = ["folder", "rig"]
