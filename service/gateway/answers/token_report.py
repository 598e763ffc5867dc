"""What the worker says of every token, with the token's text. Knows no HTTP and no socket."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from service.gateway.prompts.detokenizer import Decode, Detokenizer
from service.gateway.schemas.tokens import SegmentTokens, Source, TokenReport, TokenRunOut
from service.messages import Generate, Report, SegmentFates, SegmentReport, TokenFates, TokenRun

TIERS: dict[str, Source] = {"memory": "memory", "ssd": "ssd", "redis": "redis"}


def token_report(
    fates: TokenFates, report: Report, generate: Generate, decode: Decode
) -> TokenReport:
    """Takes a decoding per token: not for an event loop."""

    def told(
        ids: Sequence[int], segment: SegmentFates, source: Callable[[TokenRun], Source]
    ) -> SegmentTokens:
        text, starts = _pieces(ids, decode)
        runs = [
            TokenRunOut(
                tokens=run.tokens,
                source=source(run),
                computed_layers=run.computed_layers,
                entries=run.entries,
            )
            for run in segment.runs
        ]
        return SegmentTokens(text=text, starts=starts, runs=runs, scores=segment.scores)

    return TokenReport(
        layers=fates.layers,
        kv_heads=fates.kv_heads,
        system=told(generate.system, fates.system, _source_in(report.system)),
        documents=[
            told(chunk.ids, segment, _source_in(reported))
            for chunk, segment, reported in zip(
                generate.documents, fates.documents, report.documents, strict=True
            )
        ],
        question=told(generate.question, fates.question, lambda run: "question"),
    )


def _source_in(segment: SegmentReport) -> Callable[[TokenRun], Source]:
    """As `results.sources` counts them."""
    tier = TIERS.get(segment.tier, "cold")
    return lambda run: "recomputed" if run.recomputed and tier != "cold" else tier


def _pieces(ids: Sequence[int], decode: Decode) -> tuple[str, list[int]]:
    """The text of `ids`, and where in it each token begins."""
    detokenizer, text, starts = Detokenizer(decode), "", []
    for token in ids:
        starts.append(len(text))
        text += detokenizer.push(token)
    return text, starts
