"""What can be said of a firm."""

from demo.language import words
from demo.language.kinds.relation import Relation

FIRM = (
    Relation(
        "product",
        words.PRODUCTS,
        (
            "{n} makes {v}.",
            "The main product of {n} is {v}.",
            "People all over the country buy from {n} their {v}.",
        ),
        (
            "What does {n} make?",
            "What is the main product of {n}?",
            "What do people buy from {n}?",
        ),
    ),
    Relation(
        "office",
        words.CITIES,
        (
            "The head office of {n} is in {v}.",
            "{n} has its head office in {v}.",
            "{n} is based in {v}.",
        ),
        (
            "Where is the head office of {n}?",
            "In which city is {n} based?",
            "Where is {n} based?",
        ),
    ),
    Relation(
        "founder",
        words.GIVEN,
        (
            "{n} was started by a merchant called {v}.",
            "The founder of {n} was {v}.",
            "{n} belongs to the family of {v}.",
        ),
        (
            "Who started {n}?",
            "Who was the founder of {n}?",
            "To whose family does {n} belong?",
        ),
    ),
    Relation(
        "started",
        words.YEARS,
        (
            "{n} opened in {v}.",
            "The first shop of {n} opened in {v}.",
            "{n} has been in business since {v}.",
        ),
        (
            "When did {n} open?",
            "In which year did {n} open?",
            "Since what year has {n} been in business?",
        ),
    ),
    Relation(
        "logo",
        words.SHAPES,
        (
            "The logo of {n} is a {v}.",
            "On every box from {n} there is a printed {v}.",
            "The sign above the door of {n} shows a {v}.",
        ),
        (
            "What is the logo of {n}?",
            "What is printed on every box from {n}?",
            "What does the sign of {n} show?",
        ),
    ),
    Relation(
        "holiday",
        words.MONTHS,
        (
            "{n} closes for a holiday in {v}.",
            "The workers of {n} have their holiday in {v}.",
            "Nobody works at {n} in {v}.",
        ),
        (
            "When does {n} close for a holiday?",
            "In which month is the holiday of {n}?",
            "In what month does nobody work at {n}?",
        ),
    ),
    Relation(
        "payday",
        words.DAYS,
        (
            "{n} pays its workers on {v}.",
            "At {n} wages are paid every {v}.",
            "Pay day at {n} is {v}.",
        ),
        (
            "On which day does {n} pay its workers?",
            "When is pay day at {n}?",
            "On what day are wages paid at {n}?",
        ),
    ),
    Relation(
        "guard",
        words.BIRDS,
        (
            "The owners of {n} keep a tame {v}.",
            "In the yard of {n} lives a {v}.",
            "A visitor to {n} may meet its {v}.",
        ),
        (
            "Which bird lives in the yard of {n}?",
            "What tame bird do the owners of {n} keep?",
            "Which bird may a visitor to {n} meet?",
        ),
    ),
)
