"""/admin/collections: sets of documents that are searched separately."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Path

from service.gateway.http.dependencies import Administering, DocumentsDep
from service.gateway.http.routes.documents import receipt_out
from service.gateway.schemas.admin import CollectionList, CollectionOut, ReceiptOut
from service.gateway.search.document_scope import document_scope

router = APIRouter(prefix="/admin/collections", tags=["corpus"])

Name = Annotated[str, Path(min_length=1, max_length=128)]


@router.get("")
async def collections(principal: Administering, service: DocumentsDep) -> CollectionList:
    """Collections that have documents; the first document makes one, the last one ends it."""
    found = await service.collections(principal.tenant)
    return CollectionList(
        collections=[CollectionOut(collection=name, **asdict(counts)) for name, counts in found]
    )


@router.delete("/{collection:path}")
async def delete(principal: Administering, collection: Name, service: DocumentsDep) -> ReceiptOut:
    """Remove all documents of a collection: text, vectors, and KV in every tier."""
    scope = document_scope(principal.tenant, collection)
    return receipt_out(await service.delete_matching(scope, None, None))
