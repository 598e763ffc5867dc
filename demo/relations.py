"""What can be said of each kind of entity: sentence and question templates per attribute.

`{n}` is the entity's name, `{v}` the value. The name always precedes the value, so that a causal
model can bind the value to its owner while it reads; sentences are otherwise ordinary prose.
"""

from __future__ import annotations

from dataclasses import dataclass

from demo import words


@dataclass(frozen=True)
class Relation:
    """One attribute of a kind of entity.

    `pair_share` is the share of documents in which the value is a list of two ("honey and salt").
    """

    key: str
    values: tuple[str, ...]
    sentences: tuple[str, ...]
    questions: tuple[str, ...]
    pair_share: float = 0.0


def _r(
    key: str, values: tuple[str, ...], sentences: str, questions: str, pair_share: float = 0.0
) -> Relation:
    split = lambda text: tuple(part.strip() for part in text.split("|"))  # noqa: E731
    return Relation(key, values, split(sentences), split(questions), pair_share)


PERSON = (
    _r("birthplace", words.CITIES,
       "{n} was born in {v}.|{n} grew up in the old streets of {v}.|{n} comes from a family in {v}.",
       "Where was {n} born?|In which city was {n} born?|Which city does {n} come from?"),
    _r("workplace", words.WORKPLACES,
       "{n} works at the {v}.|Every morning {n} goes to work at the {v}.|{n} has a job at the {v}.",
       "Where does {n} work?|At what place does {n} work?|Where does {n} have a job?"),
    _r("instrument", words.INSTRUMENTS,
       "{n} plays the {v}.|In the evening {n} plays the {v}.|{n} has learned to play the {v}.",
       "Which instrument does {n} play?|What instrument does {n} play?|What does {n} play in the evening?"),
    _r("pet", words.PETS,
       "{n} keeps a {v} as a pet.|At home {n} looks after a {v}.|{n} shares the house with a {v}.",
       "What pet does {n} keep?|Which animal does {n} keep?|Which animal lives with {n}?"),
    _r("food", words.FOODS,
       "{n} likes to eat {v}.|For dinner {n} always wants {v}.|The favourite food of {n} is {v}.",
       "What does {n} like to eat?|What is the favourite food of {n}?|What does {n} want for dinner?"),
    _r("language", words.LANGUAGES,
       "{n} speaks {v}.|{n} has learned to speak {v}.|With friends {n} speaks only {v}.",
       "Which language does {n} speak?|What language does {n} speak?|What does {n} speak with friends?"),
    _r("hobby", words.HOBBIES,
       "{n} spends the weekend on {v}.|The hobby of {n} is {v}.|In summer {n} has time for {v}.",
       "What is the hobby of {n}?|How does {n} spend the weekend?|What does {n} do in summer?"),
    _r("coat", words.COLOURS,
       "{n} wears a coat that is {v}.|The coat of {n} is {v}.|{n} is known for a coat of bright {v}.",
       "What colour is the coat of {n}?|Which colour does {n} wear?|What colour of coat does {n} wear?"),
)
TOWN = (
    _r("goods", words.GOODS,
       "{n} is famous for its {v}.|Traders come to {n} to buy {v}.|Most families in {n} sell {v}.",
       "What is {n} famous for?|What do traders buy in {n}?|What do families in {n} sell?", 0.3),
    _r("market", words.DAYS,
       "The market of {n} is held on {v}.|Farmers drive to {n} for the market on {v}.|In {n} the market opens every {v}.",
       "On which day is the market of {n}?|When does the market of {n} open?|On what day does {n} hold its market?"),
    _r("river", words.RIVERS,
       "{n} lies on the river {v}.|A bridge in {n} crosses the {v}.|The mills of {n} stand by the {v}.",
       "Which river does {n} lie on?|On which river is {n}?|Which river does the bridge in {n} cross?"),
    _r("tree", words.TREES,
       "The main street of {n} is lined with {v} trees.|In the park of {n} stands a tall {v}.|Around {n} grows a forest of {v}.",
       "Which tree grows in {n}?|What tree stands in the park of {n}?|What kind of tree grows around {n}?"),
    _r("stone", words.STONES,
       "The houses of {n} are built of {v}.|The tower of {n} is made of {v}.|The walls around {n} are {v}.",
       "What are the houses of {n} built of?|What is the tower of {n} made of?|Of what are the walls of {n} made?"),
    _r("bird", words.BIRDS,
       "The flag of {n} shows a {v}.|On the gate of {n} there is a carved {v}.|The symbol of {n} is the {v}.",
       "Which bird is on the flag of {n}?|What is the symbol of {n}?|Which bird does the flag of {n} show?"),
    _r("festival", words.MONTHS,
       "{n} holds its festival in {v}.|The great festival of {n} takes place in {v}.|Visitors come to {n} for the festival in {v}.",
       "When is the festival of {n}?|In which month does {n} hold its festival?|In what month is the festival of {n}?"),
    _r("founded", words.YEARS,
       "{n} was founded in {v}.|The first houses of {n} were built in {v}.|The history of {n} begins in {v}.",
       "When was {n} founded?|In which year was {n} founded?|In what year does the history of {n} begin?"),
)
SHIP = (
    _r("cargo", words.GOODS,
       "{n} carries {v}.|On most trips {n} is loaded with {v}.|The cargo of {n} is {v}.",
       "What does {n} carry?|What is the cargo of {n}?|What is {n} loaded with?", 0.3),
    _r("captain", words.GIVEN,
       "The captain of {n} is called {v}.|{n} is commanded by captain {v}.|On board {n} the orders are given by {v}.",
       "Who is the captain of {n}?|Who commands {n}?|Who gives the orders on board {n}?"),
    _r("port", words.CITIES,
       "The home port of {n} is {v}.|{n} returns every winter to {v}.|{n} is registered in {v}.",
       "What is the home port of {n}?|Where is {n} registered?|Where does {n} return every winter?"),
    _r("hull", words.COLOURS,
       "The hull of {n} is painted {v}.|From far away {n} can be known by a hull of {v}.|Sailors painted the hull of {n} in {v}.",
       "What colour is the hull of {n}?|Which colour is {n} painted?|In what colour is the hull of {n} painted?"),
    _r("timber", words.TREES,
       "The masts of {n} are made of {v}.|The deck of {n} was built of {v}.|{n} was built from planks of {v}.",
       "What wood are the masts of {n} made of?|What wood was {n} built from?|Of what wood is the deck of {n}?"),
    _r("figure", words.BEASTS,
       "The bow of {n} carries the head of a {v}.|The figure on the bow of {n} is a {v}.|At the front of {n} there is a wooden {v}.",
       "Which animal is on the bow of {n}?|What is the figure on the bow of {n}?|Which animal is at the front of {n}?"),
    _r("sails", words.DAYS,
       "{n} leaves the harbour on {v}.|The next trip of {n} starts on {v}.|{n} sails every {v}.",
       "On which day does {n} sail?|When does {n} leave the harbour?|On what day does the trip of {n} start?"),
    _r("built", words.YEARS,
       "{n} was launched in {v}.|The first trip of {n} was in {v}.|The builders finished {n} in {v}.",
       "When was {n} launched?|In which year was {n} launched?|In what year was the first trip of {n}?"),
)
FIRM = (
    _r("product", words.PRODUCTS,
       "{n} makes {v}.|The main product of {n} is {v}.|People all over the country buy from {n} their {v}.",
       "What does {n} make?|What is the main product of {n}?|What do people buy from {n}?"),
    _r("office", words.CITIES,
       "The head office of {n} is in {v}.|{n} has its head office in {v}.|{n} is based in {v}.",
       "Where is the head office of {n}?|In which city is {n} based?|Where is {n} based?"),
    _r("founder", words.GIVEN,
       "{n} was started by a merchant called {v}.|The founder of {n} was {v}.|{n} belongs to the family of {v}.",
       "Who started {n}?|Who was the founder of {n}?|To whose family does {n} belong?"),
    _r("started", words.YEARS,
       "{n} opened in {v}.|The first shop of {n} opened in {v}.|{n} has been in business since {v}.",
       "When did {n} open?|In which year did {n} open?|Since what year has {n} been in business?"),
    _r("logo", words.SHAPES,
       "The logo of {n} is a {v}.|On every box from {n} there is a printed {v}.|The sign above the door of {n} shows a {v}.",
       "What is the logo of {n}?|What is printed on every box from {n}?|What does the sign of {n} show?"),
    _r("holiday", words.MONTHS,
       "{n} closes for a holiday in {v}.|The workers of {n} have their holiday in {v}.|Nobody works at {n} in {v}.",
       "When does {n} close for a holiday?|In which month is the holiday of {n}?|In what month does nobody work at {n}?"),
    _r("payday", words.DAYS,
       "{n} pays its workers on {v}.|At {n} wages are paid every {v}.|Pay day at {n} is {v}.",
       "On which day does {n} pay its workers?|When is pay day at {n}?|On what day are wages paid at {n}?"),
    _r("guard", words.BIRDS,
       "The owners of {n} keep a tame {v}.|In the yard of {n} lives a {v}.|A visitor to {n} may meet its {v}.",
       "Which bird lives in the yard of {n}?|What tame bird do the owners of {n} keep?|Which bird may a visitor to {n} meet?"),
)

KINDS: dict[str, tuple[Relation, ...]] = {
    "person": PERSON, "town": TOWN, "ship": SHIP, "firm": FIRM,
}
