"""Several results in one table, and the curve of TTFT over the share of known documents."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from benchmarks.peers.__main__ import main as run_peers
from benchmarks.peers.asking import OK, Sample
from benchmarks.peers.comparison import Comparison
from benchmarks.peers.lengths import lengths, main
from benchmarks.peers.prompts import Prompt
from benchmarks.peers.results import Result
from benchmarks.peers.reuse_plot import curves, reuse_plot
from benchmarks.peers.servers.peer import About
from benchmarks.peers.servers.vllm import NAME as VLLM
from benchmarks.peers.starting import start_all
from benchmarks.peers.table import page
from benchmarks.peers.workloads import REORDERED, REUSE, SHUFFLED
from tests.benchmarks.peers.made import rounds
from tests.benchmarks.peers.streaming_server import StreamingPeer, streaming
from tests.benchmarks.peers.test_comparison import CONDITIONS

PIE = "kvstitch pie"


def of_length(tokens: int, ours: float, workload: str = SHUFFLED) -> Result:
    result = Result(
        CONDITIONS | {"workloads": [workload]}, {n: About("1", "") for n in (VLLM, PIE)}
    )
    for number in range(3):
        result.prompts.append(Prompt(f"{number}", workload, (), (), (0,) * (tokens + number)))
        for name, ttft_s in ((VLLM, 2.0), (PIE, 2.0 * ours)):
            result.samples.append(Sample(f"{number}", name, 0, OK, ttft_s=ttft_s, e2e_s=3.0))
    return result


def test_a_row_per_length_the_shortest_first(tmp_path: Path) -> None:
    of_length(4000, 0.25).write(tmp_path / "4k" / "peers.json")
    of_length(1000, 0.5).write(tmp_path / "1k" / "peers.json")
    place = tmp_path / "page.md"
    place.write_text("before\n<!-- lengths -->\n<!-- end of lengths -->\nafter\n")
    assert main([str(tmp_path / "4k"), str(tmp_path / "1k"), "--into", str(place)]) == 0
    rows = place.read_text().splitlines()
    assert rows[0] == "before" and rows[-1] == "after"
    assert rows[2] == "| TTFT over vLLM's | tokens | prompts | vLLM, s | kvstitch pie |"
    assert "| 1,001 | 3 | 2.00 [2.00, 2.00] | 0.50 [0.50, 0.50] |" in rows[4]
    assert "| 4,001 | 3 | 2.00 [2.00, 2.00] | 0.25 [0.25, 0.25] |" in rows[5]


def test_every_workload_has_its_rows_and_vllm_must_be_there() -> None:
    rows = lengths([of_length(10, 0.5), of_length(9, 0.5, REORDERED)]).splitlines()
    assert "shuffled" in rows[2] and "new order" in rows[3]
    without = of_length(10, 0.5)
    del without.about[VLLM]
    with pytest.raises(ValueError, match="without vLLM"):
        lengths([without])


def test_reuse_is_asked_measured_and_drawn(tmp_path: Path) -> None:
    asked = CONDITIONS | {"workloads": list(REUSE)}
    with streaming() as one, streaming() as two:
        peers = [StreamingPeer("one", one.url), StreamingPeer("two", two.url)]
        running, absent = start_all(peers, lambda text: None)
        result = Result(asked, {p.name: p.about() for p in running}, absent)
        comparison, turns = Comparison(running, 4), count()
        for prompt in next(rounds(workloads=list(REUSE)).made(1)):
            result.prompts.append(prompt)
            result.samples += comparison.asked(prompt, next(turns))
    assert not result.failures()
    assert [list(curve) for curve in curves(result).values()] == [list(REUSE.values())] * 2
    picture = reuse_plot(result)
    assert picture is not None and picture.startswith(b"\x89PNG")
    assert "(reuse.png)" in page(result) and "25% of the documents are known" in page(result)
    result.write(tmp_path / "peers.json")
    run_peers(["--again", "--out", str(tmp_path)])
    assert (tmp_path / "reuse.png").is_file()


def test_without_reuse_there_is_no_picture() -> None:
    assert reuse_plot(of_length(10, 0.5)) is None
    assert "reuse.png" not in page(of_length(10, 0.5))
