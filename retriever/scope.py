"""A scope: one collection of one tenant, as somebody sees it. No search goes beyond its scope.

    readers of a document    groups, as one text, sorted: "hr,legal"; "": everybody
    view of who reads        the groups that they belong to; None: of everything

A document is read by those who belong to one of its groups at least. Which people belong to a group
is for others to know.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kvstitch.retriever.errors import InvalidDocument, InvalidQuery

EVERYBODY = ""
SEPARATOR = ","
ALL_GROUPS = "*"
MAX_GROUP_CHARS = 64
MAX_READERS_BYTES = 2000  # PostgreSQL's index takes no longer ones


GROUP_RULE = (
    f"the name of a group may have up to {MAX_GROUP_CHARS} printable characters, without commas "
    f"and without spaces around it, and {ALL_GROUPS!r} stands for all groups"
)


def is_group(name: str) -> bool:
    """Return whether a group can have this name."""
    allowed = 0 < len(name) <= MAX_GROUP_CHARS and name.isprintable() and name == name.strip()
    return allowed and SEPARATOR not in name and name != ALL_GROUPS


def joined_readers(groups: Iterable[str]) -> str:
    """Return groups as the one text that is stored; of none "", which is everybody. Raises
    InvalidDocument."""
    names = sorted(set(groups))
    for name in names:
        if not is_group(name):
            shown = name[: MAX_GROUP_CHARS + 1]
            raise InvalidDocument(f"{shown!r} cannot be one of the readers: {GROUP_RULE}")
    readers = SEPARATOR.join(names)
    if len(readers.encode()) > MAX_READERS_BYTES:
        raise InvalidDocument(
            f"the readers of a document may have {MAX_READERS_BYTES} bytes together: name fewer "
            "groups, or one that holds them"
        )
    return readers


def groups_of(readers: str) -> list[str]:
    """Return the groups of what `joined_readers` has made."""
    return readers.split(SEPARATOR) if readers else []


@dataclass(frozen=True)
class View:
    """What members of these groups may read; None: everything."""

    groups: frozenset[str] | None = None

    def shows(self, readers: str) -> bool:
        """Return whether documents of these readers may be read."""
        if self.groups is None or readers == EVERYBODY:
            return True
        return not self.groups.isdisjoint(groups_of(readers))

    def may_give(self, readers: str) -> bool:
        """Return whether documents of these readers may be stored: by members of all groups."""
        return self.groups is None or self.groups.issuperset(groups_of(readers))

    @property
    def name(self) -> str:
        """The groups as one text; views of the same name show the same."""
        return ALL_GROUPS if self.groups is None else SEPARATOR.join(sorted(self.groups))

    @classmethod
    def named(cls, name: str) -> View:
        """Return the view that has this name."""
        return EVERYTHING if name == ALL_GROUPS else cls(frozenset(groups_of(name)))


EVERYTHING = View()


MAX_NAME_CHARS = 128


@dataclass(frozen=True, order=True)
class Scope:
    """One collection of one tenant. A document is identified by (tenant, collection, doc_id).

    What a view does not show is as if it did not exist. Scopes that differ by nothing else are the
    same: indexes are of all. Raises InvalidQuery for names that are not valid.
    """

    tenant: str = ""
    collection: str = "default"
    view: View = field(default=EVERYTHING, compare=False, repr=False)

    def __post_init__(self) -> None:
        for what, name in (("tenant", self.tenant), ("collection", self.collection)):
            if not isinstance(name, str):
                raise InvalidQuery(f"{what} must be a string, not {type(name).__name__}")
            if len(name) > MAX_NAME_CHARS:
                raise InvalidQuery(f"{what} is longer than {MAX_NAME_CHARS} characters")
            try:
                name.encode()
            except UnicodeEncodeError as error:
                raise InvalidQuery(f"{what} holds a lone surrogate: {error}") from error
        if not self.collection.strip():
            raise InvalidQuery("collection must not be empty")

    def __str__(self) -> str:
        return f"{self.tenant}/{self.collection}" if self.tenant else self.collection


DEFAULT_SCOPE = Scope()
