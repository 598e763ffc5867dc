"""Two agent frameworks find the tools at /mcp and call them; the model's words are written here."""

import asyncio
import json
import sys

from agents import set_tracing_disabled
from agents.mcp import MCPServerStreamableHttp
from pydantic_ai import Agent, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.models.function import FunctionModel

set_tracing_disabled(True)
url = sys.argv[1].removesuffix("/v1") + "/mcp"
question = {"question": "Which animal does Quentin Bruvik keep?"}


def model(messages, info):
    """Calls `ask`, then says what came back."""
    last = messages[-1].parts[-1]
    if last.part_kind == "tool-return":
        return ModelResponse(parts=[TextPart(json.dumps(last.content))])
    offered = sorted(tool.name for tool in info.function_tools)
    assert offered == ["ask", "documents", "search"], offered
    return ModelResponse(parts=[ToolCallPart("ask", question)])


async def main() -> None:
    agent = Agent(FunctionModel(model), toolsets=[MCPToolset(url)])
    said = json.loads((await agent.run("Find out.")).output)
    out = {"pydantic_ai": [said["answer"], said["citations"][0]["doc_id"]]}
    async with MCPServerStreamableHttp({"url": url}, client_session_timeout_seconds=120) as server:
        listed = [tool.name for tool in await server.list_tools()]
        result = await server.call_tool("ask", question)
        said = json.loads(result.content[0].text)
        out["agents"] = [listed, said["answer"], said["citations"][0]["doc_id"]]
    print(json.dumps(out))


asyncio.run(main())
