"""Trains a LoRA on the K and V projections for chunks that are computed alone, and measures it.

    python -m benchmarks.quality.chunk_adapter --model FOLDER --out FOLDER --steps 1500 --primer

The adapter is used for a chunk's rows while the chunk is computed, never for questions and answers,
so a request runs the model as it is. Full prefill of the same prompt is the teacher: KL of the next
token in the rows of answers and, at a fifth of the weight, of questions. A prompt has six passages
of Natural Questions' development part and, in training, the question of each; they see all passages
and not one another. One pass computes everything, at the positions that stitching gives:

    S P S' C1 … Cn Q1 A1 … Qn An    chunks see S, a primer P, if any, and themselves;
                                    questions see S', all chunks and themselves

With --primer chunks are trained behind the three passages that are nearest besides. The last
hundred questions and their passages are kept for measuring, along full prefill's greedy answers of
16 tokens. The adapter is written as PEFT does it after every twenty steps, and a run begins with
what is there; without --steps it is measured. `python -m benchmarks.quality --adapter` measures it
behind several primers, and with fusion that computes rows anew.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.quality.tasks import natural_questions
from benchmarks.quality.tasks.natural_questions import Asked
from benchmarks.quality.tasks.retrieved import nearest
from kvstitch.retriever import LocalEmbedder
from kvstitch_tune.statistics import Bootstrap
from kvstitch_tune.trial import divergence

PASSAGES, PRIMER, KEPT, ANSWER = 6, 3, 100, 16
WEIGHTS = "adapter_model.safetensors"
QUESTION_WEIGHT, RATE, WARM_UP = 0.2, 1e-3, 10
INSTRUCTION = "Answer the question using the passages below. Answer briefly.\n\n"
Ids = list[int]
HEAD, BEFORE, AGAIN = 1000, 1001, 1002  # S, P and S'; chunks are 1 … n, questions −1 … −n


class Adapted(nn.Module):
    """A projection with a low-rank difference in the rows that `use` names."""

    use: Tensor | None = None  # `[1, n, 1]`, 1 for a row that is adapted

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / math.sqrt(base.in_features))
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.base(x)
        return y if Adapted.use is None else y + Adapted.use * (x @ self.down.T @ self.up.T)


def adapt(model: Any, rank: int) -> dict[str, nn.Parameter]:
    """Adapt K and V of every layer; return what is to be trained, by its names in PEFT's files."""
    model.requires_grad_(False)
    made = {}
    for number, layer in enumerate(model.model.layers):
        for name in ("k_proj", "v_proj"):
            adapted = Adapted(getattr(layer.self_attn, name), rank)
            setattr(layer.self_attn, name, adapted)
            module = f"base_model.model.model.layers.{number}.self_attn.{name}"
            made[f"{module}.lora_A.weight"] = adapted.down
            made[f"{module}.lora_B.weight"] = adapted.up
    return made


def write(folder: Path, parameters: Mapping[str, nn.Parameter], rank: int, base: str) -> None:
    """Write the adapter as PEFT does it."""
    folder.mkdir(parents=True, exist_ok=True)
    facts = {
        "peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": ["k_proj", "v_proj"],
        "base_model_name_or_path": base,
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(facts, indent=2), encoding="utf-8")
    save_file({name: each.detach() for name, each in parameters.items()}, folder / WEIGHTS)


def read(folder: Path, parameters: Mapping[str, nn.Parameter]) -> None:
    """Give the parameters the values that were written."""
    for name, value in load_file(folder / WEIGHTS).items():
        parameters[name].data.copy_(value)


