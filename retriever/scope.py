"""A scope: one collection of one tenant, as somebody sees it. No search goes beyond its scope.

    readers of a document    groups, as one text, sorted: "hr,legal"; "": everybody
    view of who reads        the groups that they belong to; None: of everything
    writers of a document    likewise; "*": whoever may read it; "": whoever may change everything
    pen of who writes        the groups for which they write; None: for all

A document is read by those who belong to one of its groups at least, and changed by those who may
read it and write for one of its writers. Which people belong to a group is for others to know.
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


ALL_WRITERS = ALL_GROUPS  # as writers of a document


GROUP_RULE = (
    f"the name of a group may have up to {MAX_GROUP_CHARS} printable characters, without commas "
    f"and without spaces around it, and {ALL_GROUPS!r} stands for all groups"
)


def is_group(name: str) -> bool:
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


def joined_writers(groups: Iterable[str]) -> str:
    """Return groups as they are stored as writers; raises InvalidDocument."""
    names = set(groups)
    return ALL_WRITERS if ALL_WRITERS in names else joined_readers(names)


@dataclass(frozen=True, order=True)
class Owners:
    """Who may read and change a document, as both are stored."""

    readers: str = EVERYBODY
    writers: str = ALL_WRITERS

    @property
    def trusted(self) -> tuple[Owners, ...]:
        """Of documents that may stand before a document of these owners when its KV is computed:
        its readers may read them, and whoever changes them could change it, too."""
        writers = {"", self.writers}  # those of "" change everything
        every = {Owners(r, w) for r in (EVERYBODY, self.readers) for w in writers}
        return tuple(sorted(o for o in every if o.writers != ALL_WRITERS or o == self))


def groups_of(readers: str) -> list[str]:
    """Return the groups of what `joined_readers` has made."""
    return readers.split(SEPARATOR) if readers else []


@dataclass(frozen=True)
class View:
    """What members of these groups may read; None: everything."""

    groups: frozenset[str] | None = None

    def shows(self, readers: str) -> bool:
        if self.groups is None or readers == EVERYBODY:
            return True
        return not self.groups.isdisjoint(groups_of(readers))

    def may_give(self, readers: str, had: str = EVERYBODY) -> bool:
        """Return whether documents of these readers may be stored: by members of all groups, but
        for those that could read a document before."""
        given = set(groups_of(readers)) - set(groups_of(had))
        return self.groups is None or self.groups.issuperset(given)

    @property
    def name(self) -> str:
        """The groups as one text; views of the same name show the same."""
        return ALL_GROUPS if self.groups is None else SEPARATOR.join(sorted(self.groups))

    @classmethod
    def named(cls, name: str) -> View:
        return EVERYTHING if name == ALL_GROUPS else cls(frozenset(groups_of(name)))


EVERYTHING = View()


@dataclass(frozen=True)
class Pen:
    """What members of these groups may change, of what they may read; None: all of it. `takes`:
    they may take readers and writers away."""

    groups: frozenset[str] | None = None
    takes: bool = True

    def changes(self, writers: str) -> bool:
        if self.groups is None or writers == ALL_WRITERS:
            return True
        return not self.groups.isdisjoint(groups_of(writers))

    @property
    def writers(self) -> str:
        """Of documents that it stores, where none are named: its groups. Where it has none, no
        groups are used, and everybody writes."""
        if self.groups is None:
            return ""
        return SEPARATOR.join(sorted(self.groups)) or ALL_WRITERS

    def may_give(self, writers: str, had: str) -> bool:
        """Return whether a document of the writers `had` may get these."""
        return writers == ALL_WRITERS or View(self.groups).may_give(writers, had)

    def may_take(self, given: tuple[str, str], had: tuple[str, str]) -> bool:
        """Return whether (readers, writers) may become others: of those that a document has, none
        are left out unless the pen takes."""
        (readers, writers), (old_readers, old_writers) = given, had
        kept = readers == EVERYBODY or (
            old_readers != EVERYBODY and {*groups_of(old_readers)} <= {*groups_of(readers)}
        )
        kept &= writers == ALL_WRITERS or {*groups_of(old_writers)} <= {*groups_of(writers)}
        return self.takes or kept


ANY_PEN = Pen()


MAX_NAME_CHARS = 128


@dataclass(frozen=True, order=True)
class Scope:
    """One collection of one tenant. A document is identified by (tenant, collection, doc_id).

    What a view does not show is as if it did not exist, and what a pen does not change stays.
    Scopes that differ by nothing else are the same: indexes are of all. `sender`: whose key asks,
    where something is counted per key. Raises InvalidQuery for names that are not valid.
    """

    tenant: str = ""
    collection: str = "default"
    view: View = field(default=EVERYTHING, compare=False, repr=False)
    pen: Pen = field(default=ANY_PEN, compare=False, repr=False)
    sender: str = field(default="", compare=False, repr=False)

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
