"""Which adapters have requests, for the metric `lora_requests_info`."""

from __future__ import annotations

import time
from collections.abc import Sequence

from mini_vllm.core.sched.output import EngineCoreOutput, SchedulerOutput

MOST_STATES = 1000
"""Label sets that are kept. Upstream there is no limit."""


class LoRARequestStates:
    """Adapters by name with the requests that have had a token and have not ended
    (`vllm/v1/metrics/stats.py:507 LoRARequestStates`).

    Upstream a request's events travel with its first token, so one that waits for that token is not among
    them; and an adapter is named among the running as well as the waiting whatever its requests do
    (`vllm/v1/metrics/stats.py:534 LoRARequestStates.update_scheduler_stats`). It is so here.

    Attributes:
        seen: when the engine was last in each state: names joined by commas, seconds since 1970.
    """

    def __init__(self) -> None:
        self.seen: dict[str, float] = {}
        self._names: dict[str, str] = {}  # by request
        self._requests: dict[str, set[str]] = {}  # by name; in order of their first tokens

    def observe_step(self, plan: SchedulerOutput, outputs: Sequence[EngineCoreOutput]) -> None:
        """Take down one step. Called in the engine thread."""
        for new in plan.scheduled_new_reqs:
            if new.lora_request is not None:
                self._names[new.req_id] = new.lora_request.lora_name
        for req_id in plan.finished_req_ids:  # aborted, or known to have ended
            self._forget(req_id)
        for output in outputs:
            name = self._names.get(output.request_id)
            if name is not None and output.new_token_ids:
                self._requests.setdefault(name, set()).add(output.request_id)
            if output.finish_reason is not None:
                self._forget(output.request_id)
        names = ",".join(self._requests)
        self.seen.pop(names, None)
        self.seen[names] = time.time()
        if len(self.seen) > MOST_STATES:
            del self.seen[next(iter(self.seen))]

    def _forget(self, req_id: str) -> None:
        name = self._names.pop(req_id, "")
        if name in self._requests:
            self._requests[name].discard(req_id)
            if not self._requests[name]:
                del self._requests[name]
