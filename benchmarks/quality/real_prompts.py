"""Writes prompts of real text for one model, in the format that the service serves it with.

    python -m benchmarks.quality.real_prompts --model FOLDER --split dev --samples 30 --out FILE

The file is what `python -m benchmarks.fidelity --prompts` reads: one prompt a line, each passage a
document. --answer-prefix begins the answer, as `answer_prefix` of kvstitch.json does.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from benchmarks.quality.tasks import natural_questions
from retriever import LocalEmbedder
from service.gateway.api import ModelFolder, load_format

TASK = "nq{others}"


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.quality.real_prompts",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", type=Path, required=True, help="a Hugging Face model folder")
    parser.add_argument("--split", choices=natural_questions.SPLITS, default="dev")
    parser.add_argument("--others", type=int, default=7, help="passages beside the gold one")
    parser.add_argument("--samples", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--answer-prefix", default="")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(given)
    fmt = load_format(ModelFolder(args.model))
    embedder = LocalEmbedder()
    embedder.start()
    with closing(embedder), args.out.open("w", encoding="utf-8") as out:
        for found in natural_questions.retrieve(
            natural_questions.load(args.split),
            embedder.embed,
            others=args.others,
            samples=args.samples,
            seed=args.seed,
        ):
            line = {
                "task": TASK.format(others=args.others),
                "system": fmt.system,
                "documents": [fmt.render_document(p.title, p.text) for p in found.passages],
                "question": fmt.question.replace("{question}", found.asked.question)
                + args.answer_prefix,
                "answers": found.asked.answers,
            }
            out.write(json.dumps(line, ensure_ascii=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
