"""The FastAPI application around a gateway: routes, errors, lifespan."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import chain

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from kvstitch.service import __version__
from kvstitch.service.errors import KvstitchError
from kvstitch.service.gateway.answers.methods import NAMES
from kvstitch.service.gateway.composition import Gateway
from kvstitch.service.gateway.http import problems
from kvstitch.service.gateway.http.browser_guard import BrowserGuard
from kvstitch.service.gateway.http.middleware import Authentication, RequestContext
from kvstitch.service.gateway.http.openai.envelope import WARNINGS_HEADER
from kvstitch.service.gateway.http.openapi import Offer, OpenApiDescription
from kvstitch.service.gateway.http.routes import answers, documents, operations, pages
from kvstitch.service.settings.fields import parts

# What a page of another origin may read of a response, where KVSTITCH_CORS_ORIGINS names it.
READABLE_HEADERS = (
    *("Location", "Retry-After", "Server-Timing", "X-Request-Id", "X-Should-Retry"),
    WARNINGS_HEADER,
)


def create_app(gateway: Gateway) -> FastAPI:
    """Return an application that starts and closes `gateway` with its lifespan."""

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
    app.state.gateway = gateway
    app.state.error_forms = {
        path: form for part in gateway.parts for path, form in part.errors.items()
    }
    for layer, arguments in chain.from_iterable(part.middleware for part in gateway.parts):
        app.add_middleware(layer, **arguments)
    app.add_middleware(Authentication, access=gateway.access)
    app.add_middleware(BrowserGuard, settings=gateway.settings)
    if origins := parts(gateway.settings.cors_origins.lower()):
        # Preflights carry no key, so they are answered before keys are looked at. There are no
        # cookies, and browsers are never told to send credentials of their own.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=sorted(origins),
            allow_methods=("GET", "POST", "PUT", "DELETE"),
            allow_headers=("*",),  # OpenAI's client sends a dozen of its own
            expose_headers=READABLE_HEADERS,
            max_age=600,
        )
    app.add_middleware(RequestContext, limits=gateway.settings, metrics=gateway.metrics)
    problems.install(app)
    routers = [module.router for module in (answers, documents, operations, pages)]
    for router in chain(routers, *(part.routers for part in gateway.parts)):
        # `include_router` would build the models of all routes again with the first request.
        app.router.routes.extend(router.routes)
    app.mount("/ui", pages.Console(), name="console")
    app.openapi = OpenApiDescription(app, lambda: _offer(gateway))  # type: ignore[method-assign]
    return app


def _offer(gateway: Gateway) -> Offer:
    if (ready := gateway.worker.ready) is None:
        return [], []
    models = [each.id for each in answers.list_models(gateway, ready, every=True)]
    return models, [*NAMES, *(info.name for info in (*ready.fusion, *ready.eviction))]
