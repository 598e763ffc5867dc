"""What programs use to talk to a kvstitch service: kvstitch.client, and retrievers for LangChain
(kvstitch.langchain) and LlamaIndex (kvstitch.llama_index).

None of it imports the service: the client needs httpx and nothing else.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvstitch.client import AsyncClient, Client

__all__ = ["AsyncClient", "Client"]


def __getattr__(name: str) -> Any:
    # Loaded when it is asked for: the service's processes use kvstitch.records, and no httpx.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from kvstitch import client

    return getattr(client, name)
