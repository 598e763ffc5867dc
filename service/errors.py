"""Every error a user can meet, drawn once.

KvstitchError
├── InvalidRequest          422  a field is wrong; `field` names it, the message says what to do
│   ├── UnknownMethod       422  no fusion or eviction method of that name
│   ├── PromptTooLong       400  S + documents + question exceed the model's context
│   └── Unsupported         400  asked for what this service knows of and cannot do
├── Unauthenticated         401  no API key, or not a valid one
├── Forbidden               403  the API key lacks a scope; the message names it
├── NotFound                404  unknown document, job, collection or receipt
│   └── ModelNotFound       404  a model name that is not served
├── Conflict                409  the thing is in a state that forbids this
├── QuotaExceeded           429  a limit of the key or tenant; `field` names it
├── Overloaded              503  queue or KV pool full; come back after `retry_after_s`
├── WorkerUnavailable       503  the worker is starting, restarting or gone
├── DeadlineExceeded        504  the client's deadline passed before anything was generated
├── WorkerFault             500  the engine failed on this request (logged with its traceback)
├── ModelRefused            500  start-up only: this model cannot be served correctly
└── InvalidSetting          500  start-up only: a setting is out of range or contradicts another

Knows nothing of FastAPI: the gateway maps `status` and `code` in one handler.
"""

from __future__ import annotations

__all__ = [
    "Conflict",
    "DeadlineExceeded",
    "Forbidden",
    "InvalidRequest",
    "InvalidSetting",
    "KvstitchError",
    "ModelNotFound",
    "ModelRefused",
    "NotFound",
    "Overloaded",
    "PromptTooLong",
    "QuotaExceeded",
    "Unauthenticated",
    "UnknownMethod",
    "Unsupported",
    "WorkerFault",
    "WorkerUnavailable",
    "from_code",
]


class KvstitchError(Exception):
    """Base. `code` is stable and machine-readable; `field` names the offending input, if any."""

    code = "internal_error"
    status = 500

    def __init__(
        self, message: str, *, field: str | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.retry_after_s = retry_after_s


class InvalidRequest(KvstitchError):
    code = "invalid_request"
    status = 422


class UnknownMethod(InvalidRequest):
    code = "unknown_method"


class PromptTooLong(InvalidRequest):
    code = "prompt_too_long"
    status = 400


class Unsupported(InvalidRequest):
    code = "unsupported"
    status = 400


class Unauthenticated(KvstitchError):
    code = "invalid_api_key"
    status = 401


class Forbidden(KvstitchError):
    code = "missing_scope"
    status = 403


class QuotaExceeded(KvstitchError):
    code = "quota_exceeded"
    status = 429


class NotFound(KvstitchError):
    code = "not_found"
    status = 404


class ModelNotFound(NotFound):
    code = "model_not_found"


class Conflict(KvstitchError):
    code = "conflict"
    status = 409


class Overloaded(KvstitchError):
    code = "overloaded"
    status = 503


class WorkerUnavailable(KvstitchError):
    code = "worker_unavailable"
    status = 503


class DeadlineExceeded(KvstitchError):
    code = "deadline_exceeded"
    status = 504


class WorkerFault(KvstitchError):
    code = "worker_fault"
    status = 500


class ModelRefused(KvstitchError):
    code = "model_refused"
    status = 500


class InvalidSetting(KvstitchError):
    code = "invalid_setting"
    status = 500


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
    """The error of that code: how a `Failed` message becomes an exception in the gateway."""
    return _BY_CODE.get(code, WorkerFault)(message, field=field)
