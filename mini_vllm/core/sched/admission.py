"""The gate of admission: features decide whether a waiting request is admitted, skipped, or ends admission.

Mirrors what LoRA, grammars, encoder inputs and KV connectors decide in vLLM's loop over the waiting
requests (`vllm/v1/core/sched/scheduler.py:545 in Scheduler.schedule`, to 823). Upstream names each of these
features in the loop; here a feature is an `AdmissionRule`. Without rules the gate lets every request pass.

Left out: KV that a connector loads asynchronously. Upstream gives such a request its blocks and lets it
wait until they are filled (`vllm/v1/core/sched/scheduler.py:763 in Scheduler.schedule`).
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from mini_vllm.core.request import Request, RequestStatus


class Admission(enum.Enum):
    """What happens to a waiting request in this step.

    ADMIT: it runs. SKIP: it waits for something of its own, such as its grammar. Holding others back would
    not help, so those behind it may pass. STOP: blocks or a budget are short, so those behind it wait too;
    otherwise they could take what it waits for again and again.
    """

    ADMIT = enum.auto()
    SKIP = enum.auto()
    STOP = enum.auto()


class AdmissionRule:
    """One feature's part in admission. A rule overrides what it needs; the defaults let every request pass.

    Attributes:
        blocked_status: the status of requests that this feature makes wait, such as
            `WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR`; None: it has none.
    """

    blocked_status: RequestStatus | None = None

    def start_step(self, scheduled_running_reqs: Sequence[Request]) -> None:
        """Called when admission begins, with the running requests that this step has scheduled
        (`vllm/v1/core/sched/scheduler.py:537 in Scheduler.schedule`: their adapters are in use)."""

    def is_ready(self, request: Request) -> bool:
        """Whether a request in `blocked_status` has what it waits for
        (`vllm/v1/core/sched/scheduler.py:2103 Scheduler._try_promote_blocked_waiting_request`)."""
        return True

    def check(self, request: Request) -> Admission:
        """The decision before the request's prefix is looked up
        (`vllm/v1/core/sched/scheduler.py:574 in Scheduler.schedule`: is there a slot for its adapter?)."""
        return Admission.ADMIT

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> int | None:
        """How many tokens' KV this feature supplies, after the first `num_computed_tokens`, which the prefix
        cache and earlier rules have. None: not known yet, so the request is skipped. The last token must
        be left to compute (`vllm/v1/core/sched/scheduler.py:599 in Scheduler.schedule`: a KV connector)."""
        return 0

    def limit_new_tokens(
        self, request: Request, num_computed_tokens: int, num_new_tokens: int
    ) -> int:
        """How many of the `num_new_tokens` may run in this step; 0 stops admission
        (`vllm/v1/core/sched/scheduler.py:679 in Scheduler.schedule`: the encoder's budget)."""
        return num_new_tokens

    def admit(self, request: Request, num_external_tokens: int) -> None:
        """Called when the request has its blocks. `num_external_tokens`: what this rule's
        `get_num_new_matched_tokens` promised for it
        (`vllm/v1/core/sched/scheduler.py:746 in Scheduler.schedule`)."""

    def withdraw(self, request: Request) -> None:
        """Called when the rules have let the request pass, and then there are too few blocks
        (`vllm/v1/core/sched/scheduler.py:738 in Scheduler.schedule`)."""


class AdmissionGate:
    """All rules as one. The first rule that does not admit decides.

    Raises ValueError if two rules have the same `blocked_status`.
    """

    def __init__(self, rules: Sequence[AdmissionRule] = ()) -> None:
        self.rules = tuple(rules)
        self._rule_of_status: dict[RequestStatus, AdmissionRule] = {}
        self._num_matched_tokens: list[int] = []  # by rule, of the request asked about last
        for rule in self.rules:
            if (status := rule.blocked_status) is None:
                continue
            if status in self._rule_of_status:
                other = type(self._rule_of_status[status]).__name__
                raise ValueError(f"{type(rule).__name__} and {other} both block with {status}")
            self._rule_of_status[status] = rule

    def start_step(self, scheduled_running_reqs: Sequence[Request]) -> None:
        for rule in self.rules:
            rule.start_step(scheduled_running_reqs)

    def check(self, request: Request) -> Admission:
        """The rules' decision. A blocked request that is ready becomes WAITING first, or PREEMPTED if it has
        run before; a blocked status that belongs to no rule is an error, as it is upstream."""
        if RequestStatus.is_blocked(request.status):
            blocking_rule = self._rule_of_status.get(request.status)
            assert blocking_rule is not None, f"no admission rule has the status {request.status}"
            if not blocking_rule.is_ready(request):
                return Admission.SKIP
            resumed = request.num_preemptions > 0
            request.status = RequestStatus.PREEMPTED if resumed else RequestStatus.WAITING
        for rule in self.rules:
            decision = rule.check(request)
            if decision is not Admission.ADMIT:
                return decision
        return Admission.ADMIT

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> int | None:
        self._num_matched_tokens = []
        total = 0
        for rule in self.rules:
            num_tokens = rule.get_num_new_matched_tokens(request, num_computed_tokens + total)
            if num_tokens is None:
                return None
            self._num_matched_tokens.append(num_tokens)
            total += num_tokens
        return total

    def limit_new_tokens(
        self, request: Request, num_computed_tokens: int, num_new_tokens: int
    ) -> int:
        for rule in self.rules:
            num_new_tokens = rule.limit_new_tokens(request, num_computed_tokens, num_new_tokens)
        return num_new_tokens

    def admit(self, request: Request) -> None:
        """Tell each rule, with the number of tokens that it is to supply itself."""
        for rule, num_tokens in zip(self.rules, self._num_matched_tokens, strict=True):
            rule.admit(request, num_tokens)

    def withdraw(self, request: Request) -> None:
        for rule in self.rules:
            rule.withdraw(request)
