"""What a rank's process does for the executor.

Mirrors `vllm/v1/worker/gpu_worker.py:109 Worker`. Left out: start-up and profiling of a device, sleep,
weights that are exchanged at run time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from mini_vllm.attention import AttentionMetadata
from mini_vllm.core.sched.output import DraftTokenIds, ModelRunnerOutput, SchedulerOutput
from mini_vllm.distributed.parallel_state import RankGroups
from mini_vllm.worker.components import GrammarRows
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

    def sample_tokens(self, grammar_output: GrammarRows | None = None) -> ModelRunnerOutput | None:
        """The step's tokens. None where they are sampled in another stage."""
        if self.groups.pipeline.is_last:
            return self.model_runner.sample_tokens(grammar_output)
        self.model_runner.execute_model_state = None
        return None

    def execute_dummy_batch(self) -> None:
        """Run the model on one token of no request, for the sake of ranks in other engines that wait for this
        one's experts (`vllm/v1/worker/gpu_worker.py:927 Worker.execute_dummy_batch`). Its K and V go to the
        null block, which no request reads."""
        runner = self.model_runner
        none, one = np.zeros(1, np.int32), np.ones(1, np.int32)
        metadata = AttentionMetadata(
            query_start_loc=np.arange(2, dtype=np.int32),
            seq_lens=one,
            block_table=none[None],
            slot_mapping=np.zeros(1, np.int64),
            block_size=runner.block_size,
        )
        if len(runner.sliding_windows) > 1:
            metadata = replace(metadata, layers=[metadata] * len(runner.kv_caches))
        with runner.forward.step():
            runner.forward.run(none, none, metadata)

    def take_draft_token_ids(self, req_ids: list[str] | None = None) -> DraftTokenIds | None:
        return self.model_runner.take_draft_token_ids(req_ids)

    def get_ledgers(self) -> dict[str, Any]:
        """What this rank has said since it was made, by group."""
        return self.groups.get_ledgers()
