"""When an answer of the demo is right."""

import pytest

from demo.questions import DemoQuestion

FACT = DemoQuestion("How many?", ("twenty-eight", "28"), ("a",))
NUMBER = DemoQuestion("How many litres?", ("2,600",), ("a",))
POTS = DemoQuestion("How many pots?", ("eighteen thousand", "18,000"), ("a",))
FEWER = DemoQuestion(
    "Which has fewer inhabitants?", ("Lindmoor",), ("a", "b"), "comparison", ("Haverling",)
)
EARLIER = DemoQuestion(
    "Which became independent earlier?", ("Ghana",), ("a", "b"), "comparison", ("Kenya",)
)
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
        (LARGER, "Haverling.", True),
        (LARGER, "Haverling is not larger than Kettlemoor.", False),
        (LARGER, "Haverling isn't the larger one.", False),
        (LARGER, "Haverling, not Kettlemoor, is larger.", True),
        (LARGER, "Haverling has 31,000 inhabitants, and Kettlemoor has 9,000.", False),
        (LARGER, "Haverling is smaller than Kettlemoor.", False),
        (FEWER, "Lindmoor has more.", False),
        (FEWER, "Lindmoor has the most inhabitants.", False),
        (FEWER, "Lindmoor has fewer inhabitants than Haverling.", True),
        (FEWER, "Haverling has fewer inhabitants than Lindmoor.", False),
        (FEWER, "Lindmoor has fewer, Haverling has more.", False),
        (EARLIER, "Ghana became independent before Kenya.", True),
        (EARLIER, "Ghana became independent later than Kenya.", False),
        (EARLIER, "Kenya became independent before Ghana.", False),
        (FACT, "There are not twenty-eight days.", False),
        (FACT, "It isn't twenty-eight.", False),
        (FACT, "It may not be more than twenty-eight.", True),
        (FACT, "It is not thirty but twenty-eight.", True),
        (FACT, "The documents do not mention twenty-eight days.", False),
        (ABSENT, "The documents do not mention a mayor.", True),
        (ABSENT, "That isn't stated in the documents.", True),
        (ABSENT, "There is no information about it.", True),
        (ABSENT, "The mayor is Ingeborg Thale.", False),
        (ABSENT, "It does not rain there.", False),
    ],
)
def test_right_or_wrong(question: DemoQuestion, text: str, right: bool) -> None:
    assert question.is_right(text) is right
