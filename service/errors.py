"""Every error of the service, drawn once: class, HTTP status, machine-readable code.

KvstitchError                 500  internal_error          base; never raised itself
├── InternalError             500  internal_error          a fault of ours; the log says more
├── InvalidRequest            422  invalid_request         `field` is wrong, the message says how
│   ├── UnknownMethod         422  unknown_method          no fusion or eviction method so named
│   ├── MalformedBody         400  bad_body                the body is not JSON, UTF-8 or a form
│   ├── BodyTooLarge          413  body_too_large          the body or a document exceeds a limit
│   ├── PromptTooLong         400  prompt_too_long         the prompt exceeds the model's context
│   └── Unsupported           400  unsupported             a known OpenAI field we do not support
├── Unroutable                4xx  phrase of the status    no such path or method
│   └── UnsupportedMediaType  415  unsupported_media_type  the body has a type nobody can ingest
├── Unauthenticated           401  invalid_api_key         no API key, or not a valid one
│   ├── InvalidToken          401  invalid_token           `field` says which claim of it is wrong
│   └── SignInRefused         401  sign_in_refused         the issuer takes no such sign-in
├── Forbidden                 403  missing_scope           the API key lacks a scope
│   ├── BoundToAdapter        403  adapter_not_allowed     the API key is bound to another adapter
│   ├── NotAWriter            403  not_a_writer            it may read the document, not change it
│   └── ForeignOrigin         403  foreign_origin          a page of another site wants to write
├── UnknownHost               421  unknown_host            the Host header names no host of ours
├── NotFound                  404  not_found               unknown document, job or receipt
│   └── ModelNotFound         404  model_not_found         a model name that is not served
├── Conflict                  409  conflict                forbidden in the current state
│   ├── NotCalibrated         409  not_calibrated          `kvstitch tune` was not run for this
│   └── NoReranker            409  no_reranker             KVSTITCH_RERANKER_URL is not set
├── BodyTimeout               408  body_timeout            the body came in too slowly
├── QuotaExceeded             429  quota_exceeded          a limit of the key or its tenant
├── Overloaded                503  overloaded              queue full; retry after `retry_after_s`
├── WorkerUnavailable         503  worker_unavailable      the worker is starting or gone
│   └── TierUnreached         503  worker_unavailable      a storage tier did not take a purge
├── IdentityUnavailable       503  identity_unavailable    the issuer's public keys cannot be read
├── DatabaseUnavailable       503  database_unavailable    PostgreSQL does not answer
├── RerankerFailed            503  reranker_failed         the reranker's endpoint failed or is late
├── DiskFull                  507  disk_full               nothing can be stored until there is room
├── DeadlineExceeded          504  deadline_exceeded       no token before the client's deadline
├── WorkerFault               500  worker_fault            the engine failed on this request
├── ModelRefused              500  model_refused           at start: the model cannot be served
│   └── ModelUnavailable      500  model_unavailable       at start: it cannot be fetched
└── InvalidSetting            500  invalid_setting         at start: a setting is wrong
    └── PluginFailed          500  plugin_failed           a plugin cannot be loaded

The gateway turns these into responses in one place, `kvstitch.service.gateway.http.problems`. The
command line adds one more, `kvstitch.service.cli.options.CommandError`: what a command cannot go on
with.
"""

from http import HTTPStatus


class KvstitchError(Exception):
    """Base of all errors of the service.

    Attributes:
        code: Stable and machine-readable; clients decide by it.
        status: HTTP status of the response.
        message: For people: what is wrong and what to do.
        field: The offending input field, None if there is none.
        retry_after_s: Seconds after which a retry may succeed, None if unknown.
    """

    code = "internal_error"
    status = 500

    def __init__(
        self, message: str, *, field: str | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.retry_after_s = retry_after_s


class InternalError(KvstitchError):
    pass


class InvalidRequest(KvstitchError):
    code, status = "invalid_request", 422


class UnknownMethod(InvalidRequest):
    code = "unknown_method"


class MalformedBody(InvalidRequest):
    code, status = "bad_body", 400


class BodyTooLarge(InvalidRequest):
    code, status = "body_too_large", 413


class PromptTooLong(InvalidRequest):
    code, status = "prompt_too_long", 400


class Unsupported(InvalidRequest):
    code, status = "unsupported", 400


class Unroutable(KvstitchError):
    """What the web framework refuses before any route runs."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = HTTPStatus(status).phrase.lower().replace(" ", "_")


class UnsupportedMediaType(Unroutable):
    def __init__(self, message: str) -> None:
        super().__init__(415, message)


class Unauthenticated(KvstitchError):
    code, status = "invalid_api_key", 401


class InvalidToken(Unauthenticated):
    code = "invalid_token"


class SignInRefused(Unauthenticated):
    code = "sign_in_refused"


class Forbidden(KvstitchError):
    code, status = "missing_scope", 403


class BoundToAdapter(Forbidden):
    code = "adapter_not_allowed"


class NotAWriter(Forbidden):
    code = "not_a_writer"


class ForeignOrigin(Forbidden):
    code = "foreign_origin"


class UnknownHost(KvstitchError):
    code, status = "unknown_host", 421


class BodyTimeout(KvstitchError):
    code, status = "body_timeout", 408


class QuotaExceeded(KvstitchError):
    code, status = "quota_exceeded", 429


class NotFound(KvstitchError):
    code, status = "not_found", 404


class ModelNotFound(NotFound):
    code = "model_not_found"


class Conflict(KvstitchError):
    code, status = "conflict", 409


class NotCalibrated(Conflict):
    code = "not_calibrated"


class NoReranker(Conflict):
    code = "no_reranker"


class Overloaded(KvstitchError):
    code, status = "overloaded", 503


class WorkerUnavailable(KvstitchError):
    code, status = "worker_unavailable", 503


class TierUnreached(WorkerUnavailable):
    pass


class IdentityUnavailable(KvstitchError):
    code, status = "identity_unavailable", 503


class DatabaseUnavailable(KvstitchError):
    code, status = "database_unavailable", 503


class RerankerFailed(KvstitchError):
    code, status = "reranker_failed", 503


class DiskFull(KvstitchError):
    code, status = "disk_full", 507


class DeadlineExceeded(KvstitchError):
    code, status = "deadline_exceeded", 504


class WorkerFault(KvstitchError):
    code, status = "worker_fault", 500


class ModelRefused(KvstitchError):
    code, status = "model_refused", 500


class ModelUnavailable(ModelRefused):
    code = "model_unavailable"


class InvalidSetting(KvstitchError):
    code, status = "invalid_setting", 500


class PluginFailed(InvalidSetting):
    code = "plugin_failed"


# The errors that the worker sends.
_BY_CODE: dict[str, type[KvstitchError]] = {
    cls.code: cls
    for cls in (
        InvalidRequest,
        UnknownMethod,
        PromptTooLong,
        NotFound,
        Conflict,
        Overloaded,
        WorkerUnavailable,
        WorkerFault,
        ModelRefused,
    )
}


def from_code(code: str, message: str, field: str | None = None) -> KvstitchError:
    """Make the error with this code, for a `Failed` message from the worker."""
    return _BY_CODE.get(code, WorkerFault)(message, field=field)
