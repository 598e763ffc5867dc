"""What can be said of a town."""

from demo.language import words
from demo.language.kinds.relation import Relation

TOWN = (
    Relation(
        "goods",
        words.GOODS,
        (
            "{n} is famous for its {v}.",
            "Traders come to {n} to buy {v}.",
            "Most families in {n} sell {v}.",
        ),
        (
            "What is {n} famous for?",
            "What do traders buy in {n}?",
            "What do families in {n} sell?",
        ),
        pair_share=0.3,
    ),
    Relation(
        "market",
        words.DAYS,
        (
            "The market of {n} is held on {v}.",
            "Farmers drive to {n} for the market on {v}.",
            "In {n} the market opens every {v}.",
        ),
        (
            "On which day is the market of {n}?",
            "When does the market of {n} open?",
            "On what day does {n} hold its market?",
        ),
    ),
    Relation(
        "river",
        words.RIVERS,
        (
            "{n} lies on the river {v}.",
            "A bridge in {n} crosses the {v}.",
            "The mills of {n} stand by the {v}.",
        ),
        (
            "Which river does {n} lie on?",
            "On which river is {n}?",
            "Which river does the bridge in {n} cross?",
        ),
    ),
    Relation(
        "tree",
        words.TREES,
        (
            "The main street of {n} is lined with {v} trees.",
            "In the park of {n} stands a tall {v}.",
            "Around {n} grows a forest of {v}.",
        ),
        (
            "Which tree grows in {n}?",
            "What tree stands in the park of {n}?",
            "What kind of tree grows around {n}?",
        ),
    ),
    Relation(
        "stone",
        words.STONES,
        (
            "The houses of {n} are built of {v}.",
            "The tower of {n} is made of {v}.",
            "The walls around {n} are {v}.",
        ),
        (
            "What are the houses of {n} built of?",
            "What is the tower of {n} made of?",
            "Of what are the walls of {n} made?",
        ),
    ),
    Relation(
        "bird",
        words.BIRDS,
        (
            "The flag of {n} shows a {v}.",
            "On the gate of {n} there is a carved {v}.",
            "The symbol of {n} is the {v}.",
        ),
        (
            "Which bird is on the flag of {n}?",
            "What is the symbol of {n}?",
            "Which bird does the flag of {n} show?",
        ),
    ),
    Relation(
        "festival",
        words.MONTHS,
        (
            "{n} holds its festival in {v}.",
            "The great festival of {n} takes place in {v}.",
            "Visitors come to {n} for the festival in {v}.",
        ),
        (
            "When is the festival of {n}?",
            "In which month does {n} hold its festival?",
            "In what month is the festival of {n}?",
        ),
    ),
    Relation(
        "founded",
        words.YEARS,
        (
            "{n} was founded in {v}.",
            "The first houses of {n} were built in {v}.",
            "The history of {n} begins in {v}.",
        ),
        (
            "When was {n} founded?",
            "In which year was {n} founded?",
            "In what year does the history of {n} begin?",
        ),
    ),
)
