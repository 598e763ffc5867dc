"""Documents of a shared database are taken by one gateway at a time.

A document is taken by a row lock that others skip, and stays with its gateway while that gives
signs of life. A gateway whose documents went on with another cannot change them any more.
"""

from __future__ import annotations

from retriever.sql.connection import Connection

# Not while an earlier revision of the same document is to be indexed, by whomever: its store would
# come after this one's, and undo it.
_FIRST = """
    AND NOT EXISTS (
        SELECT 1 FROM documents AS earlier JOIN jobs AS sent ON sent.job_id = earlier.job_id
        WHERE earlier.state = 'pending' AND earlier.number < documents.number
        AND earlier.doc_id = documents.doc_id AND earlier.collection = documents.collection
        AND sent.tenant = (SELECT tenant FROM jobs WHERE jobs.job_id = documents.job_id))
"""


def take(write: Connection, gateway_id: str, state: str, limit: int) -> None:
    """Take documents in this state, the oldest first, until this gateway has so many."""
    (held,) = write.execute(
        "SELECT count(*) FROM documents WHERE state = ? AND owner = ?", (state, gateway_id)
    ).fetchone()
    if held < limit:
        first = _FIRST if state == "pending" else ""
        write.execute(
            "UPDATE documents SET owner = ? WHERE number IN (SELECT number FROM documents "
            f"WHERE state = ? AND owner = '' {first} ORDER BY number LIMIT ?{write.skip_locked})",
            (gateway_id, state, limit - held),
        )
