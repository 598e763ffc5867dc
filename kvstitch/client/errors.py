"""Every error that a client raises: the service's own by their codes, and those of the way there.

KvstitchError
├── ConnectionFailed          nothing answered at this address, or the connection broke
│   └── TimedOut              no answer in time
├── UnexpectedResponse        something answered, but not as kvstitch does
├── WaitedTooLong             `wait` gave up; the job goes on
└── ServiceError              the service refused or failed; `code` says why
    ├── InvalidRequest        a field is wrong, `field` names it
    │   ├── UnknownMethod     no fusion or eviction method so named
    │   ├── BodyTooLarge      the body or a document exceeds a limit
    │   ├── PromptTooLong     the prompt exceeds the model's context
    │   └── Unsupported       a known field of OpenAI's that is not supported
    ├── Unauthenticated       no API key or token, or not a valid one
    ├── Forbidden             the API key lacks a scope, or may not change this document
    ├── NotFound              unknown document, job, receipt or path
    │   └── ModelNotFound     a model name that is not served
    ├── Conflict              forbidden in the current state
    │   ├── NotCalibrated     `kvstitch tune` was not run for this
    │   └── NoReranker        the service has no reranker
    ├── QuotaExceeded         a limit of the key or its tenant
    ├── Unavailable           too busy, starting, or shutting down: try again later
    │   └── RerankerFailed    the reranker's endpoint failed or is late
    ├── DiskFull              nothing can be stored until there is room
    ├── DeadlineExceeded      no token before the deadline
    └── ServerError           a fault of the service
"""

from typing import Any, ClassVar

import httpx

SHOWN_CHARS = 200


class KvstitchError(Exception):
    """Base of all errors.

    Attributes:
        message: For people: what is wrong and what to do.
        code: The service's code, stable and machine-readable; None: not from the service.
        field: Field of the request that is wrong; None if there is none.
        status: HTTP status; None without a response, or if the error came in a stream.
        request_id: Id by which the service's log names the request; None without a response.
        retry_after: Seconds after which a retry may succeed; None if unknown.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        field: str | None = None,
        status: int | None = None,
        request_id: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.field = field
        self.status = status
        self.request_id = request_id
        self.retry_after = retry_after


class ConnectionFailed(KvstitchError):
    pass


class TimedOut(ConnectionFailed):
    pass


class UnexpectedResponse(KvstitchError):
    pass


class WaitedTooLong(KvstitchError):
    pass


BY_CODE: dict[str, "type[ServiceError]"] = {}


class ServiceError(KvstitchError):
    # The service's codes that are of this kind.
    codes: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        BY_CODE.update(dict.fromkeys(cls.__dict__.get("codes", ()), cls))


class InvalidRequest(ServiceError):
    codes: ClassVar[tuple[str, ...]] = (
        "invalid_request",
        "bad_body",
        "body_timeout",
        "unsupported_media_type",
    )


class UnknownMethod(InvalidRequest):
    codes = ("unknown_method",)


class BodyTooLarge(InvalidRequest):
    codes = ("body_too_large",)


class PromptTooLong(InvalidRequest):
    codes = ("prompt_too_long",)


class Unsupported(InvalidRequest):
    codes = ("unsupported",)


class Unauthenticated(ServiceError):
    codes = ("invalid_api_key", "invalid_token", "sign_in_refused")


class Forbidden(ServiceError):
    codes = (
        "missing_scope",
        "adapter_not_allowed",
        "not_a_writer",
        "foreign_origin",
        "unknown_host",
    )


class NotFound(ServiceError):
    codes = ("not_found",)


class ModelNotFound(NotFound):
    codes = ("model_not_found",)


class Conflict(ServiceError):
    codes: ClassVar[tuple[str, ...]] = ("conflict", "no_audit_log")


class NotCalibrated(Conflict):
    codes = ("not_calibrated",)


class NoReranker(Conflict):
    codes = ("no_reranker",)


class QuotaExceeded(ServiceError):
    codes = ("quota_exceeded",)


class Unavailable(ServiceError):
    codes: ClassVar[tuple[str, ...]] = (
        "overloaded",
        "worker_unavailable",
        "database_unavailable",
        "identity_unavailable",
    )


class RerankerFailed(Unavailable):
    codes = ("reranker_failed",)


class DiskFull(ServiceError):
    codes = ("disk_full",)


class DeadlineExceeded(ServiceError):
    codes = ("deadline_exceeded",)


class ServerError(ServiceError):
    codes = ("worker_fault", "internal_error")


def from_response(response: httpx.Response) -> KvstitchError:
    """The error in a response whose body has been read, in either form that the service has."""
    try:
        content = response.json()
        return _of(content.get("error") or content, response, response.status_code)
    except (ValueError, AttributeError, LookupError):
        shown = response.text[:SHOWN_CHARS] or response.reason_phrase
        return UnexpectedResponse(
            f"{response.url} answered {response.status_code}, but not as kvstitch does: {shown}",
            status=response.status_code,
        )


def from_event(data: dict[str, Any], response: httpx.Response) -> KvstitchError:
    """The error that ends a stream."""
    return _of(data["error"], response, None)


def _of(found: dict[str, Any], response: httpx.Response, status: int | None) -> ServiceError:
    code = found["code"]
    # A newer service may have codes that are not known here.
    unknown = InvalidRequest if status is not None and status < 500 else ServerError
    return BY_CODE.get(code, unknown)(
        found.get("detail") or found["message"],
        code=code,
        field=found.get("field") or found.get("param"),
        status=status,
        request_id=response.headers.get("x-request-id"),
        retry_after=retry_after(response),
    )


def from_transport(error: httpx.TransportError | httpx.InvalidURL, url: str) -> KvstitchError:
    """The error for a connection that failed."""
    kind = TimedOut if isinstance(error, httpx.TimeoutException) else ConnectionFailed
    said = str(error) or type(error).__name__
    return kind(f"no answer from {url}: {said}; is the service running there?")


def retry_after(response: httpx.Response) -> float | None:
    """Seconds that the response asks to wait; None if it does not say."""
    value = response.headers.get("retry-after", "")
    return float(value) if value.isdigit() else None
