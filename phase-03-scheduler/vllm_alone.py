"""What vLLM's scheduler has and `mini_vllm`'s has not, for the deep dive.

    python phase-03-scheduler/vllm_alone.py                 all topics
    python phase-03-scheduler/vllm_alone.py drafts pauses   some

Needs vLLM 0.22.1; its CPU build will do. No model is loaded: the people, the pool and the tokens are those of
`both_schedulers.py`.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import Any

from both_schedulers import CONFIG, Say, World, flat, names, sent, tokens

from course.parity.record import vllm_parts
from course.parity.traces import Arrival, Config, Parts

SETTINGS = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}


def with_async(parts: Parts) -> Parts:
    """The same parts with vLLM's `AsyncScheduler` in place of its `Scheduler`."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler

    plain: Any = parts.scheduler
    scheduler: Any = AsyncScheduler(
        vllm_config=plain.vllm_config,
        kv_cache_config=plain.kv_cache_config,
        structured_output_manager=plain.structured_output_manager,
        block_size=CONFIG["block_size"],
        log_stats=False,
    )
    tables = scheduler.kv_cache_manager
    return replace(
        parts, scheduler=scheduler, block_ids=lambda name: flat(tables.get_block_ids(name))
    )


def new_world(**settings: Any) -> World:
    config: Config = CONFIG | settings  # type: ignore[assignment, operator]
    return World(vllm_parts(config))


def with_grammar(who: str) -> World:
    """Noon, but `who` wants JSON. Nobody compiles the grammar, unless the caller hands one in."""
    from vllm.sampling_params import StructuredOutputsParams
    from vllm.v1.request import Request

    world = new_world()
    make_request = world.parts.make_request

    def make(arrival: Arrival, index: int) -> Any:
        request = make_request(arrival, index)
        if request.request_id != who:
            return request
        request.sampling_params.structured_outputs = StructuredOutputsParams(json="{}")
        return Request(
            who, request.prompt_token_ids, request.sampling_params, None,
            block_hasher=request._block_hasher,
        )  # fmt: skip

    world.parts = replace(world.parts, make_request=make)
    return world


def say_queues(world: World, say: Say) -> None:
    """Make a step; say what it computes and who is in which queue after it."""
    plan = world.step()
    aside = [request.request_id for request in world.scheduler.skipped_waiting]
    say(
        f"step {world.number}: {tokens(plan)}; waiting {names(world.waiting())}; "
        f"set aside {names(aside)}"
    )


def blocked(say: Say) -> None:
    """Gil's answer must be JSON, and his grammar is not compiled yet. Who passes whom?"""
    world = with_grammar("gil")
    world.steps_before(4)
    for _ in range(4, 9):
        say_queues(world, say)
    say(f"gil is {world.requests['gil'].status.name}")


class AnyText:
    """A compiled grammar that every text obeys: only when it is there matters here."""

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        return True


def compiled(say: Say) -> None:
    """Hal wants JSON and comes a step after Gil. His grammar is compiled while step 6 is computed."""
    world = with_grammar("hal")
    world.comes = {"eve": 1, "fay": 4, "gil": 4, "hal": 5}
    world.steps_before(5)
    for _ in range(5, 9):
        if world.number == 6:
            world.requests["hal"].structured_output_request.grammar = AnyText()
        say_queues(world, say)


def pauses(say: Say) -> None:
    """Noon paused before steps 5 and 7, and resumed."""
    from vllm.v1.core.sched.interface import PauseState

    world = new_world()
    states = {5: PauseState.PAUSED_NEW, 6: PauseState.PAUSED_ALL, 7: PauseState.UNPAUSED}
    world.steps_before(4)
    for number in range(4, 8):
        if number in states:
            world.scheduler.set_pause_state(states[number])
        plan = world.step()
        left = world.scheduler.get_num_unfinished_requests()
        say(
            f"step {number}: {world.scheduler.pause_state.name:10} {tokens(plan):21} unfinished {left}"
        )


def drafts(say: Say) -> None:
    """Three draft tokens for Eve in step 4, of which the model agrees with one."""
    from vllm.v1.outputs import DraftTokenIds

    world = new_world()
    world.comes = {"eve": 1}
    world.steps_before(4)
    world.scheduler.update_draft_token_ids(DraftTokenIds(["eve"], [[40, 41, 42]]))
    eve = world.requests["eve"]
    say(f"before     {world.state('eve')}, with drafts {eve.num_tokens_with_spec}")
    world.arrive()
    plan = world.scheduler.schedule()
    say(
        f"planned    {world.state('eve')}, {tokens(plan)}, drafts {plan.scheduled_spec_decode_tokens}"
    )
    world.scheduler.update_from_output(plan, world.parts.make_output(["eve"], [[40, 50]]))
    say(f"taken in   {world.state('eve')}: one draft accepted, two given back")


def v2(say: Say) -> None:
    """Steps 9 and 13 as the V2 model runner is told of them."""
    world = new_world()
    world.scheduler.use_v2_model_runner = True
    for number in (9, 13):
        world.steps_before(number)
        world.arrive()
        plan = world.plan()
        say(f"step {number:2}  " + "; ".join(sent(plan)))
        for new in plan.scheduled_new_reqs:  # now, for the list is the request's own and grows
            say(f"         to prefill {len(new.prefill_token_ids)}")
        world.take_in()


def common(say: Say) -> None:
    """How many blocks all running requests share, for cascade attention: Fay, then Gil, then Hal."""
    world = new_world()
    world.comes = {"fay": 1, "gil": 5, "hal": 7}
    for number in range(3, 8):
        world.steps_before(number)
        plan = world.step()
        say(
            f"step {number}: {tokens(plan):21} common prefix {plan.num_common_prefix_blocks} blocks"
        )


def twice(say: Say) -> None:
    """Two plans in a row for Eve, without a result between them, by either scheduler."""
    for parts in (vllm_parts(CONFIG), with_async(vllm_parts(CONFIG))):
        world = World(parts)
        world.arrive()
        plans = [tokens(world.plan()) for _ in range(2)]
        say(f"{type(world.scheduler).__name__:14}  {', then '.join(plans)}; {world.state('eve')}")


def default(say: Say) -> None:
    """What becomes of `async_scheduling` where this runs, asked for or not."""
    from vllm.config import SchedulerConfig, VllmConfig
    from vllm.platforms import current_platform

    plain: Any = vllm_parts(CONFIG).scheduler
    for asked in (None, True, False):
        config = SchedulerConfig(max_model_len=96, is_encoder_decoder=False, async_scheduling=asked)
        model = plain.vllm_config.model_config
        made = VllmConfig(model_config=model, scheduler_config=config)
        chosen = made.scheduler_config
        say(
            f"{current_platform.device_type}, async_scheduling={asked!s:5}: "
            f"{chosen.async_scheduling!s:5} {chosen.get_scheduler_cls().__name__}"
        )


SHOWN = (blocked, compiled, pauses, drafts, v2, common, twice, default)
TOPICS = {topic.__name__: topic for topic in SHOWN}


def main(chosen: list[str]) -> None:
    if unknown := [name for name in chosen if name not in TOPICS]:
        raise SystemExit(f"no topic {', '.join(unknown)}; there are {', '.join(TOPICS)}")
    for variable, value in SETTINGS.items():
        os.environ.setdefault(variable, value)
    for name in chosen or TOPICS:
        said: list[str] = []
        TOPICS[name](said.append)
        print(f"{name}, vLLM", *(line.rstrip() for line in said), sep="\n  ")


if __name__ == "__main__":
    main(sys.argv[1:])
