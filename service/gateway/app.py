"""The FastAPI application around a gateway: routes, errors, lifespan."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from service import __version__
from service.errors import KvstitchError
from service.gateway import problems
from service.gateway.composition import Gateway
from service.gateway.http.browser_guard import BrowserGuard, comma_separated
from service.gateway.http.cors import allow_origins
from service.gateway.http.middleware import Authentication, BodyLimits, RequestContext
from service.gateway.http.openai.model_presets import list_models
from service.gateway.http.openapi import OfferedNames, OpenApiDescription
from service.gateway.http.routes import (
    collections,
    console,
    docs,
    documents,
    gate,
    health,
    ingest,
    jobs,
    models,
    openai,
    rag,
    responses,
    retrieval_models,
    root,
    search,
)
from service.gateway.http.services import GatewayServices


def create_app(gateway: Gateway) -> FastAPI:
    """An application that starts and closes `gateway` with its lifespan."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        try:
            await gateway.start()
        except KvstitchError as error:
            gateway.give_up(error.message)
            raise
        try:
            yield
        finally:
            await gateway.close()

    app = FastAPI(
        title="kvstitch", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None
    )
    services: GatewayServices = gateway
    app.state.services = services
    app.add_middleware(Authentication, access=gateway.access)
    app.add_middleware(BrowserGuard, settings=gateway.settings)
    if origins := comma_separated(gateway.settings.cors_origins):
        app.add_middleware(allow_origins, origins=origins)
    app.add_middleware(
        RequestContext,
        limits=BodyLimits(
            request=gateway.settings.max_request_bytes,
            ingest=gateway.settings.max_body_bytes,
            upload=gateway.settings.max_upload_bytes,
            timeout_s=gateway.settings.body_timeout_s,
        ),
        metrics=gateway.metrics,
    )
    problems.install(app)
    for module in (
        *(rag, search, retrieval_models, openai, responses, models),
        *(ingest, jobs, documents, collections, gate, health, docs, root),
    ):
        app.include_router(module.router)
    app.mount("/ui", console.Console(), name="console")
    app.openapi = OpenApiDescription(app, lambda: _offered_names(gateway))  # type: ignore[method-assign]
    return app


def _offered_names(gateway: Gateway) -> OfferedNames:
    ready = gateway.worker.ready
    if ready is None:
        return OfferedNames()
    names = [
        model.id for model in list_models(gateway.prompts.model, gateway.prompts.created, ready)
    ]
    return OfferedNames(tuple(names), tuple(info.name for info in (*ready.fusion, *ready.eviction)))
