"""What a rank's process does for the executor.

Mirrors `vllm/v1/worker/gpu_worker.py:109 Worker`. Left out: start-up and profiling of a device, sleep,
weights that are exchanged at run time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mini_vllm.core.sched.output import DraftTokenIds, ModelRunnerOutput, SchedulerOutput
from mini_vllm.distributed.parallel_state import RankGroups
from mini_vllm.worker.model_runner import ModelRunner


class Worker:
    """One rank.

    Args:
        model_runner: runs this rank's share of the model.
        groups: what the rank is part of.
    """

    def __init__(self, model_runner: ModelRunner, groups: RankGroups) -> None:
        self.model_runner = model_runner
        self.groups = groups

    def execute_model(
        self, scheduler_output: SchedulerOutput, sampled: Mapping[str, list[int]] | None = None
    ) -> ModelRunnerOutput | None:
        """Run the step through this rank's layers.

        Args:
            sampled: by request, what the last stage has sampled since the previous plan. The other stages
                must be told; upstream, where asynchronous scheduling is off, the plan has it
                (`vllm/v1/core/sched/output.py:120 CachedRequestData.new_token_ids`).
        """
        if sampled and not self.groups.pipeline.is_last:
            for req_id, token_ids in sampled.items():
                self._append(req_id, token_ids)
        return self.model_runner.execute_model(scheduler_output)

    def _append(self, req_id: str, token_ids: list[int]) -> None:
        runner = self.model_runner
        request = runner.requests.get(req_id)
        if request is None:
            return
        request.output_token_ids.extend(token_ids)
        row = runner.input_batch.req_id_to_index.get(req_id)
        if row is not None:
            runner.input_batch.append_tokens(np.array([row]), [token_ids])

    def sample_tokens(self, grammar_output: None = None) -> ModelRunnerOutput | None:
        """The step's tokens. None where they are sampled in another stage."""
        if self.groups.pipeline.is_last:
            return self.model_runner.sample_tokens(grammar_output)
        self.model_runner.execute_model_state = None
        return None

    def take_draft_token_ids(self) -> DraftTokenIds | None:
        return self.model_runner.take_draft_token_ids()

    def get_ledgers(self) -> dict[str, Any]:
        """What this rank has said since it was made, by group."""
        return self.groups.get_ledgers()
