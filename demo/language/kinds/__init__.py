"""The four kinds of entity that the demo's documents are about, with eight attributes each."""

from demo.language.kinds.firm import FIRM
from demo.language.kinds.person import PERSON
from demo.language.kinds.relation import Relation
from demo.language.kinds.ship import SHIP
from demo.language.kinds.town import TOWN

__all__ = ["KINDS", "Relation"]

KINDS: dict[str, tuple[Relation, ...]] = {
    "person": PERSON,
    "town": TOWN,
    "ship": SHIP,
    "firm": FIRM,
}
