from tests.service.gateway.conftest import create as create
from tests.service.gateway.conftest import folder as folder
