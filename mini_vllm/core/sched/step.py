"""A step while it is decided: what the scheduler's methods hand to each other."""

from __future__ import annotations

from mini_vllm.core.kv_cache_manager import KVCacheBlocks
from mini_vllm.core.request import Request


class Step:
    """A step while `schedule` decides it: what is left to give out, and which request got what.

    Upstream keeps these as local variables of one long `schedule`, under the same names. (Written out,
    because the default factories of a dataclass are calls, and there is a step every few milliseconds.)
    """

    __slots__ = (
        "num_scheduled_tokens",
        "preempted_reqs",
        "req_to_new_blocks",
        "scheduled_new_reqs",
        "scheduled_resumed_reqs",
        "scheduled_running_reqs",
        "scheduled_spec_decode_tokens",
        "token_budget",
    )

    def __init__(self, token_budget: int) -> None:
        self.token_budget = token_budget
        self.num_scheduled_tokens: dict[str, int] = {}  # in scheduling order
        # Blocks new to the worker: those just taken, or for an admitted request its whole table.
        self.req_to_new_blocks: dict[str, KVCacheBlocks] = {}
        self.scheduled_new_reqs: list[Request] = []
        self.scheduled_resumed_reqs: list[Request] = []
        self.scheduled_running_reqs: list[Request] = []
        self.preempted_reqs: list[Request] = []
        self.scheduled_spec_decode_tokens: dict[str, list[int]] = {}
