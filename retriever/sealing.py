"""How the catalog's texts and vectors are sealed: under the key of their tenant, for their row.

The keys come with the database (`Database.keys`), so every statement on a connection finds them
there. Without keys all of this gives back what it is given. What was stored before there were keys
is read as it is.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from sqlalchemy import Connection

from encryption.blind_words import BlindWords
from encryption.errors import EncryptionError
from encryption.keyring import Keyring
from encryption.values import (
    SEALED_BYTES,
    is_sealed,
    is_sealed_text,
    open_sealed,
    open_text,
    place,
    seal,
    seal_text,
)
from retriever.analysis.analyser import REVISION, AnalysedQuery, AnalysedText, Term, may_start
from retriever.errors import TextLocked

VECTOR_BYTES_MORE = SEALED_BYTES
"""What a sealed vector is longer than one in the clear."""
_BLINDED = hashlib.sha256(f"blinded {REVISION}".encode()).hexdigest()[:8]


@dataclass(frozen=True)
class Sealing:
    """Seals and opens values of the catalog."""

    keys: Keyring | None

    @classmethod
    def of(cls, connection: Connection) -> Sealing:
        """Return that of a connection's database."""
        return cls(connection.info.get("keys"))

    @property
    def on(self) -> bool:
        """Whether what is stored is sealed."""
        return self.keys is not None

    @property
    def words_revision(self) -> str:
        """The revision of words in full-text search: blinded ones are another analyser's."""
        return _BLINDED if self.on else REVISION

    def sealed(self, tenant: str, text: str, *where: object) -> str:
        """Return what is stored for a text of a row."""
        if self.keys is None:
            return text
        return seal_text(self.keys.current(tenant), text, place(*where))

    def opened(self, text: str | None, *where: object) -> str:
        """Return the text of a row."""
        if not text or not is_sealed_text(text):
            return text or ""
        if self.keys is None:
            raise TextLocked(f"{where[0]} of {where[1]!r} is encrypted, and there are no keys here")
        try:
            return open_text(self.keys, text, place(*where))
        except EncryptionError as error:
            raise TextLocked(f"{where[0]} of {where[1]!r}: {error}") from error

    def sealed_vector(self, tenant: str, raw: bytes, chunk_id: int) -> bytes:
        """Return what is stored for a vector."""
        if self.keys is None:
            return raw
        return seal(self.keys.current(tenant), raw, place("vector", chunk_id))

    def opened_vector(self, raw: bytes, chunk_id: int) -> bytes:
        """Return the bytes of a vector."""
        if self.keys is None or not is_sealed(raw):
            return raw
        try:
            return open_sealed(self.keys, raw, place("vector", chunk_id))
        except EncryptionError as error:
            raise TextLocked(f"the vector of chunk {chunk_id}: {error}") from error

    def words_of(self, tenant: str) -> BlindWords | None:
        """Return what blinds the words of a tenant; None: they are in the clear."""
        if self.keys is None:
            return None
        return BlindWords(self.keys.current(tenant, "words").secret, may_start)


def blinded_text(text: AnalysedText, blind: BlindWords | None) -> AnalysedText:
    """Return the words of a text as they are indexed."""
    if blind is None:
        return text
    return AnalysedText(list(map(blind.word, text.words)), list(map(blind.word, text.parts)))


def blinded_query(query: AnalysedQuery, blind: BlindWords | None) -> AnalysedQuery:
    """Return a query for words that are indexed blinded."""
    if blind is None:
        return query
    return AnalysedQuery(
        [blinded_term(term, blind) for term in query.terms],
        [blinded_term(term, blind) for term in query.exact],
        frozenset(blinded_term(term, blind) for term in query.last),
    )


def blinded_term(term: Term, blind: BlindWords | None) -> Term:
    """Return a term for words that are indexed blinded."""
    if blind is None:
        return term
    word = blind.start if term.starts else blind.word
    return Term(tuple(tuple(map(word, phrase)) for phrase in term.spellings), term.starts)
