"""Lab 10-04: the half-empty pipeline. One way to do it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any


def predictions() -> dict[str, Any]:
    """The answers to the README's six questions."""
    return {
        "four together": (16, 8),
        "two apart": (17, 1),
        "idle": (1 / 9, 1 / 2),
        "half the slots": (32, 16),
        "a long prompt": 0,
        "split": 17,
    }


# ---- the queue -----------------------------------------------------------------------------------


@dataclass
class Batch:
    """A schedule in flight."""

    scheduler_output: Any
    future: Any


class BatchQueue:
    """The schedules in flight: the newest goes in on the left, the oldest comes out on the right."""

    def __init__(self, scheduler: Any, executor: Any) -> None:
        self.scheduler = scheduler
        self.executor = executor
        self.size: int = executor.max_concurrent_batches
        self.batches: deque[Batch] = deque()

    def __len__(self) -> int:
        return len(self.batches)

    def step(self) -> list[Any] | None:
        """One turn: schedule, then return, or take the oldest in."""
        if self.scheduler.has_requests():
            scheduler_output = self.scheduler.schedule()
            has_tokens = scheduler_output.total_num_scheduled_tokens > 0
            future = self.executor.execute_model(scheduler_output, non_block=True)
            if has_tokens:
                future = self.executor.sample_tokens(non_block=True)
            self.batches.appendleft(Batch(scheduler_output, future))
            if has_tokens and len(self.batches) < self.size:
                return None
        elif not self.batches:
            return None
        oldest = self.batches.pop()
        model_output = oldest.future.result()
        outputs: list[Any] = self.scheduler.update_from_output(
            oldest.scheduler_output, model_output
        )
        return outputs


# ---- the rule ------------------------------------------------------------------------------------


def hold_back(scheduler: Any, stages: int) -> tuple[list[Any], int]:
    """No schedule gets more than its share of the requests that can run."""
    running = scheduler.running
    able = min(len(running) + len(scheduler.waiting), scheduler.max_num_running_reqs)
    share = -(-able // stages)
    free = [request for request in running if request.num_computed_tokens < request.num_tokens]
    return free[share:], max(0, share - len(free))


def lower_bound(lengths: list[tuple[int, int]], stages: int) -> int:
    """The most that a stage, or a request, must take."""
    work = sum(prompt + wanted - 1 for prompt, wanted in lengths)
    alone = max(prompt - 1 + stages * wanted for prompt, wanted in lengths)
    return max(work, alone)
