"""Who decodes."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from kvstitch.service.settings.fields import ADDRESS


class EngineSettings(BaseModel):
    engine: Literal["own", "vllm"] = Field(
        "own",
        description="what decodes answers; vllm: a vLLM on this machine, which loads stitched KV",
        json_schema_extra={"option": "--engine"},
    )
    engine_url: str = Field(
        "",
        pattern=r"^(https?://[^\s]+)?$",
        description="of vLLM's OpenAI server, as http://127.0.0.1:8001; none: one is started",
        repr=False,
        json_schema_extra=ADDRESS | {"option": "--engine-url"},
    )
    engine_api_key: str = Field("", description="that vLLM asks for", repr=False)
    engine_timeout_s: float = Field(
        120.0, gt=0, description="silence of vLLM after which an answer is given up"
    )
    hand_over_dir: str = Field(
        "/dev/shm", description="shared memory, as the connector's `folder` names it"
    )

    vllm_python: str = Field(
        "",
        description="Python of an environment with vLLM, of which one is started; none: "
        "kvstitch's own",
    )
    vllm_args: str = Field("", description="more options of a vLLM that is started")
