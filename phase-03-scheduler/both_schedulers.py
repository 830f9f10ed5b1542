"""Noon's people on vLLM's scheduler and on `mini_vllm`'s: what the deep dive shows of both.

    python phase-03-scheduler/both_schedulers.py                all topics
    python phase-03-scheduler/both_schedulers.py wire victims   some

Both are the synchronous `Scheduler`, each with its own KV cache manager and without a model: the tokens come
from `World`. What both say alike is printed once. Needs vLLM 0.22.1; its CPU build will do. The page's
tests run `mini_vllm`'s half alone: `topic("wire")`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from noon import BLOCK_SIZE, BLOCKS, COMES, WANTED, prompt_ids

from course.parity.decisions import mini_parts
from course.parity.traces import EOS, Arrival, Config, Parts

CONFIG: Config = {
    "block_size": BLOCK_SIZE,
    "num_blocks": BLOCKS + 1,  # block 0 is the null block
    "max_num_seqs": 3,
    "max_num_batched_tokens": 16,
    "long_prefill_token_threshold": 0,
    "enable_prefix_caching": True,
    "max_model_len": 96,
    "policy": "fcfs",
}
Say = Callable[[str], None]
MakeParts = Callable[[Config], Parts]
ids_of = cache(prompt_ids)


class World:
    """One scheduler, and the four of noon, who come when they come.

    Args:
        parts: the scheduler, and how its requests and results are made.
        priorities: of those whose priority is not 0.
        comes: the step before which each asks.
    """

    def __init__(
        self,
        parts: Parts,
        priorities: Mapping[str, int] | None = None,
        comes: Mapping[str, int] = COMES,
    ) -> None:
        self.parts = parts
        self.scheduler: Any = parts.scheduler
        self.manager: Any = parts.scheduler.kv_cache_manager
        self.priorities, self.comes = priorities or {}, comes
        self.requests: dict[str, Any] = {}
        self.number = 0
        self.in_flight: list[tuple[Any, list[list[int]]]] = []
        self._made: dict[str, int] = {}  # tokens of the answer that are sampled, or in flight

    def arrive(self) -> None:
        """Begin the next step: whoever is due asks."""
        self.number += 1
        for name, step in self.comes.items():
            if step == self.number:
                arrival: Arrival = {
                    "id": name,
                    "step": 0,
                    "prompt": list(ids_of(name)),
                    "max_tokens": WANTED[name],
                    "ignore_eos": True,
                    "priority": self.priorities.get(name, 0),
                    "abort": None,
                }
                self.requests[name] = self.parts.make_request(arrival, len(self.requests))
                self._made[name] = 0
                self.scheduler.add_request(self.requests[name])

    def schedule(self) -> Any:
        """Schedule a step. Whoever has caught up by then samples a token."""
        scheduler_output = self.scheduler.schedule()
        sampled = []
        for name in scheduler_output.num_scheduled_tokens:
            tokens = len(ids_of(name)) + self._made[name]
            caught_up = self.requests[name].num_computed_tokens >= tokens
            self._made[name] += caught_up
            sampled.append([3 + tokens % 40] if caught_up else [])
        self.in_flight.append((scheduler_output, sampled))
        return scheduler_output

    def update(self) -> None:
        """Hand the scheduler the result of the oldest step in flight."""
        scheduler_output, sampled = self.in_flight.pop(0)
        output = self.parts.make_output(list(scheduler_output.num_scheduled_tokens), sampled)
        self.scheduler.update_from_output(scheduler_output, output)

    def step(self) -> Any:
        """Schedule a step and take its result in. Returns what was scheduled."""
        self.arrive()
        scheduler_output = self.schedule()
        self.update()
        return scheduler_output

    def steps_before(self, number: int) -> None:
        while self.number < number - 1:
            self.step()

    def state(self, name: str) -> str:
        """Status, tokens computed and tokens there are."""
        request = self.requests[name]
        return f"{request.status.name} {request.num_computed_tokens}/{request.num_tokens}"

    def running(self) -> list[str]:
        return [request.request_id for request in self.scheduler.running]

    def waiting(self) -> list[str]:
        return [request.request_id for request in self.scheduler.waiting]

    def free(self) -> int:
        return int(self.manager.block_pool.get_num_free_blocks())


def names(who: Sequence[str]) -> str:
    return " ".join(who) or "-"


def tokens(scheduler_output: Any) -> str:
    given = scheduler_output.num_scheduled_tokens
    return ", ".join(f"{name} {n}" for name, n in given.items()) or "nobody"


def counters(make: Callable[..., World], say: Say) -> None:
    """Gil's status and his two counters, computed/tokens: before a step, once it is scheduled, and with its
    result. Left out are steps in which he only waits."""
    world = make()
    say("step  before it        gets  once scheduled   with its result")
    for number in (7, 8, 9, 13):
        world.steps_before(number)
        world.arrive()
        before = world.state("gil")
        gets = world.schedule().num_scheduled_tokens.get("gil", "-")
        scheduled = world.state("gil")
        world.update()
        say(f"{number:4}  {before:15}  {gets:>4}  {scheduled:15}  {world.state('gil')}")


def victims(make: Callable[..., World], say: Say) -> None:
    """Every question for slots in a step that preempts, and what a victim had."""
    for policy, eve, number in (("fcfs", 0, 9), ("priority", 5, 9)):
        world = make({"eve": eve}, policy=policy)
        world.steps_before(number)
        world.arrive()
        say(f"{policy}, step {number}: running {names(world.running())}")
        allocate_slots = world.manager.allocate_slots
        preempt_request = world.scheduler._preempt_request

        def asked(request: Any, num_new_tokens: int, *args: Any, **options: Any) -> Any:
            blocks = allocate_slots(request, num_new_tokens, *args, **options)  # noqa: B023
            say(
                f"  {request.request_id} asks for {num_new_tokens}: {'no' if blocks is None else 'granted'}"
            )
            return blocks

        def preempt(request: Any, *args: Any) -> None:
            name, had, free = request.request_id, request.num_computed_tokens, world.free()  # noqa: B023
            preempt_request(request, *args)  # noqa: B023
            say(f"    {name} had {had} computed, and frees {world.free() - free}")  # noqa: B023

        world.manager.allocate_slots, world.scheduler._preempt_request = asked, preempt
        say(f"  scheduled: {tokens(world.schedule())}; waiting: {names(world.waiting())}")


def waiting(make: Callable[..., World], say: Say) -> None:
    """The queue before a step, who is admitted with how many tokens found, and what the step leaves."""
    world = make()
    say("step  queue before  admitted, with the tokens found  left: budget  slots  blocks")
    for number in (4, 7, 9, 10, 21):
        world.steps_before(number)
        world.arrive()
        queue, there = world.waiting(), world.running()
        given = world.schedule().num_scheduled_tokens
        admitted = [
            f"{name} {given[name]} ({world.requests[name].num_computed_tokens - given[name]} found)"
            for name in given
            if name not in there
        ]
        budget = CONFIG["max_num_batched_tokens"] - sum(given.values())
        slots = CONFIG["max_num_seqs"] - len(world.running())
        free = world.free()
        world.update()
        say(
            f"{number:4}  {names(queue):12}  {', '.join(admitted) or '-':32}  "
            f"{budget:12}  {slots:5}  {free:6}"
        )


def flat(block_ids: tuple[list[int], ...] | None) -> list[int]:
    """Block ids of the one KV cache group."""
    return list(block_ids[0]) if block_ids else []


def sent(scheduler_output: Any) -> list[str]:
    """What of a step's schedule crosses to the worker, beside the number of tokens."""
    lines = []
    for new in scheduler_output.scheduled_new_reqs:
        lines.append(
            f"new {new.req_id}: {len(new.prompt_token_ids)} tokens, "
            f"{new.num_computed_tokens} computed, {len(flat(new.block_ids))} blocks"
        )
    cached = scheduler_output.scheduled_cached_reqs
    known = []
    for name, computed, blocks in zip(
        cached.req_ids, cached.num_computed_tokens, cached.new_block_ids, strict=True
    ):
        if name in cached.resumed_req_ids:
            lines.append(f"resumed {name}: {computed} computed, {len(flat(blocks))} blocks")
        else:
            new = "".join(f" {block}" for block in flat(blocks))
            known.append(f"{name} {computed}" + (f" + block{new}" if new else ""))
    if known:
        lines.append(f"known: {', '.join(known)}")
    for what in ("preempted", "finished"):
        if gone := getattr(scheduler_output, f"{what}_req_ids"):
            lines.append(f"{what}: {names(sorted(gone))}")
    return lines


