"""The client knows what the service has: error codes, fields of requests."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import get_type_hints

from kvstitch.client import AsyncClient, Client, errors, options
from kvstitch.service import errors as service_errors
from kvstitch.service.gateway.schemas import admin, generate, search

AT_START_ONLY = {"plugin_failed", "model_refused", "model_unavailable", "invalid_setting"}


def test_every_code_has_a_type() -> None:
    kinds = [kind for kind in vars(service_errors).values() if isinstance(kind, type)]
    codes = {kind.code for kind in kinds if issubclass(kind, service_errors.KvstitchError)}
    assert len(codes) > 20
    assert codes - AT_START_ONLY <= set(errors.BY_CODE)


def test_both_clients_have_the_same_methods() -> None:
    for name, method in vars(AsyncClient).items():
        if not name.startswith("_"):
            own = inspect.signature(getattr(Client, name)).parameters
            assert own == inspect.signature(method).parameters, name


def test_options_are_fields_that_the_service_takes() -> None:
    own = {"deadline_s"}  # a header
    for kind, model in (
        (options.SearchOptions, search.SearchRequest),
        (options.GenerateOptions, generate.GenerateRequest),
        (options.NewDocument, admin.DocumentIn),
    ):
        assert set(get_type_hints(kind)) - own <= set(model.model_fields)
    needed = set(search.SearchRequest.model_fields) - {"query"}
    assert needed <= set(get_type_hints(options.SearchOptions))


def test_importing_it_loads_httpx_and_nothing_of_the_service() -> None:
    code = (
        "import sys, kvstitch, kvstitch.client; "
        "heavy = {'torch', 'transformers', 'fastapi', 'pydantic', 'numpy', 'kvstitch.service'}; "
        "print('httpx' in sys.modules, sorted(heavy & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert run.stdout.strip() == "True []", run.stderr
