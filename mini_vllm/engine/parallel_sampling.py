"""The `n` samples of one request: requests of their own to the core, one request to its user.

Mirrors `vllm/v1/engine/parallel_sampling.py`.
"""

from __future__ import annotations

import copy

from mini_vllm.outputs import CompletionOutput
from mini_vllm.sampling_params import RequestOutputKind, SamplingParams


class ParentRequest:
    """A request with `n > 1`: `n` children that the core schedules as requests of their own.

    They share nothing but the prefix cache. A seed given is made each child's own by adding its
    index. Source: `vllm/v1/engine/parallel_sampling.py:13 ParentRequest`.
    """

    def __init__(self, request_id: str, sampling_params: SamplingParams) -> None:
        self.request_id = request_id
        self.sampling_params = sampling_params
        self.child_requests: set[str] = set()
        self.finished_outputs: dict[int, CompletionOutput] = {}

    def get_child_info(self, index: int) -> tuple[str, SamplingParams]:
        """The id and the parameters of child `index` (0 to n - 1)."""
        params = copy.copy(self.sampling_params)
        params.n = 1
        if params.seed is not None:
            params.seed += index
        child_id = f"{index}_{self.request_id}"
        self.child_requests.add(child_id)
        return child_id, params

    def get_outputs(
        self, child_id: str, output: CompletionOutput
    ) -> tuple[list[CompletionOutput], bool]:
        """What to pass on now, and whether all children have finished.

        FINAL_ONLY waits for the last child and then gives all, by index. The other kinds pass a child's
        last output on once (`vllm/v1/engine/parallel_sampling.py:100 ParentRequest.get_outputs`).
        """
        given_already = output.finished() and child_id not in self.child_requests
        if output.finished():
            self.child_requests.discard(child_id)
        finished = not self.child_requests
        if self.sampling_params.output_kind is not RequestOutputKind.FINAL_ONLY:
            return ([] if given_already else [output]), finished
        self.finished_outputs[output.index] = output
        if not finished:
            return [], False
        return [self.finished_outputs[i] for i in sorted(self.finished_outputs)], True
