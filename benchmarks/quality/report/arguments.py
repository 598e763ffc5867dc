"""The arguments that both command lines share: the model, the suite, how to run it."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.quality.report.subject import Place, Subject
from benchmarks.quality.suites import Choice
from benchmarks.quality.tasks import multidoc
from service.models.model_finder import resolve

SMALL_VOCABULARY = 4096
"""A tokenizer with at most this many tokens has few whole English words."""
SPLITS = {"dev": multidoc.DEVELOPMENT, "test": multidoc.TEST}


def add_model(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("model")
    group.add_argument("--model", default="", help="folder or Hugging Face id (default: the demo)")
    group.add_argument("--dtype", default="float32")
    group.add_argument("--device", default="auto")
    group.add_argument("--threads", type=int, default=1, help="of each process")
    group.add_argument("--processes", type=int, default=1, help="that answer samples")


def add_samples(parser: argparse.ArgumentParser, *, samples: int) -> None:
    group = parser.add_argument_group("samples")
    group.add_argument("--tasks", nargs="+", default=[], help="of the suite (default: all)")
    group.add_argument("--samples", type=int, default=samples, help="of each task and seed")
    group.add_argument("--seeds", "--seed", type=int, nargs="+", help="(default: the split's)")
    group.add_argument("--split", choices=list(SPLITS), default="test", help="dev: for tuning")
    group.add_argument("--chunk-tokens", type=int, help="(default: 48 of multidoc, else 512)")
    group.add_argument("--length", type=int, default=4096, help="of RULER's prompts")
    group.add_argument("--lengths", type=int, nargs="+", default=[], help="of the needle grid")
    group.add_argument("--depths", type=int, nargs="+", default=[], help="of it, in percent")
    group.add_argument("--data", type=Path, help="LongBench's files, or those of RULER's qa")
    group.add_argument("--limit", type=int, help="tokens that LongBench prompts are truncated to")


def place(args: argparse.Namespace) -> Place:
    """The model that the arguments name.

    Raises:
        ModelRefused: there is no such model.
    """
    return Place(resolve(args.model), args.dtype, args.device, args.threads)


def choice(args: argparse.Namespace, suite: str, subject: Subject) -> Choice:
    return Choice(
        suite=suite,
        tasks=args.tasks,
        samples=args.samples,
        seeds=args.seeds or SPLITS[args.split],
        chunk_tokens=args.chunk_tokens,
        length=args.length,
        small_words=subject.decoder.config.vocab_size <= SMALL_VOCABULARY,
        lengths=args.lengths,
        depths=args.depths,
        data=args.data,
        limit=args.limit,
    )
