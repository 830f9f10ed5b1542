"""What the fuzz found at the pin, on the whole of real vLLM: other texts, and requests that never end.

The situations are `course.fuzz.real`'s. Three requests that fit together, or two that fit one after the
other, say what they say with room; under pressure the pin changes one's text and never ends the other two.
A test that fails here means that vLLM has mended what it is about.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest

from course.fuzz.causes import EQUAL, WITHDRAWN, cause_of
from course.fuzz.drive import play
from course.fuzz.engine import Engine
from course.fuzz.engines import Mini
from course.fuzz.real import situations
from course.fuzz.world import World
from mini_vllm.core.sched.upstream_scheduler import UpstreamScheduler

PAIRS = {"withdrawn": WITHDRAWN, "beside a bystander": WITHDRAWN, "equals": EQUAL}


@pytest.mark.parametrize("name", PAIRS)
def test_the_fuzz_knows_these_worlds(name: str) -> None:
    """With the pin's behaviour they go wrong by slots too; with room, and in `mini_vllm`, they do not."""

    def upstream(world: World) -> Engine:
        return Mini(world, UpstreamScheduler)

    worlds = {which: world for which, (world, _) in situations().items()}
    assert cause_of(worlds[name], upstream) == PAIRS[name]
    roomy = play(worlds[f"{name}, with room"], upstream)
    assert roomy.preemptions == 0
    assert play(worlds[name], Mini).given == roomy.given


@functools.cache
def answers() -> dict[str, Any]:
    from course.parity.tokens_run import run_worker

    worlds = situations()
    job = [(world.as_data(), seed) for world, seed in worlds.values()]
    found = run_worker("course.fuzz.real", [], job)
    return dict(zip(worlds, found, strict=True))


@pytest.mark.vllm
@pytest.mark.parametrize("name", ["withdrawn", "beside a bystander"])
def test_a_text_of_real_vllm_changes(name: str) -> None:
    pressed, roomy = answers()[name], answers()[f"{name}, with room"]
    assert (roomy["ended"], roomy["preemptions"]) == (True, 0)
    assert (pressed["ended"], pressed["preemptions"] > 0) == (True, True)
    assert pressed["texts"][0] != roomy["texts"][0], "vLLM has mended it"
    assert pressed["texts"][1:] == roomy["texts"][1:], "only the victim's text is to change"


@pytest.mark.vllm
def test_two_siblings_of_real_vllm_never_end() -> None:
    pressed, roomy = answers()["equals"], answers()["equals, with room"]
    assert roomy["ended"]
    assert roomy["turns"] < 20
    assert not pressed["ended"]
    assert pressed["preemptions"] > 100


@pytest.mark.vllm
def test_a_seeded_prompt_in_chunks_ends_real_vllm_on_a_cpu() -> None:
    assert answers()["seeded, in one piece"]["ended"]
    found = answers()["seeded, in chunks"]
    assert (found["ended"], found["error"]) == (False, "CPU Generator does not use offset")
