"""Who decodes."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field, model_validator

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
        description="of vLLM's OpenAI server, as http://127.0.0.1:8001",
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

    @model_validator(mode="after")
    def _url_of_vllm(self) -> EngineSettings:
        if self.engine == "vllm" and not self.engine_url:
            raise ValueError("engine vllm needs engine_url: where vLLM's OpenAI server is")
        return self
