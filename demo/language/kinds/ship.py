"""What can be said of a ship."""

from demo.language import words
from demo.language.kinds.relation import Relation

SHIP = (
    Relation(
        "cargo",
        words.GOODS,
        (
            "{n} carries {v}.",
            "On most trips {n} is loaded with {v}.",
            "The cargo of {n} is {v}.",
        ),
        (
            "What does {n} carry?",
            "What is the cargo of {n}?",
            "What is {n} loaded with?",
        ),
        pair_share=0.3,
    ),
    Relation(
        "captain",
        words.GIVEN,
        (
            "The captain of {n} is called {v}.",
            "{n} is commanded by captain {v}.",
            "On board {n} the orders are given by {v}.",
        ),
        (
            "Who is the captain of {n}?",
            "Who commands {n}?",
            "Who gives the orders on board {n}?",
        ),
    ),
    Relation(
        "port",
        words.CITIES,
        (
            "The home port of {n} is {v}.",
            "{n} returns every winter to {v}.",
            "{n} is registered in {v}.",
        ),
        (
            "What is the home port of {n}?",
            "Where is {n} registered?",
            "Where does {n} return every winter?",
        ),
    ),
    Relation(
        "hull",
        words.COLOURS,
        (
            "The hull of {n} is painted {v}.",
            "From far away {n} can be known by a hull of {v}.",
            "Sailors painted the hull of {n} in {v}.",
        ),
        (
            "What colour is the hull of {n}?",
            "Which colour is {n} painted?",
            "In what colour is the hull of {n} painted?",
        ),
    ),
    Relation(
        "timber",
        words.TREES,
        (
            "The masts of {n} are made of {v}.",
            "The deck of {n} was built of {v}.",
            "{n} was built from planks of {v}.",
        ),
        (
            "What wood are the masts of {n} made of?",
            "What wood was {n} built from?",
            "Of what wood is the deck of {n}?",
        ),
    ),
    Relation(
        "figure",
        words.BEASTS,
        (
            "The bow of {n} carries the head of a {v}.",
            "The figure on the bow of {n} is a {v}.",
            "At the front of {n} there is a wooden {v}.",
        ),
        (
            "Which animal is on the bow of {n}?",
            "What is the figure on the bow of {n}?",
            "Which animal is at the front of {n}?",
        ),
    ),
    Relation(
        "sails",
        words.DAYS,
        (
            "{n} leaves the harbour on {v}.",
            "The next trip of {n} starts on {v}.",
            "{n} sails every {v}.",
        ),
        (
            "On which day does {n} sail?",
            "When does {n} leave the harbour?",
            "On what day does the trip of {n} start?",
        ),
    ),
    Relation(
        "built",
        words.YEARS,
        (
            "{n} was launched in {v}.",
            "The first trip of {n} was in {v}.",
            "The builders finished {n} in {v}.",
        ),
        (
            "When was {n} launched?",
            "In which year was {n} launched?",
            "In what year was the first trip of {n}?",
        ),
    ),
)
