"""One step: what it gave, and what an observer of the engine sees of it.

Not in vLLM, which logs and counts instead; the viewer, the simulator and the metrics read these.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from mini_vllm.core.stats import SchedulerStats

if TYPE_CHECKING:
    from mini_vllm.core.sched.output import EngineCoreOutput, ModelRunnerOutput, SchedulerOutput


@dataclass(slots=True)
class StepResult:
    """A step that is over: what was scheduled, what the model gave, what came of it.

    Times are seconds of wall clock: to schedule, to compute, to update.
    """

    scheduler_output: SchedulerOutput
    model_runner_output: ModelRunnerOutput
    outputs: list[EngineCoreOutput]
    schedule_time: float
    execute_time: float
    update_time: float


@dataclass(slots=True)
class StepRecord(StepResult):
    """One step, as an observer sees it: after the update, before the text is made.

    With asynchronous scheduling the next step is scheduled by then, and the times of steps overlap.

    Attributes:
        index: which step it is, from 1.
        scheduler_stats: the scheduler after the step.
    """

    index: int = 0
    scheduler_stats: SchedulerStats = field(default_factory=SchedulerStats)

    @classmethod
    def from_result(cls, index: int, result: StepResult, stats: SchedulerStats) -> Self:
        """The record of step `index`, of which `result` came."""
        return cls(
            result.scheduler_output, result.model_runner_output, result.outputs,
            result.schedule_time, result.execute_time, result.update_time, index, stats,
        )  # fmt: skip
