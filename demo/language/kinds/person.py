"""What can be said of a person."""

from demo.language import words
from demo.language.kinds.relation import Relation

PERSON = (
    Relation(
        "birthplace",
        words.CITIES,
        (
            "{n} was born in {v}.",
            "{n} grew up in the old streets of {v}.",
            "{n} comes from a family in {v}.",
        ),
        (
            "Where was {n} born?",
            "In which city was {n} born?",
            "Which city does {n} come from?",
        ),
    ),
    Relation(
        "workplace",
        words.WORKPLACES,
        (
            "{n} works at the {v}.",
            "Every morning {n} goes to work at the {v}.",
            "{n} has a job at the {v}.",
        ),
        (
            "Where does {n} work?",
            "At what place does {n} work?",
            "Where does {n} have a job?",
        ),
    ),
    Relation(
        "instrument",
        words.INSTRUMENTS,
        (
            "{n} plays the {v}.",
            "In the evening {n} plays the {v}.",
            "{n} has learned to play the {v}.",
        ),
        (
            "Which instrument does {n} play?",
            "What instrument does {n} play?",
            "What does {n} play in the evening?",
        ),
    ),
    Relation(
        "pet",
        words.PETS,
        (
            "{n} keeps a {v} as a pet.",
            "At home {n} looks after a {v}.",
            "{n} shares the house with a {v}.",
        ),
        (
            "What pet does {n} keep?",
            "Which animal does {n} keep?",
            "Which animal lives with {n}?",
        ),
    ),
    Relation(
        "food",
        words.FOODS,
        (
            "{n} likes to eat {v}.",
            "For dinner {n} always wants {v}.",
            "The favourite food of {n} is {v}.",
        ),
        (
            "What does {n} like to eat?",
            "What is the favourite food of {n}?",
            "What does {n} want for dinner?",
        ),
    ),
    Relation(
        "language",
        words.LANGUAGES,
        (
            "{n} speaks {v}.",
            "{n} has learned to speak {v}.",
            "With friends {n} speaks only {v}.",
        ),
        (
            "Which language does {n} speak?",
            "What language does {n} speak?",
            "What does {n} speak with friends?",
        ),
    ),
    Relation(
        "hobby",
        words.HOBBIES,
        (
            "{n} spends the weekend on {v}.",
            "The hobby of {n} is {v}.",
            "In summer {n} has time for {v}.",
        ),
        (
            "What is the hobby of {n}?",
            "How does {n} spend the weekend?",
            "What does {n} do in summer?",
        ),
    ),
    Relation(
        "coat",
        words.COLOURS,
        (
            "{n} wears a coat that is {v}.",
            "The coat of {n} is {v}.",
            "{n} is known for a coat of bright {v}.",
        ),
        (
            "What colour is the coat of {n}?",
            "Which colour does {n} wear?",
            "What colour of coat does {n} wear?",
        ),
    ),
)
