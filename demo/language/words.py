"""Closed word lists of the demo language and the syllables of its open names.

Every word of these lists is a single token, so that most answers take one decoding step. Open names
are built from two syllables and are not listed: the model can only copy them from a document, which
is what the demo is meant to show.
"""

from __future__ import annotations


def _split(words: str) -> tuple[str, ...]:
    return tuple(words.split())


GIVEN = _split(
    "Mara Jonas Elena Viktor Nadia Oskar Paula Tomas Irene Felix Greta Hugo Lena Marco Nora "
    "Otto  Petra Quentin Rosa Samuel Ursula Walter Yvonne Albert Bella Conrad Diana Edgar Fiona "
    "Gilbert Hanna Igor Julia Karl Louisa Martin Ophelia Rupert Sylvia"
)
TOWN_PREFIX = _split("Port Mount Fort Saint New Old Upper Lower North South Lake Castle")
SHIP_PREFIX = _split(
    "Silver Golden Crimson Royal Swift Proud Gentle Northern Brave Lucky Iron Quiet"
)
FIRM_SUFFIX = _split("Works Brothers Trading Company Partners Factory House Group Supply Union")

CITIES = _split(
    "Oslo Lisbon Vienna Dublin Geneva Athens Cairo Lima Boston Prague Madrid Berlin Tokyo Seoul "
    "Havana Denver Milan Turin Naples Kyoto Delhi Quito Bergen Malta"
)
WORKPLACES = _split(
    "hospital harbour museum library bakery theatre prison university bank laboratory hotel "
    "school observatory court garden mill brewery post"
)
INSTRUMENTS = _split(
    "violin piano flute trumpet harp guitar cello organ drum clarinet banjo oboe lute accordion "
    "tuba mandolin"
)
PETS = _split(
    "cat dog parrot rabbit tortoise goat pony ferret hamster canary donkey hen lizard goose"
)
FOODS = _split(
    "soup rice bread pasta fish lamb cake pie salad omelette stew curry porridge pancakes beans "
    "mushrooms"
)
LANGUAGES = _split(
    "French German Spanish Italian Greek Polish Russian Arabic Hindi Turkish Dutch Swedish "
    "Danish  Korean Latin Welsh"
)
HOBBIES = _split(
    "chess painting gardening fishing sailing climbing dancing singing reading cooking swimming "
    "running pottery knitting archery photography"
)
MONTHS = _split(
    "January February March April May June July August September October November December"
)
DAYS = _split("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
COLOURS = _split("red blue green yellow white black purple orange grey brown pink turquoise")
GOODS = _split(
    "honey cheese wool salt copper silk timber coal wine glass sugar coffee cotton leather "
    "paper  olives spices marble wheat amber"
)
RIVERS = _split("Danube Rhine Volga Tagus Elbe Loire Oder Seine Thames Ganges Nile Amur Congo Po")
TREES = _split("oak birch willow maple cedar pine elm chestnut poplar cherry linden walnut")
STONES = _split("granite limestone slate sandstone brick basalt clay flint chalk jade")
BIRDS = _split("eagle falcon owl heron swan raven stork crane robin pelican sparrow peacock")
BEASTS = _split("lion bear wolf fox stag horse dragon bull tiger whale dolphin boar")
YEARS = tuple(str(year) for year in range(1804, 1996, 6))
PRODUCTS = _split(
    "clocks bicycles shoes lamps pianos candles boots carpets mirrors umbrellas knives bottles "
    "chairs kettles toys ropes engines cameras pencils hats"
)
SHAPES = _split("star circle triangle crown anchor arrow moon sun cross wheel key leaf")

SYLLABLES_FIRST = _split(
    "Vel Tor Bran Kes Lor Mir Dal Gar Hol Fen Sar Wol Zan Rud Pel Nor Ost Jar Kel Bru Thal Cor "
    "Dun Ral Sel Tam Ul Var Yor Zel Ban Cal Dro Eld Fal Gri Hal Ist Kor Lum Mor Nes Orl Pra Ros "
    "Ste Tri Ven Wes Bel"
)
SYLLABLES_LAST = _split(
    "en vik dor mar ska lin tov ric hagen brook ley nar oth und ira ova ulf and ell ing ost ham "
    "by mund gar eth olf wyn sen dal"
)

CLOSED: tuple[str, ...] = tuple(
    dict.fromkeys(
        GIVEN
        + TOWN_PREFIX
        + SHIP_PREFIX
        + FIRM_SUFFIX
        + CITIES
        + WORKPLACES
        + INSTRUMENTS
        + PETS
        + FOODS
        + LANGUAGES
        + HOBBIES
        + MONTHS
        + DAYS
        + COLOURS
        + GOODS
        + RIVERS
        + TREES
        + STONES
        + BIRDS
        + BEASTS
        + YEARS
        + PRODUCTS
        + SHAPES
    )
)
