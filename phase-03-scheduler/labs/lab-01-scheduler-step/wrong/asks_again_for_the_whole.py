"""Whoever runs is asked again whether the whole sequence fits.

That is asked at admission. Afterwards others have taken blocks, too, and a piece that fits would be refused.

Refused by `test_who_runs_asks_for_a_piece`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from course.learner.labs import load_solution

solution = load_solution(__file__)


Right = solution.Scheduler


class Scheduler(Right):
    def _schedule_running(self, step: Any) -> None:
        manager = self.kv_cache_manager
        must_fit = self.config.scheduler_reserve_full_isl
        manager.allocate_slots = partial(manager.allocate_slots, full_sequence_must_fit=must_fit)
        super()._schedule_running(step)
        del manager.allocate_slots


solution.Scheduler = Scheduler


def __getattr__(name: str) -> Any:
    return getattr(solution, name)
