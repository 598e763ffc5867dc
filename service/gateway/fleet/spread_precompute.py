"""Precomputes chunks on several workers at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from service.gateway.fleet.member import Member
from service.gateway.fleet.routing.directory import Directory
from service.gateway.fleet.routing.router import Router
from service.messages.replies import Precomputed
from service.messages.requests import ChunkNames, ChunkTokens, Precompute


async def spread_precompute(
    message: Precompute, members: Sequence[Member], router: Router, directory: Directory
) -> AsyncGenerator[Precomputed, None]:
    """Compute every chunk of a message at the worker that holds it, or at its home.

    Raises the first error that a worker reports; the others are then left alone.

    Yields:
        One reply per chunk, as it is done.
    """
    names = ChunkNames(message.system, message.prefix_mode, message.tenant, message.lora)
    replies: asyncio.Queue[Precomputed | Exception] = asyncio.Queue()

    async def compute(member: Member, part: Sequence[ChunkTokens]) -> None:
        pending_s = member.compute_s(part)
        member.precompute_s += pending_s
        try:
            async for reply in member.client.precompute(
                message.system, part, message.prefix_mode, message.tenant, message.lora
            ):
                replies.put_nowait(reply)
        except Exception as error:  # raised again below, where it is waited for
            replies.put_nowait(error)
        finally:
            member.precompute_s -= pending_s

    backlogs = {member.number: member.precompute_s for member in members}
    by_number = {member.number: member for member in members}
    parts: dict[int, list[ChunkTokens]] = {}
    by_id: dict[int, list[bytes]] = {}  # a chunk may be wanted alone and behind others
    for chunk in message.documents:
        name = names.of(chunk)
        by_id.setdefault(chunk.chunk_id, []).append(name)
        number = router.place(name, backlogs)
        backlogs[number] += by_number[number].compute_s([chunk])
        parts.setdefault(number, []).append(chunk)
    tasks = [
        asyncio.create_task(compute(by_number[number], part)) for number, part in parts.items()
    ]
    try:
        for _ in message.documents:
            reply = await replies.get()
            if isinstance(reply, Exception):
                raise reply
            if reply.status != "failed":
                directory.note_stored(by_id[reply.chunk_id])
            yield reply
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
