"""What scheduler and core ask of grammars.

`structured_output/scheduling.py` does it. It comes with the first request that has a rule, and until then
nothing is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from mini_vllm.core.request import Request
from mini_vllm.core.sched.output import DraftTokenIds, EngineCoreOutput, SchedulerOutput


class Grammars(Protocol):
    """The grammars of an engine's requests.

    Attributes:
        num_invalid_spec_tokens: by request, how many of its drafts in flight are barred.
    """

    num_invalid_spec_tokens: dict[str, int]

    def init(self, request: Request) -> None:
        """A new request with a rule: start to compile it, and let the request wait for that."""
        ...

    def execute_model(
        self, execute_model: Callable[..., Any], scheduler_output: SchedulerOutput
    ) -> tuple[Any, Any]:
        """Have the model run, and fill the step's rows meanwhile. What the model gave, and what
        `sample_tokens` takes."""
        ...

    def wait(self) -> None:
        """There is nothing else to do: give what compiles a moment."""
        ...

    def is_pending(self, scheduler_output: SchedulerOutput) -> bool:
        """Whether rows of this plan depend on tokens that are still in flight."""
        ...

    def get_grammar_bitmask(
        self,
        scheduler_output: SchedulerOutput,
        take_draft_token_ids: Callable[[list[str]], DraftTokenIds | None] | None = None,
    ) -> Any:
        """The rows of a step; None: it needs none. Where a plan has places for drafts, it asks for these."""
        ...

    def end_failed(self) -> list[EngineCoreOutput]:
        """End the requests whose rules did not compile."""
        ...

    def rejects(self, request: Request, new_token_ids: list[int]) -> bool:
        """Move the request's grammar on by what was sampled. True: it does not take that, and the request
        ends by an error."""
        ...

    def keep_allowed(self, request: Request, spec_token_ids: list[int]) -> list[int]:
        """The drafts that the request's grammar allows, up to the first that it bars."""
        ...

    def shutdown(self) -> None:
        """End what compiles."""
        ...