@dataclass(frozen=True)
class Layout:
    """Rows of one pass: ids and positions `[1, n]`, whose they are `[n]`, and each question's
    first row, length and its answer's length."""

    ids: Tensor
    positions: Tensor
    part: Tensor
    asked: Sequence[tuple[int, int, int]]

    @classmethod
    def of(
        cls, system: Ids, primer: Ids, chunks: Sequence[Ids], asked: Sequence[tuple[Ids, Ids]]
    ) -> Layout:
        end = len(system) + len(primer)
        rows = [(system, HEAD, 0), (primer, BEFORE, len(system)), (system, AGAIN, len(primer))]
        for number, chunk in enumerate(chunks, 1):
            rows.append((chunk, number, end))
            end += len(chunk)
        places, first = [], len(system) * 2 + len(primer) + sum(map(len, chunks))
        for number, (question, answer) in enumerate(asked, 1):
            rows.append((question + answer, -number, end))
            places.append((first, len(question), len(answer)))
            first += len(question) + len(answer)
        ids = [i for part, _, _ in rows for i in part]
        positions = [start + i for part, _, start in rows for i in range(len(part))]
        whose = [who for part, who, _ in rows for _ in part]
        return cls(
            torch.tensor([ids]), torch.tensor([positions]), torch.tensor(whose), tuple(places)
        )

    @property
    def chunk_rows(self) -> Tensor:
        return (self.part > 0) & (self.part < HEAD)

    def mask(self, *, full: bool) -> Tensor:
        """Additive mask `[1, 1, n, n]`; full: chunks see S' and the chunks before, as prefilled."""
        who, other = self.part[:, None], self.part[None, :]
        chunk, chunks = self.chunk_rows[:, None], self.chunk_rows[None, :]
        sees = who == other
        sees |= (who == BEFORE) & (other == HEAD)
        sees |= (who < 0) & (chunks | (other == AGAIN))
        sees |= chunk & (
            (chunks | (other == AGAIN)) if full else (other == HEAD) | (other == BEFORE)
        )
        sees &= torch.ones_like(sees).tril()
        return torch.where(sees, 0.0, torch.finfo(torch.float32).min)[None, None]

    def rows(self, *, questions: bool) -> tuple[Tensor, Tensor]:
        """Rows of answers' predictions, with questions' before them if wanted; weights of rows."""
        rows, weights = [], []
        for first, question, answer in self.asked:
            begin = first if questions else first + question - 1
            rows.append(torch.arange(begin, first + question + answer))
            weights.append((rows[-1] >= first + question - 1).float().clamp_min(QUESTION_WEIGHT))
        return torch.cat(rows), torch.cat(weights)


def logits(model: Any, layout: Layout, rows: Tensor, *, full: bool, adapted: bool) -> Tensor:
    """Next-token logits of these rows, `[rows, vocabulary]`."""
    Adapted.use = layout.chunk_rows[None, :, None].float() if adapted else None
    hidden = model.model(
        input_ids=layout.ids, position_ids=layout.positions,
        attention_mask=layout.mask(full=full), use_cache=False,
    ).last_hidden_state  # fmt: skip
    Adapted.use = None
    found: Tensor = model.lm_head(hidden[0, rows])
    return found


class Prompts:
    """Prompts of a model's chat format."""

    def __init__(self, tokenizer: Any, seed: int) -> None:
        self._tokenizer = tokenizer
        self._rng = random.Random(seed)
        chat = [{"role": "user", "content": f"{INSTRUCTION}<DOCUMENTS>"}]
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        head, self._tail = text.split("<DOCUMENTS>")
        self.system: Ids = self._ids(head)
        found = natural_questions.load("dev")
        self._all = list({asked.passage: asked for asked in found}.values())
        self.train, self.test = self._all[:-KEPT], self._all[-KEPT:]

    def _ids(self, text: str) -> Ids:
        found: Ids = self._tokenizer(text, add_special_tokens=False).input_ids
        return found

    def near(self, pool: Sequence[Asked]) -> list[list[Asked]]:
        """For each of `pool` the others, whose passages are nearest first."""
        by_passage, embedder = {asked.passage: asked for asked in pool}, LocalEmbedder()
        embedder.start()
        passages = [asked.passage for asked in pool]
        questions = [asked.question for asked in pool]
        ranked = nearest(questions, passages, lambda texts: embedder.embed(texts)[0])
        embedder.close()
        return [
            [by_passage[p] for p in ranking if p != asked.passage]
            for asked, ranking in zip(pool, ranked, strict=True)
        ]

    def chunk(self, asked: Asked) -> Ids:
        return self._ids(f"{asked.passage.title}\n{asked.passage.text}\n\n")

    def question(self, asked: Asked, answer: str = "") -> tuple[Ids, Ids]:
        return self._ids(f"Question: {asked.question}?{self._tail}"), self._ids(answer)

    def passages(self, asked: Asked, others: Sequence[Asked]) -> list[Asked]:
        """Return it and its nearest ones in a drawn order."""
        drawn = [asked, *others[: PASSAGES - 1]]
        self._rng.shuffle(drawn)
        return drawn


