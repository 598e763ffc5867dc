"""The exported folder: loads with transformers, computes the same, answers from documents."""

import json
import random
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

import demo
from demo.corpus_files import read_documents, read_questions
from demo.language.tasks import LEARNT, TASKS
from demo.language.vocabulary import BOS_ID, EOS_ID, build_tokenizer
from demo.training.decoder import Decoder, DecoderConfig
from demo.training.evaluate_tasks import accuracy, task_rows
from demo.training.export import export
from demo.training.load import load_plain
from demo.training.optimizer import MasterOptimizer
from demo.training.rows import Packer
from demo.training.samples import View

transformers = pytest.importorskip("transformers")
MODEL = Path(demo.__file__).parents[1] / "service" / "demo_model"
TINY = DecoderConfig(hidden_size=64, intermediate_size=96, num_hidden_layers=2, head_dim=16)


def test_plain_decoder_and_transformers_agree(tmp_path: Path) -> None:
    decoder = Decoder(TINY, seed=3).bfloat16().float()
    for parameter in decoder.parameters():
        parameter.data.mul_(4)
    export(decoder, MasterOptimizer(decoder).master, tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    ids = torch.randint(3, 1000, (2, 40), generator=torch.Generator().manual_seed(1))
    mask = torch.full((40, 40), -1e9).triu(1).expand(2, 1, 40, 40)
    with torch.no_grad():
        ours = decoder.logits(decoder(ids, torch.arange(40).expand(2, 40), mask))
        assert torch.allclose(ours.bfloat16().float(), theirs(ids).logits, atol=0.05)
        assert (ours.argmax(-1) == theirs(ids).logits.argmax(-1)).float().mean() > 0.95


def test_shipped_weights_are_small_and_deep_enough() -> None:
    assert (MODEL / "model.safetensors").stat().st_size < 15 * 2**20
    config = transformers.AutoConfig.from_pretrained(MODEL)
    assert config.num_hidden_layers >= 12
    assert config.tie_word_embeddings


def test_shipped_tokenizer_is_the_built_one() -> None:
    shipped = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    theirs = transformers.AutoTokenizer.from_pretrained(MODEL)
    for document in read_documents()[:8]:
        ids = build_tokenizer().encode(document.text).ids
        assert shipped.encode(document.text).ids == ids
        assert theirs.encode(document.text, add_special_tokens=False) == ids
    assert (theirs.bos_token_id, theirs.eos_token_id) == (BOS_ID, EOS_ID)


def test_shipped_model_answers_held_out_questions() -> None:
    from demo.measuring.answering import Answerer

    documents = {d.doc_id: d for d in read_documents()}
    rng = random.Random(5)
    questions = rng.sample(read_questions(), 20)
    answerer = Answerer(MODEL)
    right = 0
    for question in questions:
        others = rng.sample([d for d in documents.values() if d.doc_id != question.doc_id], 2)
        context = [documents[question.doc_id], *others]
        rng.shuffle(context)
        right += answerer.answer(context, question.question) == question.answer
    assert right >= 16


def test_accuracies_bear_out_which_tasks_are_learnt() -> None:
    report = json.loads((Path(demo.__file__).parent / "measuring" / "accuracy.json").read_text())
    assert set(report["tasks"]) == set(TASKS)
    learnt = [task for task, found in report["tasks"].items() if found["full"] >= 0.8]
    assert tuple(learnt) == LEARNT
    assert report["demo_corpus"]["exact_match_full"] >= 0.95


@pytest.mark.parametrize("task", ("pronoun", "list", "chain"))
def test_stitched_chunks_cost_the_shipped_model_its_answers(task: str) -> None:
    rows = task_rows(Packer(build_tokenizer()), task, stories=6, questions=4, seed=11)
    model = load_plain(MODEL)
    assert accuracy(model, rows, View.FULL) > accuracy(model, rows, View.BARE) + 0.15
