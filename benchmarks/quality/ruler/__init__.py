"""RULER's thirteen tasks (Hsieh et al. 2024, arXiv:2404.06654), generated to any length.

Prompts are word for word those of NVIDIA/RULER@c3f5e3b; what a sample holds is drawn anew, from our
word lists and our random numbers, so samples are not the official ones. Beyond that:

- The official scripts find one size for all samples and shuffle all of them alike; here every
  sample fills its length by itself and has its own order.
- Keys, values and names of a sample are all different.
- A needle at the very start or end of the essays has no stray blank beside it.
- vt and cwe: the worked example stands inside the one user turn, as vt has it officially (cwe
  repeats the chat template for it); below 4,000 tokens that of vt shrinks with the length.
- cwe: where the words run out (about 25,000 tokens), pairs of them join the rare ones; officially
  another, longer list replaces them all.
- fwe: never so short that the third and the fourth word tie.
- qa: documents are never repeated; of HotpotQA's ten paragraphs the supporting ones are the gold
  documents, so that short prompts are possible, and the others are the first distractors.
"""

from benchmarks.quality.ruler.suite import generate, tasks
from benchmarks.quality.ruler.words import ENGLISH, Words

__all__ = ["ENGLISH", "Words", "generate", "tasks"]
