"""A recorded workload, taken apart: in which order the scheduler asked for blocks and took them back.

A trace has what each step decided. In which order that came about follows from it, and
`mini_vllm.Scheduler` follows it here, with a manager that notes who asks: it decides as vLLM does
(`course.parity.decisions`), and a recording that it cannot follow is refused. What stands here names
requests and tokens, and no block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from course.parity.decisions import mini_parts
from course.parity.traces import Arrival, Decision, Run, Trace, TraceError
from mini_vllm.config.engine import ResolvedConfig
from mini_vllm.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from mini_vllm.core.request import Request
from mini_vllm.core.sched.scheduler import Scheduler


@dataclass(frozen=True)
class Turn:
    """One request's turn in a step.

    Attributes:
        request_id: whose turn it is.
        num_tokens: tokens that it is to compute in this step.
        admitted: it comes from the waiting queue, and holds nothing so far.
        victims: who was preempted for it, one after the other. Before each of them blocks were asked
            for, and refused. The last may be the request itself.
        fits: whether it got its blocks in the end. False: it preempted itself, or stays in the queue.
    """

    request_id: str
    num_tokens: int
    admitted: bool
    victims: tuple[str, ...]
    fits: bool


@dataclass(frozen=True)
class Turns:
    """One step: what happened before `schedule()`, the turns in it, and what came of the tokens.

    Attributes:
        arrived: the requests added before the step, with their index in the trace.
        aborted: who was taken out before the step, in that order.
        turns: in the order in which the scheduler took them.
        sampled: request id to the token that it sampled; in scheduling order.
        decision: what the trace has of this step.
    """

    arrived: tuple[tuple[int, Arrival], ...]
    aborted: tuple[str, ...]
    turns: tuple[Turn, ...]
    sampled: dict[str, int]
    decision: Decision


@dataclass
class _Log:
    """What the watched manager was asked since it was last read, in order."""

    asked: list[tuple[Request, int, bool]] = field(default_factory=list)
    freed: list[tuple[int, str]] = field(default_factory=list)  # (asked so far, id)

    def turns(self, running: set[str]) -> Iterator[Turn]:
        """The turns of a `schedule()`, before which these were running."""
        freed = iter([*self.freed, (-1, "")])
        at, victim = next(freed)
        victims: list[str] = []
        for number, (request, num_tokens, fits) in enumerate(self.asked, 1):
            if at == number:  # refused, and somebody was preempted for it
                victims.append(victim)
                at, victim = next(freed)
                if victims[-1] != request.request_id:
                    continue
            request_id = request.request_id
            yield Turn(request_id, num_tokens, request_id not in running, tuple(victims), fits)
            victims = []


class _Watched(KVCacheManager):
    """Notes in `log` who asks for slots and what is freed."""

    log: _Log

    def allocate_slots(
        self, request: Request, num_new_tokens: int, *args: Any, **kwargs: Any
    ) -> KVCacheBlocks | None:
        blocks = super().allocate_slots(request, num_new_tokens, *args, **kwargs)
        self.log.asked.append((request, num_new_tokens, blocks is not None))
        return blocks

    def free(self, request: Request) -> None:
        self.log.freed.append((len(self.log.asked), request.request_id))
        super().free(request)


def follow(trace: Trace, steps: int | None = None) -> list[Turns]:
    """The first `steps` steps of a trace (default: all), taken apart.

    Raises TraceError where the recorded decision is not the one that follows from those before.
    """
    config, log = trace["config"], _Log()
    manager = _Watched(
        config["num_blocks"],
        config["block_size"],
        config["max_model_len"],
        config["enable_prefix_caching"],
    )
    manager.log = log
    turns: tuple[Turn, ...] = ()

    def scheduler(engine: ResolvedConfig) -> Scheduler:
        made = Scheduler(engine, manager)
        schedule = made.schedule

        def noted() -> Any:
            nonlocal turns
            running = {request.request_id for request in made.running}
            output = schedule()
            turns = tuple(log.turns(running))
            return output

        made.schedule = noted  # type: ignore[method-assign]
        return made

    run = Run(trace, mini_parts(config, scheduler))
    index = {q["id"]: i for i, q in enumerate(trace["requests"])}
    found = []
    for step, recorded in enumerate(trace["steps"][:steps]):
        known, manager.log = set(run.live), (log := _Log())
        run.arrive()
        arrived = tuple((index[i], trace["requests"][index[i]]) for i in run.live if i not in known)
        aborted = tuple(request_id for _, request_id in log.freed)
        manager.log = log = _Log()
        lengths = {i: len(r.output_token_ids) for i, r in run.live.items()}
        decision = run.decide()
        if decision != recorded:
            raise TraceError(f"seed {trace['seed']}, step {step}: nothing known decides like this")
        sampled = {
            i: run.live[i].output_token_ids[-1]
            for i in decision["scheduled"]
            if len(run.live[i].output_token_ids) > lengths[i]
        }
        found.append(Turns(arrived, aborted, turns, sampled, recorded))
    return found
