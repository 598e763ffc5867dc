"""How often another program's full prefill gives the answer that ours gives.

    python -m benchmarks.quality.ceiling --records SAMPLES.jsonl --prompts PROMPTS.jsonl \\
        --model FOLDER --method 'question_scout r=0.15 system' --name nq_ceiling

A greedy answer turns where two tokens are almost equally likely, and there rounding decides. So the
same weights give another text in another program or precision, though neither approximates
anything. transformers' own forward pass answers the prompts that have records; the share of its
texts that are our full prefill's letter by letter is as much as can be asked of a method, and the
prompts on which the two agree are those whose answer is decided by the prompt.

Answers are appended to <name>.jsonl in --out, so a stopped run goes on where it stopped; <name>.md
is the page.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from benchmarks.common.provenance import provenance
from benchmarks.quality.outcomes import right
from benchmarks.quality.prompt_file import of_file, tokenizer_of
from benchmarks.quality.records import Records
from benchmarks.quality.table import OUT
from service.errors import KvstitchError
from tuning.case import NEXT
from tuning.environment import describe
from tuning.prompts import Prompt
from tuning.records import RecordFile
from tuning.statistics import Bootstrap


@dataclass(frozen=True)
class Answer:
    """One text of the other program.

    Attributes:
        prompt: key of the prompt.
        configuration: the other program's precision.
    """

    prompt: str
    configuration: str
    text: str


class TransformersAnswers:
    """Greedy answers of transformers' own forward pass, as long as those of the records.

    Args:
        folder: the model.
        dtype: its precision, `bfloat16` or `float32`.
    """

    def __init__(self, folder: Path, dtype: str) -> None:
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
        ends = self._model.generation_config.eos_token_id
        self._end_ids = ends if isinstance(ends, list) else [ends]

    @torch.inference_mode()
    def answer(self, ids: Sequence[int]) -> list[int]:
        """Return the tokens of an answer, without the end token."""
        given, cache, said = torch.tensor([list(ids)]), None, list[int]()
        while len(said) <= NEXT:
            out = self._model(given, past_key_values=cache, use_cache=True, logits_to_keep=1)
            given, cache = _most_likely(out.logits), out.past_key_values
            if int(given) in self._end_ids:
                break
            said.append(int(given))
        return said


def _most_likely(logits: Tensor) -> Tensor:
    return logits[:, -1].argmax(dim=-1, keepdim=True)


@dataclass(frozen=True)
class Compared:
    """One prompt: whether the other program and a method give our full prefill's text.

    Attributes:
        rights: whether the text of full prefill, of the other program and of the method is right.
    """

    other_same: bool
    method_same: bool
    rights: tuple[float, float, float]


def page(title: str, name: str, compared: Sequence[Compared]) -> str:
    """The table: all prompts, and those on which both full prefills agree."""
    decided = [one for one in compared if one.other_same]
    lines = [
        f"# {title}",
        "",
        "Share of answers that are our full prefill's letter by letter, with 95 % intervals.",
        "",
        f"| prompts | | transformers' full prefill | {name} | right: ours, transformers', {name} |",
        "| --- | --- | --- | --- | --- |",
    ]
    for label, rows in (("all", compared), ("where both full prefills agree", decided)):
        if rows:
            others, methods = [r.other_same for r in rows], [r.method_same for r in rows]
            counts = ", ".join(
                f"{sum(right):g}" for right in zip(*(r.rights for r in rows), strict=True)
            )
            cells = (label, str(len(rows)), _share(others), _share(methods), counts)
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _share(same: Sequence[bool]) -> str:
    share = Bootstrap(len(same), seed=1).mean([float(one) for one in same])
    return f"{share.mean:.1%} [{share.low:.1%}, {share.high:.1%}]".replace("%", " %")


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.quality.ceiling",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--records", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument(
        "--method", required=True, help="a configuration of the records, by name or key"
    )
    parser.add_argument("--dtype", default="bfloat16", help="of the other program")
    parser.add_argument("--samples", type=int, help="so many prompts at most")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--name", default="ceiling", help="of the files")
    parser.add_argument("--title", default="What full prefill itself agrees with")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args(given)
    torch.set_num_threads(args.threads)
    records = Records(args.records)
    try:
        prompts = of_file(args.model, args.prompts)
        about = records.about()
    except (KvstitchError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    records.load()
    keys = [key for key in about if args.method in (key, about[key]["name"])]
    if len(keys) != 1:
        names = ", ".join(f"{key} ({about[key]['name']})" for key in about)
        print(f"--method is the key or the name of one of: {names}", file=sys.stderr)
        return 2
    known = [prompt for prompt in prompts if (prompt.key, keys[0]) in records][: args.samples]
    if not known:
        print("no prompt has a record of this configuration", file=sys.stderr)
        return 1
    answers = RecordFile(args.out / f"{args.name}.jsonl", Answer)
    answers.load()
    _answer_all(args, known, answers)
    compared = [_compare(prompt, keys[0], records, answers, args.dtype) for prompt in known]
    record = {"environment": describe(), "threads": args.threads, "dtype": args.dtype}
    text = page(args.title, about[keys[0]]["name"], compared) + provenance(record)
    (args.out / f"{args.name}.md").write_text(text, encoding="utf-8")
    print(text)
    return 0


def _answer_all(
    args: argparse.Namespace,
    prompts: Sequence[Prompt],
    answers: RecordFile[Answer],
) -> None:
    left = [prompt for prompt in prompts if (prompt.key, args.dtype) not in answers]
    if not left:
        return
    model = TransformersAnswers(args.model, args.dtype)
    decode = tokenizer_of(args.model).decode
    for number, prompt in enumerate(left, 1):
        ids = [*prompt.system, *(i for each in prompt.documents for i in each), *prompt.question]
        answers.add([Answer(prompt.key, args.dtype, decode(model.answer(ids)))])
        print(f"{number}/{len(left)} prompts", file=sys.stderr, flush=True)


def _compare(
    prompt: Prompt, key: str, records: Records, answers: RecordFile[Answer], dtype: str
) -> Compared:
    record = records[prompt.key, key]
    ours, other = record.full_text or "", answers[prompt.key, dtype].text
    method = record.text or ""
    return Compared(
        other.strip() == ours.strip(),
        method.strip() == ours.strip(),
        (right(ours, prompt), right(other, prompt), right(method, prompt)),
    )


if __name__ == "__main__":
    sys.exit(main())
