"""The client knows what the service has: error codes, fields of answers, fields of requests."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any, get_type_hints

import pytest
from pydantic import BaseModel

from kvstitch.client import errors, options, results
from service import errors as service_errors
from service.gateway.schemas import admin, answer, generate, search

AT_START_ONLY = {"model_refused", "model_unavailable", "invalid_setting"}
PAIRS: list[tuple[Any, type[BaseModel]]] = [
    (results.Answer, answer.GenerateResponse),
    (results.CacheDocument, answer.CacheDocument),
    (results.CacheReport, answer.CacheReport),
    (results.CacheSegment, answer.CacheSegment),
    (results.Citation, answer.Citation),
    (results.Explanation, answer.Explanation),
    (results.SearchResult, search.SearchResult),
    (results.SearchResults, search.SearchResponse),
    (results.Timing, answer.Timing),
    (results.Usage, answer.Usage),
    (results.Reranking, search.RerankResponse),
    (results.RerankResult, search.RerankResult),
    (results.Job, admin.JobOut),
    (results.JobProgress, admin.JobProgress),
    (results.JobFault, admin.JobErrorOut),
    (results.Collection, admin.CollectionOut),
    (results.Document, admin.DocumentOut),
    (results.Receipt, admin.ReceiptOut),
]


def test_every_code_has_a_type() -> None:
    kinds = [kind for kind in vars(service_errors).values() if isinstance(kind, type)]
    codes = {kind.code for kind in kinds if issubclass(kind, service_errors.KvstitchError)}
    assert len(codes) > 20
    assert codes - AT_START_ONLY <= set(errors.BY_CODE)


@pytest.mark.parametrize(("own", "services"), PAIRS, ids=lambda one: one.__name__)
def test_results_have_fields_that_the_service_sends(own: Any, services: type[BaseModel]) -> None:
    fields = {field.name for field in dataclasses.fields(own)} - {"raw"}
    assert fields <= set(services.model_fields)


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
        "heavy = {'torch', 'transformers', 'fastapi', 'pydantic', 'numpy', 'service'}; "
        "print('httpx' in sys.modules, sorted(heavy & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert run.stdout.strip() == "True []", run.stderr
