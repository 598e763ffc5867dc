"""From a request's fields to the worker's `Sampling`."""

from __future__ import annotations

from service.errors import InvalidRequest
from service.gateway.schemas.generate import GenerateRequest
from service.grammars.forms import WrittenForm
from service.messages.requests import Sampling

# Tokens of an answer that may be a call or must have a form, where the request does not say: it is
# worth nothing if it is cut off, and models' defaults are made for sentences.
STRUCTURED_MAX_TOKENS = 512


def sampling(
    request: GenerateRequest,
    form: WrittenForm | None,
    *,
    prompt_tokens: int,
    room: int,
    usual: int,
) -> tuple[Sampling, list[str]]:
    """Return how the worker chooses the answer's tokens, and warnings for the client."""
    if request.max_tokens is not None and request.min_tokens > request.max_tokens:
        raise InvalidRequest(
            f"min_tokens is {request.min_tokens}, max_tokens {request.max_tokens}: lower it",
            field="min_tokens",
        )
    for name in ("min_tokens", "ignore_eos") if request.guided is not None else ():
        if getattr(request, name):
            raise InvalidRequest(
                f"{name}: with guided the form of the answer says where it ends: leave it out",
                field=name,
            )
    warnings = []
    if request.max_tokens is None:
        structured = request.tools is not None or request.guided is not None
        max_tokens = min(max(usual, STRUCTURED_MAX_TOKENS) if structured else usual, room)
    elif (max_tokens := min(request.max_tokens, room)) < request.max_tokens:
        warnings.append(
            f"max_tokens was lowered from {request.max_tokens} to {room}: the prompt has "
            f"{prompt_tokens} tokens"
        )
    for name in ("stop", "stop_token_ids"):
        if form is not None and getattr(request, name):
            warnings.append(f"{name} was left out: the form of the answer says where it ends")
    made = Sampling(
        max_tokens=max_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        seed=request.seed,
        logprobs=request.logprobs,
        top_k=request.sampling_top_k,
        min_p=request.min_p,
        repetition_penalty=request.repetition_penalty,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        logit_bias={int(token): bias for token, bias in (request.logit_bias or {}).items()},
        min_tokens=request.min_tokens,
        ignore_end=request.ignore_eos,
        stop_ids=[] if form is not None else request.stop_token_ids or [],
        grammar="" if form is None else form.grammar,
    )
    return made, warnings
