"""Rules for documents that are uploaded, whichever way they are sent: limits, names, file kinds."""

from __future__ import annotations

from service.errors import BodyTooLarge, InvalidRequest
from service.gateway.documents.jobs.job_records import IngestDocument
from service.gateway.documents.parsing.file_kinds import is_binary
from service.settings.serving import LimitSettings


class UploadValidator:
    """Checks the documents of one call: how many, how large, and that none is sent twice."""

    def __init__(self, limits: LimitSettings) -> None:
        self._limits = limits
        # (collection, doc_id) to the document's index in the call.
        self._index_of: dict[tuple[str, str], int] = {}

    def accept(self, document: IngestDocument, place: str) -> IngestDocument:
        """Check one more document and return it."""
        index = len(self._index_of)
        self.check_number(index + 1)
        if not document.doc_id.strip():
            raise InvalidRequest(
                f"{place}.doc_id is blank: name the document", field=f"{place}.doc_id"
            )
        if not document.collection.strip():
            raise InvalidRequest(
                f"{place}.collection is blank: name the collection, or leave it out",
                field=f"{place}.collection",
            )
        first = self._index_of.setdefault((document.collection, document.doc_id), index)
        if first != index:
            raise InvalidRequest(
                f"{place}.doc_id {document.doc_id!r} is that of documents[{first}]: send each "
                "document once",
                field=f"{place}.doc_id",
            )
        self.check_size(document.size, document.kind, place)
        return document

    def check_number(self, documents: int) -> None:
        """Raise InvalidRequest if one call may not have so many documents."""
        if documents > self._limits.max_documents:
            raise InvalidRequest(
                f"documents holds more than {self._limits.max_documents} documents: send several "
                "calls",
                field="documents",
            )

    def check_size(self, size: int, kind: str, place: str) -> None:
        """Raise BodyTooLarge if a document of this kind may not have `size` bytes."""
        binary = is_binary(kind)
        limit = self._limits.max_pdf_bytes if binary else self._limits.max_document_bytes
        if size > limit:
            raise BodyTooLarge(
                f"{place} is larger than {limit} bytes, the limit of one document: split it",
                field=place,
            )