def train(
    model: Any, parameters: Sequence[nn.Parameter], prompts: Prompts, steps: int, *, primer: bool
) -> Iterator[int]:
    """Train, and yield the number of every twentieth step."""
    optimiser = torch.optim.AdamW(parameters, lr=RATE, weight_decay=0.0)
    near = prompts.near(prompts.train)
    for step in range(1, steps + 1):
        place = step % len(near)
        drawn = prompts.passages(prompts.train[place], near[place])
        others = [each for each in near[place] if each not in drawn][:PRIMER] if primer else []
        before = [i for each in others[::-1] for i in prompts.chunk(each)]
        chunks = [prompts.chunk(each) for each in drawn]
        asked = [prompts.question(each, each.answers[0]) for each in drawn]
        layout = Layout.of(prompts.system, before, chunks, asked)
        taught = Layout.of(prompts.system, [], chunks, asked)
        rows, weights = layout.rows(questions=True)
        with torch.no_grad():
            wanted = logits(
                model, taught, taught.rows(questions=True)[0], full=True, adapted=False
            ).log_softmax(-1)
        own = logits(model, layout, rows, full=False, adapted=True).log_softmax(-1)
        kl = (wanted.exp() * (wanted - own)).sum(-1)
        for group in optimiser.param_groups:
            group["lr"] = RATE * min(1.0, step / WARM_UP)
        optimiser.zero_grad()
        loss = (kl * weights).sum() / weights.sum()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        if step % 20 == 0 or step == steps:
            print(f"{step} steps, the last one's loss {loss:.4f}", file=sys.stderr, flush=True)
            yield step


@torch.no_grad()
def measure(model: Any, prompts: Prompts, count: int) -> dict[str, list[float]]:
    """KL per token of answers to kept questions, by what chunks were computed with."""
    found: dict[str, list[float]] = {}
    near = prompts.near(prompts.test)
    primers = prompts.near([*prompts.test[:count], *prompts.train])
    kept = set(prompts.test)
    for place, asked in enumerate(prompts.test[:count]):
        chunks = [prompts.chunk(each) for each in prompts.passages(asked, near[place])]
        others = [each for each in primers[place] if each not in kept][:PRIMER]
        question, _ = prompts.question(asked)
        prompt = torch.tensor([[*prompts.system, *(i for c in chunks for i in c), *question]])
        said = model.generate(prompt, max_new_tokens=ANSWER, do_sample=False)
        answer: Ids = said[0, prompt.shape[1] :].tolist()
        for name, primer in (("S", []), ("primer", others)):
            before = [i for each in primer for i in prompts.chunk(each)]
            layout = Layout.of(prompts.system, before, chunks, [(question, answer)])
            rows = layout.rows(questions=False)[0][:-1]
            wanted = logits(model, layout, rows, full=True, adapted=False)
            for adapted in (False, True):
                own = logits(model, layout, rows, full=False, adapted=adapted)
                key = f"behind {name}{', adapted' * adapted}"
                found.setdefault(key, []).append(float(divergence(wanted, own).mean()))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", type=Path, required=True, help="a model folder")
    add("--out", type=Path, required=True, help="a folder for the adapter")
    add("--steps", type=int, default=0)
    add("--primer", action="store_true", help="train behind three passages")
    add("--rank", type=int, default=16)
    add("--questions", type=int, default=20, help="that are measured")
    add("--threads", type=int, default=1)
    add("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    parameters = adapt(model, args.rank)
    prompts = Prompts(AutoTokenizer.from_pretrained(args.model), args.seed)
    if (args.out / WEIGHTS).exists():
        read(args.out, parameters)
    elif not args.steps:
        parser.error(f"{args.out / WEIGHTS} is not there: give --steps")
    trained = [*parameters.values()]
    for _ in train(model, trained, prompts, args.steps, primer=args.primer):
        write(args.out, parameters, args.rank, str(args.model))
    for name, values in measure(model, prompts, args.questions).items():
        kl = Bootstrap(len(values)).mean(values)
        print(f"{name}: KL {kl.mean:.4f} [{kl.low:.4f}, {kl.high:.4f}], {len(values)} questions")
    return 0


if __name__ == "__main__":
    sys.exit(main())
