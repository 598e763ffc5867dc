"""Limits of one call."""

from __future__ import annotations

from pydantic import BaseModel, Field

from service.shared.worker_settings import MIB


class LimitSettings(BaseModel):
    """Limits of one call."""

    max_top_k: int = Field(64, ge=1)
    max_question_chars: int = Field(65_536, ge=1)
    max_texts: int = Field(2048, ge=1, description="in one call of /v1/embeddings or /v1/rerank")
    max_texts_chars: int = Field(1_048_576, ge=1, description="of all texts of such a call")
    rerank_timeout_s: float = Field(
        30.0, gt=0, description="for /v1/rerank; answers and searches have rerank_deadline_s"
    )
    max_request_bytes: int = Field(8 * MIB, ge=1024, description="body of any call but an ingest")
    max_body_bytes: int = Field(64 * MIB, ge=1024, description="body of an ingest call")
    max_body_values: int = Field(
        250_000, ge=100, description="values in one JSON body, nested ones counted"
    )
    max_upload_bytes: int = Field(
        1024 * MIB, ge=1024, description="JSON lines and forms, which are read as they come"
    )
    header_timeout_s: float = Field(
        20.0, gt=0, description="for the header of a request; then the connection is closed"
    )
    body_timeout_s: float = Field(
        30.0, gt=0, description="for a body, and a second more for every 16 KiB of it; then 408"
    )
    reading_timeout_s: float = Field(
        60.0, gt=0, description="in which a client takes nothing of its answer; then it is cut off"
    )
    max_documents: int = Field(10_000, ge=1, description="documents in one ingest call")
    max_document_bytes: int = Field(32 * MIB, ge=1024, description="one document that is text")
    max_pdf_bytes: int = Field(64 * MIB, ge=1024, description="one PDF, Office or EPUB file")
    max_file_pages: int = Field(
        2000, ge=1, description="pages, slides, sheets or chapters of one file"
    )
    max_file_chars: int = Field(10_000_000, ge=1, description="text of one file that is parsed")
    file_cpu_s: int = Field(60, ge=1, description="CPU that reading one file may take")
    file_memory_mib: int = Field(1024, ge=128, description="memory that reading one file may take")
    max_tokens_limit: int = Field(65_536, ge=1)
