"""Lab 10-04: the half-empty pipeline. Your work: every NotImplementedError."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any


def predictions() -> dict[str, Any]:
    """Your answers to the README's six questions, under the names given there."""
    raise NotImplementedError


# ---- the queue -----------------------------------------------------------------------------------


@dataclass
class Batch:
    """Given: a schedule in flight.

    Attributes:
        scheduler_output: what `schedule()` returned.
        future: of what the model gave for it. `future.result()` waits.
    """

    scheduler_output: Any
    future: Any


class BatchQueue:
    """The schedules in flight: the newest goes in on the left, the oldest comes out on the right."""

    def __init__(self, scheduler: Any, executor: Any) -> None:
        """Given.

        Args:
            scheduler: has `has_requests()`, `schedule()` and
                `update_from_output(scheduler_output, model_output)`, which returns a list of outputs.
            executor: has `execute_model(scheduler_output, non_block=True)` and
                `sample_tokens(non_block=True)`. Both return a future at once.
        """
        self.scheduler = scheduler
        self.executor = executor
        self.size: int = executor.max_concurrent_batches
        self.batches: deque[Batch] = deque()

    def __len__(self) -> int:
        """Given: how many schedules are in flight."""
        return len(self.batches)

    def step(self) -> list[Any] | None:
        """One turn of the loop, by the README's rules.

        `scheduler_output.total_num_scheduled_tokens` is the number of tokens in a schedule.

        Returns:
            What `update_from_output` returned, or None if this turn took nothing in.
        """
        raise NotImplementedError


# ---- the rule ------------------------------------------------------------------------------------


def hold_back(scheduler: Any, stages: int) -> tuple[list[Any], int]:
    """Called before each `schedule()`: which requests must sit this schedule out.

    Args:
        scheduler: `mini_vllm`'s or vLLM's. Read `running`, a list of requests, the earliest first;
            `len(scheduler.waiting)`; `max_num_running_reqs`, at most so many run at once. A request has
            `num_tokens`, those that are known, and `num_computed_tokens`, which counts tokens in flight.
            Change nothing.
        stages: of the pipeline.

    Returns:
        A list of the running requests that this schedule must leave out, and how many waiting ones it may
        admit at most, 0 or more.
        `([], 1000)` is vLLM's own rule: all that fits.
    """
    raise NotImplementedError


def lower_bound(lengths: list[tuple[int, int]], stages: int) -> int:
    """Ticks that no rule can go below where each token of a step keeps a stage busy for one tick.

    It is the larger of two numbers. The first is what one stage has to do: every token of every request
    passes it. The second is what the longest request takes if it has all stages to itself, in the best
    case: the first stage works through its prompt, the prompt's last token passes the other stages, and
    each further token passes all of them.

    Args:
        lengths: of each request the tokens of its prompt, and how many it is to get. The last of these is
            sampled, but never computed.
    """
    raise NotImplementedError
