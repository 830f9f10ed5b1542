"""More people than noon has, on `mini_vllm`'s scheduler, with a clock and without a model.

The exercises use it where noon is too small: a storm of preemptions, chats beside documents. A step takes
what an A100 needs for Llama-3-8B at its best: it reads the weights, or computes its tokens, whichever is
longer (the roofline of phase 00). Scheduling and attention take no time here, and scheduling is synchronous.

The pages import this module by its name: start Python in this folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from mini_vllm import EngineConfig, SamplingParams
from mini_vllm.core.request import Request
from mini_vllm.core.sched.output import ModelRunnerOutput
from mini_vllm.core.sched.scheduler import Scheduler

PARAMETERS, OPERATIONS, BANDWIDTH = 8_030_261_248, 312e12, 2039e9
WEIGHTS_MS = 2 * PARAMETERS / BANDWIDTH * 1000
TOKEN_MS = 2 * PARAMETERS / OPERATIONS * 1000


@dataclass(frozen=True)
class Ask:
    """A request: when it comes, in ms, and how many tokens it has and wants."""

    name: str
    at: float
    prompt: int
    wants: int
    priority: int = 0


@dataclass
class Served:
    """What became of them.

    Attributes:
        steps: the tokens that each step computed for whom.
        times: of everybody, when each token of the answer came, in ms.
        preemptions: how many.
        ended: did everybody get the last token within the limit of steps?
    """

    asks: dict[str, Ask]
    steps: list[dict[str, int]] = field(default_factory=list)
    times: dict[str, list[float]] = field(default_factory=dict)
    preemptions: int = 0
    ended: bool = True

    @property
    def computed(self) -> int:
        """Tokens computed in all."""
        return sum(sum(step.values()) for step in self.steps)

    @property
    def seconds(self) -> float:
        """When the last token came."""
        return max(times[-1] for times in self.times.values()) / 1000

    def first(self, kind: str, percent: int) -> float:
        """A percentile of the ms to the first token, of those whose name begins with `kind`."""
        waits = [self.times[n][0] - ask.at for n, ask in self.asks.items() if n.startswith(kind)]
        return rank(waits, percent)

    def gap(self, kind: str, percent: int) -> float:
        """A percentile of the *longest* ms between two tokens of an answer, of those of a kind."""
        found = [
            max(b - a for a, b in pairwise(times))
            for name, times in self.times.items()
            if name.startswith(kind)
        ]
        return rank(found, percent)


def rank(numbers: Sequence[float], percent: int) -> float:
    """The smallest of the numbers that `percent` of them do not exceed."""
    ordered = sorted(numbers)
    return ordered[-(-len(ordered) * percent // 100) - 1]


def serve(
    asks: Sequence[Ask], scheduler: Any = Scheduler, limit: int = 100_000, **settings: Any
) -> Served:
    """Everybody, each when they come, until the last token or for `limit` steps.

    Args:
        asks: in the order of their coming; nobody shares a prefix with another.
        scheduler: the class to use.
        settings: of `EngineConfig`; 4,000 blocks of 16 where nothing is said.
    """
    given: dict[str, Any] = {"num_gpu_blocks": 4001, "max_model_len": 20_000, "max_num_seqs": 128}
    config = EngineConfig(**(given | {"max_num_batched_tokens": 2048} | settings))
    made, served = scheduler(config), Served({ask.name: ask for ask in asks})
    block_size = config.block_size if config.enable_prefix_caching else None
    due, now = list(asks), 0.0
    while due or made.has_unfinished_requests():
        if len(served.steps) == limit:
            served.ended = False
            break
        if not made.has_unfinished_requests():
            now = max(now, due[0].at)
        while due and due[0].at <= now:
            ask = due.pop(0)
            prompt = [len(due) + 3] * ask.prompt
            params = SamplingParams(max_tokens=ask.wants, ignore_eos=True)
            made.add_request(
                Request(ask.name, prompt, params, ask.at, ask.priority, block_size=block_size)
            )
        scheduler_output = made.schedule()
        names = list(scheduler_output.num_scheduled_tokens)
        now += max(WEIGHTS_MS, TOKEN_MS * scheduler_output.total_num_scheduled_tokens)
        sampled: list[list[int]] = []
        for name in names:
            request = made.requests[name]
            caught_up = request.num_computed_tokens == request.num_tokens
            sampled.append([1] if caught_up else [])
            if caught_up:
                served.times.setdefault(name, []).append(now)
        index = {name: number for number, name in enumerate(names)}
        made.update_from_output(scheduler_output, ModelRunnerOutput(names, index, sampled))
        served.steps.append(dict(scheduler_output.num_scheduled_tokens))
    served.preemptions = made.num_preemptions
    return served


def chats_and_documents(per_second: float, seconds: float) -> list[Ask]:
    """Nine chats of 200 tokens to each document of 16,000, evenly spaced; each wants 100 tokens."""
    asks = []
    for number in range(int(per_second * seconds)):
        kind, length = ("doc", 16_000) if number % 10 == 5 else ("chat", 200)
        asks.append(Ask(f"{kind} {number}", number * 1000 / per_second, length, 100))
    return asks
