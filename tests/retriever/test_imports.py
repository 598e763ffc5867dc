from __future__ import annotations

import subprocess
import sys


def test_importing_the_package_loads_no_heavy_library() -> None:
    heavy = ("torch", "transformers", "faiss", "tokenizers", "kvstitch.service", "kvstitch.kvstore")
    program = f"import kvstitch.retriever, sys; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
