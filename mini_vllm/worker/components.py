"""What an ability adds to a step, and what stands in its place when it is off.

The model runner holds one component for each ability and calls it at the same places of every step, whether
the ability is on or off. So abilities combine without knowing of each other, and one that is off costs the
call of an empty function. Upstream's second runner is built so (`vllm/v1/worker/gpu/spec_decode/`,
`vllm/v1/worker/gpu/kv_connector.py:30 KVConnector`, whose `NO_OP_KV_CONNECTOR` is such a stand-in).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from mini_vllm.attention import AttentionMetadata
from mini_vllm.core.sched.output import DraftTokenIds, ModelRunnerOutput
from mini_vllm.sample.metadata import SamplingMetadata
from mini_vllm.worker.gpu_input_batch import CachedRequestState, Ints

if TYPE_CHECKING:
    from mini_vllm.attention.backend import Array
    from mini_vllm.lora.request import LoadedLoRARequest


@dataclass(slots=True)
class ExecuteModelState:
    """A step between `execute_model` and `sample_tokens`
    (`vllm/v1/worker/gpu_model_runner.py:399 ExecuteModelState`).

    Attributes:
        req_ids: in the scheduler's order; n of them.
        rows: `[n]`, each request's row of the batch.
        num_draft_tokens: `[n]`, drafts among each request's tokens; plain 0 where nothing is drafted.
        input_ids, positions: `[num_tokens]`.
        attn_metadata: the step's.
        hidden_states: `[num_tokens, hidden_size]`, in the model's own kind of array.
        aux_hidden_states: those of other layers, where a drafter asked for them.
    """

    req_ids: list[str]
    rows: Ints
    num_draft_tokens: Ints | int
    input_ids: Ints
    positions: Ints
    attn_metadata: AttentionMetadata
    hidden_states: Any
    aux_hidden_states: list[Any] | None = None


class Speculation(Protocol):
    """Drafts: written behind the tokens before a step, judged after it, and made for the next.

    Attributes:
        num_spec_tokens: drafts a request.
        use_aux_hidden_states: the forward pass is to give those of other layers too.
    """

    num_spec_tokens: int
    use_aux_hidden_states: bool

    def correct_num_computed_tokens(self, req_ids: list[str]) -> None:
        """After the batch took over what a plan says of running requests: put right what that plan counted
        before the drafts were judged."""
        ...

    def forget(self, req_id: str) -> None:
        """The request has left the batch."""
        ...

    def write_drafts(self, req_ids: list[str], scheduled: Mapping[str, list[int]]) -> Ints | int:
        """Write the drafts that are to be judged behind the tokens of their requests.

        Returns how many each request has, `[len(req_ids)]`, or 0 for all.
        """
        ...

    def get_metadata(self, state: ExecuteModelState, caught_up: Ints) -> Any:
        """Which rows of logits judge a draft, for these requests of the step; None where none has drafts."""
        ...

    def sample(
        self,
        logits: Array,
        metadata: Any,
        states: list[CachedRequestState],
        sampling_metadata: SamplingMetadata,
        result: ModelRunnerOutput,
    ) -> list[list[int]]:
        """The tokens that each request gets, where some have drafts."""
        ...

    def propose(
        self,
        state: ExecuteModelState,
        caught_up: Ints,
        sampled_token_ids: list[list[int]],
        sampling_metadata: SamplingMetadata | None,
        to_numpy: Callable[[Any], Array],
    ) -> None:
        """Draft for the next step, from the tokens that this one gave to each request, `[n]` lists."""
        ...

    def take_draft_token_ids(self, req_ids: list[str] | None = None) -> DraftTokenIds | None:
        """What was drafted last, of the requests of the last step or of these; None: nothing
        (`vllm/v1/worker/gpu_model_runner.py:4637 GPUModelRunner.take_draft_token_ids`)."""
        ...


class GrammarRows(Protocol):
    """What grammars allow in a step. It comes with `sample_tokens`, where a request has a rule."""

    def apply(self, logits: Array, req_ids: Sequence[str]) -> Array:
        """The logits of these requests, whose drafts have rows too, with -inf for what is barred."""
        ...


class LoRA(Protocol):
    """Adapters: brought into slots before a step, and added to the linear layers in it."""

    def set_active_loras(
        self,
        req_ids: list[str],
        num_scheduled_tokens: Ints,
        requests: Mapping[str, CachedRequestState],
    ) -> None:
        """Before the model runs.

        Args:
            req_ids: the step's requests, in order.
            num_scheduled_tokens: `[len(req_ids)]`.
            requests: what the worker knows of them.
        """
        ...

    def add_lora(self, lora_request: LoadedLoRARequest) -> None:
        """Between two steps: bring an adapter into memory and a slot."""
        ...

    def list_loras(self) -> set[int]:
        """The ids of the adapters in memory."""
        ...


class NoLoRA:
    """No request has an adapter."""

    def set_active_loras(self, *_: Any) -> None:
        pass

    def add_lora(self, *_: Any) -> None:
        raise AssertionError("LoRA is not enabled")

    def list_loras(self) -> set[int]:
        return set()


class NoSpeculation:
    """Nothing is drafted: each request that has caught up gives one row of logits."""

    num_spec_tokens = 0
    use_aux_hidden_states = False

    def correct_num_computed_tokens(self, req_ids: list[str]) -> None:
        pass

    def forget(self, req_id: str) -> None:
        pass

    def write_drafts(self, req_ids: list[str], scheduled: Mapping[str, list[int]]) -> int:
        return 0

    def get_metadata(self, state: ExecuteModelState, caught_up: Ints) -> None:
        return None

    def sample(self, *_: Any) -> list[list[int]]:
        raise AssertionError("no request has drafts")

    def propose(self, *_: Any) -> None:
        pass

    def take_draft_token_ids(self, req_ids: list[str] | None = None) -> None:
        return None
