"""Between the core and the workers: one call here is a call on every worker.

Mirrors `vllm/v1/executor/abstract.py:37 Executor`. The core knows no runner: it asks for a step, then for
its tokens, and another executor may have that done in other processes. Left out: choosing one, profiling of
workers, sleep.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from mini_vllm.core.sched.output import DraftTokenIds, ModelRunnerOutput, SchedulerOutput
from mini_vllm.worker.components import GrammarRows


class ExecuteFuture(Future[Any]):
    """A result on its way. `execute_time`: seconds that it took to compute, once it is there."""

    execute_time = 0.0


class Executor(ABC):
    """Has workers carry out what the core asks for.

    Attributes:
        max_concurrent_batches: plans that the core may hand over before it asks for a result.
    """

    max_concurrent_batches: int

    @abstractmethod
    def collective_rpc(
        self,
        method: str,
        args: tuple[Any, ...] = (),
        non_block: bool = False,
        single_value: bool = False,
    ) -> Any:
        """Call a method of each worker's runner, in the order of the calls
        (`vllm/v1/executor/abstract.py:153 Executor.collective_rpc`).

        Args:
            non_block: return an `ExecuteFuture` of the answer at once.
            single_value: the answer of the worker that samples, instead of a list of all.
        """

    def register_failure_callback(self, callback: Callable[[BaseException], None]) -> None:  # noqa: B027
        """Have it called, in a thread of the executor's, with the error that ended a worker
        (`vllm/v1/executor/abstract.py:139 Executor.register_failure_callback`). A worker in this process
        cannot end alone."""

    def shutdown(self) -> None:  # noqa: B027
        """End the workers that are processes of their own
        (`vllm/v1/executor/abstract.py:280 Executor.shutdown`)."""

    def execute_dummy_batch(self) -> None:
        """Run the model on tokens of no request
        (`vllm/v1/executor/abstract.py:249 Executor.execute_dummy_batch`)."""
        self.collective_rpc("execute_dummy_batch")

    def execute_model(self, scheduler_output: SchedulerOutput, non_block: bool = False) -> Any:
        """Run a step up to its hidden states. What `ModelRunner.execute_model` returns, or a future of it
        (`vllm/v1/executor/abstract.py:210 Executor.execute_model`)."""
        return self.collective_rpc("execute_model", (scheduler_output,), non_block, True)

    def sample_tokens(
        self, grammar_output: GrammarRows | None = None, non_block: bool = False
    ) -> Any:
        """The step's `ModelRunnerOutput`, or a future of it
        (`vllm/v1/executor/abstract.py:236 Executor.sample_tokens`)."""
        return self.collective_rpc("sample_tokens", (grammar_output,), non_block, True)

    def take_draft_token_ids(self, req_ids: list[str] | None = None) -> DraftTokenIds | None:
        """What the last step drafted for its requests, or what is there for these."""
        drafts: DraftTokenIds | None = self.collective_rpc(
            "take_draft_token_ids", (req_ids,), single_value=True
        )
        return drafts


def run_step(executor: Executor, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
    """A step from plan to tokens, waited for."""
    output: ModelRunnerOutput | None = executor.execute_model(scheduler_output)
    if output is None:
        output = executor.sample_tokens()
    assert output is not None
    return output
