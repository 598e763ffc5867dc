"""Do uploads pass and answers stream through proxies at these ports? Run in the recipe's folder."""

import os
import ssl
import sys
import time

import httpx

NAME = "rag.example.com"
ASKED = {"question": "Which animal does Quentin Bruvik keep?", "stream": True, "temperature": 1}
LONG = {"max_tokens": 200, "ignore_eos": True, "seed": 1}
# Three megabytes of blanks: nginx takes one by default.
UPLOAD = '{"documents": [{"doc_id": "quentin", "text": "Quentin keeps a goat."}]' + " " * (3 << 20)


def through(port: str) -> None:
    own = {"Host": f"{NAME}:{port}", "Origin": f"https://{NAME}:{port}"}  # as the console
    own["Authorization"] = f"Bearer {os.environ['KVSTITCH_API_KEY']}"
    own["Content-Type"] = "application/json"
    named = {"sni_hostname": NAME}
    trusted = ssl.create_default_context(cafile="rag.crt")
    address = f"https://localhost:{port}"
    with httpx.Client(base_url=address, verify=trusted, headers=own, timeout=120) as http:
        upload = http.post("/admin/precompute", content=UPLOAD + "}", extensions=named)
        assert upload.status_code == 202, upload.text
        began = time.monotonic()
        with http.stream("POST", "/v1/rag/generate", json=ASKED | LONG, extensions=named) as answer:
            times = [time.monotonic() - began for _ in answer.iter_raw()]
    print(f"  port {port}: {len(times)} pieces in {times[0]:.2f} to {times[-1]:.2f} s")
    assert len(times) > 20 and times[-1] - times[0] > 0.1, "the answer came in one piece"


if __name__ == "__main__":
    for number in sys.argv[1:]:
        through(number)
