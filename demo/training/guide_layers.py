"""Which layers are shown where to look; all of them were inserted unused in the first edition."""

PREVIOUS_LAYER = 1
"""Every token looks at the one before."""
HINT_LAYERS = (6, 8, 3)
"""A statement looks at the one it refers to, by depth; the last is
`demo.language.tasks.story.SUBJECT`."""
ANSWER_LAYER = 10
"""The place of an answer looks at the statement that gives it."""
COPY_LAYERS = (3, ANSWER_LAYER)
"""A copied token looks behind its earlier occurrence."""
