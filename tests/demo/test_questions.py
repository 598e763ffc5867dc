"""When an answer of the demo is right."""

import pytest

from demo.questions import DemoQuestion

FACT = DemoQuestion("How many?", ("twenty-eight", "28"), ("a",))
NUMBER = DemoQuestion("How many litres?", ("2,600",), ("a",))
POTS = DemoQuestion("How many pots?", ("eighteen thousand", "18,000"), ("a",))
LARGER = DemoQuestion("Larger?", ("Haverling",), ("a", "b"), "comparison", ("Kettlemoor",))
ABSENT = DemoQuestion("Who?", (), (), "absent")


@pytest.mark.parametrize(
    ("question", "text", "right"),
    [
        (FACT, "There are Twenty-eight days.", True),
        (FACT, "There are twenty eight days.", True),
        (FACT, "28.", True),
        (FACT, "There are 128 days, or 28.5.", False),
        (FACT, "", False),
        (NUMBER, "It holds 2600 people", True),
        (NUMBER, "It holds 2,600 people", True),
        (NUMBER, "It holds 12,600 people", False),
        (NUMBER, "It holds 26 hundred people", True),
        (POTS, "It recalled 18 thousand pots", True),
        (POTS, "It recalled 118 thousand pots", False),
        (POTS, "It recalled 1.18 thousand pots", False),
        (DemoQuestion("On which day?", ("Tuesday",), ("a",)), "On Tuesdays.", True),
        (DemoQuestion("Who?", ("Osei",), ("a",)), "It is Osei's bakery.", True),
        (DemoQuestion("Which?", ("five", "5"), ("a",)), "It is 3.5 bar", False),
        (LARGER, "Haverling is larger than Kettlemoor.", True),
        (LARGER, "Kettlemoor is larger than Haverling.", False),
        (LARGER, "Neither.", False),
        (ABSENT, "The documents do not mention a mayor.", True),
        (ABSENT, "That isn't stated in the documents.", True),
        (ABSENT, "There is no information about it.", True),
        (ABSENT, "The mayor is Ingeborg Thale.", False),
        (ABSENT, "It does not rain there.", False),
    ],
)
def test_right_or_wrong(question: DemoQuestion, text: str, right: bool) -> None:
    assert question.is_right(text) is right
