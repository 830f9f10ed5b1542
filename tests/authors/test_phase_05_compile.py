"""What phase 05 says of vLLM's compiler: its scripts, and the facts behind them, with the real thing."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest

from tests.engine.helpers.real_vllm.vllm_helpers import ROOT, output_of

PHASE = ROOT / "phase-05-cuda-graphs"
OUTSIDE = ["unified_kv_cache_update", "unified_attention_with_output"]


@functools.cache
def two_starts() -> dict[str, Any]:
    out = output_of("-m", "tests.authors.compile_child")
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


ON_PAPER = """
import os, sys
from pathlib import Path
from tests.authors.topic_helpers import load_scripts
[script] = load_scripts(Path(sys.argv[1]), "vllm_on_paper")
os.environ |= script.ON_PAPER
for topic in sys.argv[2:]:
    script.TOPICS[topic](lambda line: print(f"{topic}: {line}"))
"""


@functools.cache
def told(*topics: str) -> dict[str, list[str]]:
    """The lines of topics of vllm_on_paper.py, by topic, all from one process: vLLM starts slowly."""
    lines = [
        line.partition(": ") for line in output_of("-c", ON_PAPER, PHASE, *topics).splitlines()
    ]
    return {topic: [line for name, _, line in lines if name == topic] for topic in topics}


def on_paper(topic: str) -> list[str]:
    """The lines of a topic."""
    on_a_card = topic in ("levels", "split")
    return told(*(("levels", "split") if on_a_card else ("wrapper", "late")))[topic]


@pytest.mark.vllm
def test_the_graph_is_cut_at_attention() -> None:
    """2L + 1 pieces, L of them outside, of one op each: the CPU's backend writes the cache itself."""
    found = two_starts()
    assert found["pieces"] == 2 * found["layers"] + 1
    assert found["outside"] == [OUTSIDE[1:]] * found["layers"]


@pytest.mark.vllm
def test_a_second_start_reads_what_the_first_has_written() -> None:
    """Three of five pieces are unlike; the second start compiles none."""
    found = two_starts()
    assert found["saved"] == 3
    assert (found["loaded"], found["aot loaded"], found["saved again"]) == (3, 1, 0)


@pytest.mark.vllm
def test_compiled_gives_the_same_tokens() -> None:
    """First start, second start, not compiled at all."""
    first, second, eager = two_starts()["tokens"]
    assert first == second == eager
    assert {len(row) for row in first} == {24}


@pytest.mark.vllm
def test_on_a_gpu_the_cache_is_written_outside_as_well() -> None:
    """The split along vLLM's CUDA paths: two ops outside, L times; four products in a piece between."""
    head, *lines = on_paper("split")
    assert "9 pieces for 4 layers" in head
    outside = [line.partition("outside of graphs: ")[2] for line in lines if "outside" in line]
    assert outside == [", ".join(OUTSIDE)] * 4
    between = [line.split()[-3] for line in lines if "matrix products" in line]
    assert between == ["1", "4", "4", "4", "3"]


@pytest.mark.vllm
def test_the_levels_and_the_flags() -> None:
    """Mode, graphs, custom ops, places to cut at and sizes to capture, for each flag."""
    rows = {line[:24].strip(): line[24:].split() for line in on_paper("levels")}
    whole = ["VLLM_COMPILE", "FULL_AND_PIECEWISE", "none", "16", "51"]
    nothing = ["NONE", "NONE", "all", "0", "0"]
    assert rows["-O2"] == rows["-O3"] == rows["no flag"] == whole
    assert rows["-O1"] == ["VLLM_COMPILE", "PIECEWISE", *whole[2:]]
    assert rows["-O0"] == rows["--enforce-eager"] == rows["-cc.mode=NONE"] == nothing
    assert rows["and FULL_DECODE_ONLY"] == ["NONE", "FULL_DECODE_ONLY", "all", "0", "51"]
    assert rows["-cc.cudagraph_mode=NONE"] == ["VLLM_COMPILE", "NONE", "none", "16", "0"]
    assert rows["-cc.splitting_ops=[]"] == ["VLLM_COMPILE", "FULL", "none", "0", "51"]


@pytest.mark.vllm
def test_the_wrapper_trusts() -> None:
    """Captured once, replayed without Python, wrong tensors and wrong keys unseen."""
    lines = on_paper("wrapper")
    captured = [line for line in lines if "captured" in line]
    replayed = [line for line in lines if "replayed" in line]
    assert len(captured) == 1
    assert len(replayed) == 4
    assert all("Python did not run" in line for line in replayed)
    assert [line.split("[")[1] for line in replayed] == ["11.0]", "11.0]", "13.0]", "13.0]"]


@pytest.mark.vllm
def test_nothing_is_captured_late() -> None:
    """An unknown size raises; addresses are looked at only where the log says DEBUG."""
    lines = on_paper("late")
    assert sum("RuntimeError: CUDA graph capturing detected" in line for line in lines) == 2
    checked = [line for line in lines if "another tensor" in line]
    assert ["AssertionError" in line for line in checked] == [False, True]
