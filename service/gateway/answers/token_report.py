"""The worker's trace of every prompt token, together with the token's text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from service.gateway.prompts.detokenizer import Decode, Detokenizer
from service.gateway.schemas.answer import SegmentTokens, Source, TokenReport, TokenRunOut
from service.messages.reports import Report, SegmentReport, SegmentTrace, TokenRun, TokenTrace
from service.messages.requests import Generate

SOURCE_OF_TIER: dict[str, Source] = {
    "memory": "memory",
    "ssd": "ssd",
    "redis": "redis",
    "s3": "s3",
}


def token_report(
    trace: TokenTrace, report: Report, generate: Generate, decode: Decode
) -> TokenReport:
    """Join trace and text. Decodes once per token, so it must not run on the event loop.

    Args:
        trace: What happened to every token, from the worker.
        report: The worker's report of the same answer; it names each segment's tier.
        generate: The request, with the token ids.
        decode: Token ids to text.
    """

    def segment_tokens(
        ids: Sequence[int], segment: SegmentTrace, source: Callable[[TokenRun], Source]
    ) -> SegmentTokens:
        text, starts = _pieces(ids, decode)
        runs = [TokenRunOut(source=source(run), **run._asdict()) for run in segment.runs]
        return SegmentTokens(text=text, starts=starts, runs=runs, scores=segment.scores)

    return TokenReport(
        layers=trace.layers,
        kv_heads=trace.kv_heads,
        system=segment_tokens(generate.system, trace.system, _source_in(report.system)),
        documents=[
            segment_tokens(chunk.ids, segment, _source_in(reported))
            for chunk, segment, reported in zip(
                generate.documents, trace.documents, report.documents, strict=True
            )
        ],
        question=segment_tokens(generate.question, trace.question, lambda run: "question"),
    )


def _source_in(segment: SegmentReport) -> Callable[[TokenRun], Source]:
    """The source of a run in this segment, as `answer_metrics.tokens_by_source` counts it."""
    tier = SOURCE_OF_TIER.get(segment.tier, "cold")
    return lambda run: "recomputed" if run.recomputed and tier != "cold" else tier


def _pieces(ids: Sequence[int], decode: Decode) -> tuple[str, list[int]]:
    """The text of `ids`, and the character at which each token begins."""
    detokenizer, text, starts = Detokenizer(decode), "", []
    for token in ids:
        starts.append(len(text))
        text += detokenizer.push(token)
    return text, starts
