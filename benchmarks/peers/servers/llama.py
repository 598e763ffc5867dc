"""llama.cpp's own server with its prompt caches, on the same bfloat16 weights.

KVSTITCH_LLAMA_SERVER names the program `llama-server`; otherwise it is looked for in the PATH.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence

from benchmarks.peers.dialects import Completions
from benchmarks.peers.gguf_file import write_gguf
from benchmarks.peers.processes import Absent
from benchmarks.peers.servers.own_process import OwnProcess
from benchmarks.peers.servers.peer import About, Conditions

SERVER = "KVSTITCH_LLAMA_SERVER"


class LlamaServer(OwnProcess):
    """Slots, each of which keeps its last prompt, and a cache of earlier ones in memory."""

    def __init__(self, conditions: Conditions) -> None:
        super().__init__("llama.cpp", conditions)
        self.dialect = Completions("model", {"cache_prompt": True, **conditions.answer_fields})

    def command(self, port: int) -> Sequence[str]:
        program = self._program()
        file = self.conditions.folder / "model.gguf"
        try:
            write_gguf(self.conditions.model, file)
        except ValueError as error:
            raise Absent(str(error)) from error
        threads, slots = str(self.conditions.threads), self.conditions.slots
        context = str(slots * self.conditions.context)  # of all slots together
        return [
            *(program, "--model", str(file), "--host", "127.0.0.1", "--port", str(port)),
            *("--threads", threads, "--threads-batch", threads, "--ctx-size", context),
            *("--parallel", str(slots), "--batch-size", "2048", "--ubatch-size", "512"),
            *("--cache-ram", str(self.conditions.cache_mib)),
        ]

    def about(self) -> About:
        done = subprocess.run(
            [self._program(), "--version"], capture_output=True, text=True, check=False
        )
        lines = [line for line in (done.stdout + done.stderr).splitlines() if "version" in line]
        slots = "one slot" if self.conditions.slots == 1 else f"{self.conditions.slots} slots"
        settings = f"llama-server, {slots}, prompt cache in memory, bfloat16 weights"
        return About(lines[0].removeprefix("version: ") if lines else "unknown", settings)

    @staticmethod
    def _program() -> str:
        program = os.environ.get(SERVER) or shutil.which("llama-server")
        if program is None:
            raise Absent(f"there is no llama-server in the PATH, and {SERVER} is not set")
        return program
