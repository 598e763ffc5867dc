"""The four kinds of entity the demo's documents are about; eight attributes each."""

from demo.kinds.firm import FIRM
from demo.kinds.person import PERSON
from demo.kinds.relation import Relation
from demo.kinds.ship import SHIP
from demo.kinds.town import TOWN

__all__ = ["KINDS", "Relation"]

KINDS: dict[str, tuple[Relation, ...]] = {
    "person": PERSON,
    "town": TOWN,
    "ship": SHIP,
    "firm": FIRM,
}