def wire(make: Callable[..., World], say: Say) -> None:
    """What crosses to the worker in some of noon's steps. Of a request that it knows: the tokens computed
    before the step, and the blocks that are new to it."""
    world = make()
    for number in (6, 7, 8, 9, 13):
        world.steps_before(number)
        say(f"step {number:2}  " + "; ".join(sent(world.step())))


def new_request(parts: Parts, prompt: list[int], limits: dict[str, Any]) -> Any:
    """A request `x` of the engine's own class, with sampling parameters of the engine's own class."""
    arrival: Arrival = {
        "id": "x", "step": 0, "prompt": [3], "max_tokens": 1, "ignore_eos": False, "priority": 0,
        "abort": None,
    }  # fmt: skip
    like = parts.make_request(arrival, 0)
    params = type(like.sampling_params)(**limits)
    params.update_from_generation_config({}, EOS)
    more = {"pooling_params": None} if hasattr(like, "pooling_params") else {}
    return type(like)(request_id="x", prompt_token_ids=prompt, sampling_params=params, **more)


TOPICS = {topic.__name__: topic for topic in (counters, victims, waiting, wire)}


Topic = Callable[[Callable[..., World], Say], None]


def said_of(topic: Topic, make_parts: MakeParts) -> list[str]:
    """What is said about a topic, of the schedulers that `make_parts` makes."""

    def make(
        priorities: Mapping[str, int] | None = None,
        comes: Mapping[str, int] = COMES,
        **settings: Any,
    ) -> World:
        config: Config = CONFIG | settings  # type: ignore[assignment, operator]
        return World(make_parts(config), priorities, comes)

    said: list[str] = []
    topic(make, said.append)
    return [line.rstrip() for line in said]


def topic(name: str) -> list[str]:
    """What `mini_vllm` says about one topic."""
    return said_of(TOPICS[name], mini_parts)


def vllm_sync(config: Config) -> Parts:
    from course.parity.record import vllm_parts

    return vllm_parts(config)


def main(
    chosen: list[str],
    topics: Mapping[str, Topic] = TOPICS,
    mini: MakeParts = mini_parts,
    vllm: MakeParts = vllm_sync,
) -> None:
    if unknown := [name for name in chosen if name not in topics]:
        raise SystemExit(f"no topic {', '.join(unknown)}; there are {', '.join(topics)}")
    for name in chosen or topics:
        said = {
            "vLLM": said_of(topics[name], vllm),
            "mini_vllm": said_of(topics[name], mini),
        }
        if said["vLLM"] == said["mini_vllm"]:
            said = {"vLLM and mini_vllm alike": said["vLLM"]}
        for who, lines in said.items():
            print(f"{name}, {who}", *lines, sep="\n  ")


if __name__ == "__main__":
    main(sys.argv[1:])
