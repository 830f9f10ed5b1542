"""A recording of vLLM's `AsyncScheduler`, followed call by call.

Such a recording is a list of calls, plans and the taking in of their results (see
`course/parity/async_traces.py`). What it leaves out is worked out as `golden.py` does it; in between,
plans are in flight, and what they sample is not known yet.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from mini_vllm.trace.golden import Recording
from mini_vllm.trace.reasons import Explainer
from mini_vllm.trace.types import StepTrace


class AsyncRecording(Recording):
    """A recording of calls: `begin` and `step` for a plan, `update` for a result that comes in."""

    def __init__(self, recording: Any) -> None:
        super().__init__(recording)
        self.config["async_scheduling"] = True
        self.explainer = Explainer(self.config)
        # Of each plan: which requests sample with it, and beside how many drafts.
        self._in_flight: deque[dict[str, int]] = deque()

    def _outcome(self, request_id: str, step: Any) -> tuple[list[int], str | None]:
        return [], None

    def step(self, at: int, step: Any, arrived: list[str], aborted: list[str]) -> StepTrace:
        """What the plan decided, with the reasons. Its tokens and ends come with `update`."""
        before = {i: state.num_output_placeholders for i, state in self.explainer.states.items()}
        made = super().step(at, step, arrived, aborted)
        after = self.explainer.states
        samplers = [i for i in step["scheduled"] if after[i].num_output_placeholders > before[i]]
        self._in_flight.append({i: after[i].num_planned_drafts for i in samplers})
        return made

    def update(self, call: Any) -> None:
        """The result of the oldest plan in flight."""
        for request_id, num_drafts in self._in_flight.popleft().items():
            if request_id not in self.infos:
                continue  # it has ended since: the row is dropped
            info = self.infos[request_id]
            num_sampled = call["sampled"][request_id] if self.spec else 1
            new = self.recording["outputs"][request_id][len(info.output_token_ids) :][:num_sampled]
            info.output_token_ids.extend(new)
            self.tokens[request_id].extend(new)
            self.explainer.taken_in(request_id, new, num_drafts + 1 - num_sampled)
            if self.spec:
                self.computed[request_id] = self.explainer.states[request_id].num_computed_tokens
            if request_id in self.running:
                placeholders = self.explainer.states[request_id].num_output_placeholders
                self._publish(request_id, self.computed[request_id] - placeholders)
        for request_id in call["finished"]:
            if request_id in self.infos:
                if request_id in self.waiting:
                    self.waiting.remove(request_id)
                self._leave(request_id)
        self.running = list(call["running"])
