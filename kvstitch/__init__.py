"""What programs use to talk to a kvstitch service: kvstitch.client, and retrievers for LangChain
(kvstitch.langchain) and LlamaIndex (kvstitch.llama_index).

None of it imports the service: the client needs httpx and nothing else.
"""

from kvstitch.client import AsyncClient, Client

__all__ = ["AsyncClient", "Client"]
