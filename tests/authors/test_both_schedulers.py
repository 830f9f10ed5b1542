"""The deep dive of phase 03 shows what its scripts print, mini_vllm's half of it and vLLM's."""

from __future__ import annotations

import pytest
from topic_helpers import load_scripts, topics_on

from course.docs.pages import ROOT
from course.parity.decisions import mini_parts
from tests.engine.helpers.real_vllm.vllm_helpers import output_of

PHASE = ROOT / "phase-03-scheduler"
both, ahead, alone, broken = load_scripts(
    PHASE, "both_schedulers", "both_ahead", "vllm_alone", "broken_schedulers"
)
SHOWN = topics_on(PHASE / "01-deep-dive.md")


def test_the_page_shows_every_topic() -> None:
    assert SHOWN["both_schedulers.py"].keys() == both.TOPICS.keys()
    assert SHOWN["both_ahead.py"].keys() == ahead.TOPICS.keys()
    assert SHOWN["vllm_alone.py"].keys() == alone.TOPICS.keys()


@pytest.mark.parametrize(
    ("script", "name"),
    [
        (script, name)
        for script in ("both_schedulers.py", "both_ahead.py")
        for name in SHOWN[script]
    ],
)
def test_mini_vllms_half(script: str, name: str) -> None:
    title, *lines = SHOWN[script][name]
    assert title == f"{name}, vLLM and mini_vllm alike"
    said = {"both_schedulers.py": both, "both_ahead.py": ahead}[script].topic(name)
    assert lines == [f"  {line}".rstrip() for line in said]


@pytest.mark.vllm
@pytest.mark.parametrize("script", ["both_schedulers.py", "both_ahead.py", "vllm_alone.py"])
def test_vllms_half(script: str) -> None:
    topics = SHOWN[script]
    printed = [line.rstrip() for line in output_of(PHASE / script, *topics).splitlines()]
    assert printed == [line for lines in topics.values() for line in lines]


VICTIM_KEEPS_ITS_COUNTER = """
import sys
sys.path.insert(0, "phase-03-scheduler")
from both_schedulers import CONFIG, World, sent, vllm_sync
world = World(vllm_sync(CONFIG))
preempt_request = world.scheduler._preempt_request
def preempt(request, *args):
    computed = request.num_computed_tokens
    preempt_request(request, *args)
    request.num_computed_tokens = computed
world.scheduler._preempt_request = preempt
for _ in range(22):
    output = world.step()
    print(output.num_scheduled_tokens, *sent(output), sep="; ")
"""


@pytest.mark.vllm
def test_a_victim_that_keeps_its_counter_fares_in_vllm_as_on_the_page() -> None:
    world = both.World(mini_parts(both.CONFIG, broken.Remembers))
    outputs = [world.step() for _ in range(22)]
    lines = ["; ".join([str(o.num_scheduled_tokens), *both.sent(o)]) for o in outputs]
    assert "resumed gil: 49 computed, 13 blocks" in lines[12]
    assert output_of("-c", VICTIM_KEEPS_ITS_COUNTER).splitlines() == lines
