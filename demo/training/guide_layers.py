"""Which layers the guide trains. All of them were added, unused, to the model's first edition."""

PREVIOUS_LAYER = 1
"""Every token attends to the one before it."""
HINT_LAYERS = (6, 8, 3)
"""A statement attends to the one that it refers to; the index is a hint's depth. The last is for
`demo.language.tasks.story.SUBJECT`."""
ANSWER_LAYER = 10
"""The token before an answer attends to the statement that gives the answer."""
COPY_LAYERS = (3, ANSWER_LAYER)
"""A token that is copied attends to the token after its earlier occurrence."""
