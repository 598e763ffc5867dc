"""The tasks: prompt, metric and answer length of each, as in LongBench's `config` and `eval.py`.

Prompts are the official ones to the letter, misprints included. The few-shot and code tasks are
asked without a chat template, and only the first line of an answer to a few-shot task counts.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """A task. `prompt` contains {context} once and, after it, {input} at most once."""

    prompt: str
    metric: str
    answer_tokens: int
    chat: bool = True
    stop: tuple[str, ...] = ()


_PASSAGES = (
    "Answer the question based on the given passages. Only give me the answer and do not output "
    "any other words.\n\nThe following are given passages.\n{context}\n\nAnswer the question based "
    "on the given passages. Only give me the answer and do not output any other words.\n\n"
    "Question: {input}\nAnswer:"
)

TASKS = {
    "narrativeqa": Task(
        "You are given a story, which can be either a novel or a movie script, and a question. "
        "Answer the question asconcisely as you can, using a single phrase if possible. Do not "
        "provide any explanation.\n\nStory: {context}\n\nNow, answer the question based on the "
        "story asconcisely as you can, using a single phrase if possible. Do not provide any "
        "explanation.\n\nQuestion: {input}\n\nAnswer:",
        "qa_f1",
        128,
    ),
    "qasper": Task(
        "You are given a scientific article and a question. Answer the question as concisely as "
        "you can, using a single phrase or sentence if possible. If the question cannot be "
        'answered based on the information in the article, write "unanswerable". If the question '
        'is a yes/no question, answer "yes", "no", or "unanswerable". Do not provide any '
        "explanation.\n\nArticle: {context}\n\n Answer the question based on the above article as "
        "concisely as you can, using a single phrase or sentence if possible. If the question "
        'cannot be answered based on the information in the article, write "unanswerable". If the '
        'question is a yes/no question, answer "yes", "no", or "unanswerable". Do not provide any '
        "explanation.\n\nQuestion: {input}\n\nAnswer:",
        "qa_f1",
        128,
    ),
    "multifieldqa_en": Task(
        "Read the following text and answer briefly.\n\n{context}\n\nNow, answer the following "
        "question based on the above text, only give me the answer and do not output any other "
        "words.\n\nQuestion: {input}\nAnswer:",
        "qa_f1",
        64,
    ),
    "hotpotqa": Task(_PASSAGES, "qa_f1", 32),
    "2wikimqa": Task(_PASSAGES, "qa_f1", 32),
    "musique": Task(_PASSAGES, "qa_f1", 32),
    "gov_report": Task(
        "You are given a report by a government agency. Write a one-page summary of the report."
        "\n\nReport:\n{context}\n\nNow, write a one-page summary of the report.\n\nSummary:",
        "rouge_l",
        512,
    ),
    "qmsum": Task(
        "You are given a meeting transcript and a query containing a question or instruction. "
        "Answer the query in one or more sentences.\n\nTranscript:\n{context}\n\nNow, answer the "
        "query based on the above meeting transcript in one or more sentences.\n\n"
        "Query: {input}\nAnswer:",
        "rouge_l",
        512,
    ),
    "multi_news": Task(
        "You are given several news passages. Write a one-page summary of all news. \n\nNews:\n"
        "{context}\n\nNow, write a one-page summary of all the news.\n\nSummary:",
        "rouge_l",
        512,
    ),
    "trec": Task(
        "Please determine the type of the question below. Here are some examples of questions."
        "\n\n{context}\n{input}",
        "classification_first_line",
        64,
        chat=False,
    ),
    "triviaqa": Task(
        "Answer the question based on the given passage. Only give me the answer and do not output "
        "any other words. The following are some examples.\n\n{context}\n\n{input}",
        "qa_f1_first_line",
        32,
        chat=False,
    ),
    "samsum": Task(
        "Summarize the dialogue into a few short sentences. The following are some examples."
        "\n\n{context}\n\n{input}",
        "rouge_l_first_line",
        128,
        chat=False,
        stop=("\n",),
    ),
    "passage_count": Task(
        "There are some paragraphs below sourced from Wikipedia. Some of them may be duplicates. "
        "Please carefully read these paragraphs and determine how many unique paragraphs there are "
        "after removing duplicates. In other words, how many non-repeating paragraphs are there in "
        "total?\n\n{context}\n\nPlease enter the final count of unique paragraphs after removing "
        "duplicates. The output format should only contain the number, such as 1, 2, 3, and so on."
        "\n\nThe final answer is: ",
        "count",
        32,
    ),
    "passage_retrieval_en": Task(
        "Here are 30 paragraphs from Wikipedia, along with an abstract. Please determine which "
        "paragraph the abstract is from.\n\n{context}\n\nThe following is an abstract.\n\n{input}"
        "\n\nPlease enter the number of the paragraph that the abstract is from. The answer format "
        'must be like "Paragraph 1", "Paragraph 2", etc.\n\nThe answer is: ',
        "retrieval",
        32,
    ),
    "lcc": Task(
        "Please complete the code given below. \n{context}Next line of code:\n",
        "edit_similarity",
        64,
        chat=False,
    ),
    "repobench-p": Task(
        "Please complete the code given below. \n{context}{input}Next line of code:\n",
        "edit_similarity",
        64,
        chat=False,
    ),
}

KVEC_TASKS = tuple(TASKS)
"""The tasks that K-VEC reports: all."""

E_TASKS = (
    "qasper_e", "multifieldqa_en_e", "hotpotqa_e", "2wikimqa_e", "gov_report_e", "multi_news_e",
    "trec_e", "triviaqa_e", "samsum_e", "passage_count_e", "passage_retrieval_en_e", "lcc_e",
    "repobench-p_e",
)  # fmt: skip
"""The tasks of LongBench-E: other samples, with evenly spread lengths."""

A3_TASKS = tuple(t for t in E_TASKS if t not in ("passage_retrieval_en_e", "repobench-p_e"))
"""The tasks that A3 reports; its figures are those of LongBench-E."""
