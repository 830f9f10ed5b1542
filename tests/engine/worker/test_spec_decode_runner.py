"""The worker's side of drafts: rows, counts, and what it knows that a plan does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mini_vllm.core.sched.output import DraftTokenIds
from mini_vllm.engine.llm_engine import LLMEngine
from mini_vllm.engine.parts import EngineParts
from mini_vllm.sample.rejection_sampler import RejectionSampler
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.worker.speculation import SpecDecode
from tests.engine.helpers.engine.drafters import count_drafts, drafting_engine, speculative_config
from tests.engine.helpers.engine.engine_helpers import run
from tests.engine.helpers.engine.workloads import greedy, make_engine, prompts

PARAMS = SamplingParams(temperature=0, max_tokens=14, ignore_eos=True)


class Oracle:
    """Proposes what the test says: `right` tokens of the text to come, then wrong ones, k in all."""

    def __init__(self, text: list[int], right: list[int], k: int = 3) -> None:
        self.text, self.right, self.k = text, right, k

    def propose(
        self, sampled_token_ids: Any, num_tokens_no_spec: Any, token_ids_cpu: Any
    ) -> list[list[int]]:
        (sampled,), (num_tokens,) = sampled_token_ids, num_tokens_no_spec
        if not sampled:
            return [[]]
        assert token_ids_cpu[0, :num_tokens].tolist() == self.text[:num_tokens]
        right = self.right.pop(0) if self.right else 0
        drafts = self.text[num_tokens : num_tokens + right]
        return [drafts + [63] * (self.k - len(drafts))]


def oracle_engine(right: list[int]) -> tuple[LLMEngine, list[int], list[int]]:
    """An engine over one request whose drafts are right so far in each step; its prompt and its answer."""
    (prompt,) = prompts(8, 9)
    answer = greedy(prompt, 14)
    assert len(answer) == 14
    assert 63 not in answer
    parts = EngineParts(drafter=lambda config, model: Oracle(prompt + answer, right))
    spec = speculative_config("ngram")
    return make_engine(parts, speculative_config=spec, num_gpu_blocks=60), prompt, answer


def test_a_step_gives_what_is_right_of_its_drafts_and_one_token() -> None:
    """With 0, 1, 2 and 3 right drafts a step brings 1 to 4 tokens, and the counters know."""
    engine, prompt, answer = oracle_engine([0, 1, 2, 3])
    total = count_drafts(engine)
    sizes: list[int] = []
    engine.engine_core.step_observers.append(
        lambda record: sizes.append(len(record.outputs[0].new_token_ids))
    )
    assert run(engine, [prompt], PARAMS) == [answer]
    assert sizes[:5] == [1, 1, 2, 3, 4]
    assert total.num_accepted_tokens_per_pos == [3, 2, 1]


def test_rejected_drafts_are_written_over() -> None:
    """The runner's row holds the request's tokens and no rejected one among them; all but the newest are
    computed."""
    engine, prompt, answer = oracle_engine([1, 0, 2, 0, 3])
    engine.add_request("a", prompt, PARAMS)
    runner = engine.engine_core.model_runner
    batch, speculation = runner.input_batch, runner.speculation
    assert isinstance(speculation, SpecDecode)
    text = prompt + answer
    while engine.has_unfinished_requests():
        engine.step()
        request = engine.engine_core.scheduler.requests.get("a")
        if request is None:
            break
        row = batch.req_id_to_index["a"]
        num_tokens = int(batch.num_tokens[row])
        assert batch.token_ids[row, :num_tokens].tolist() == text[:num_tokens]
        assert request.num_computed_tokens == num_tokens - 1
        assert runner.take_draft_token_ids() == DraftTokenIds(
            ["a"], [speculation._draft_token_ids["a"]]
        )


def test_the_worker_corrects_a_plan_that_counted_on_drafts() -> None:
    """Asynchronous plans count the drafts in flight as accepted. The worker starts where its tokens end."""
    engine = drafting_engine("other", async_scheduling=True, num_gpu_blocks=60)
    runner: Any = engine.engine_core.model_runner
    said: list[int] = []
    used: list[int] = []
    update, prepare = runner._update_states, runner._prepare_inputs

    def update_states(output: Any) -> None:
        said.extend(output.scheduled_cached_reqs.num_computed_tokens)
        update(output)

    def prepare_inputs(rows: np.ndarray, counts: np.ndarray) -> Any:
        batch = runner.input_batch
        used.extend(batch.num_computed_tokens[rows].tolist())
        assert (batch.num_computed_tokens[rows] < batch.num_tokens[rows]).all()
        return prepare(rows, counts)

    runner._update_states, runner._prepare_inputs = update_states, prepare_inputs
    (prompt,) = prompts(8, 9)
    assert run(engine, [prompt], PARAMS) == [greedy(prompt, 14)]
    assert any(plan > known for plan, known in zip(said, used[1:], strict=False)), (
        "no plan was ahead of the worker: the test shows nothing"
    )


def test_finished_requests_leave_nothing_behind() -> None:
    """No drafts, no rows."""
    engine = drafting_engine("noisy", spec={"draft_sample_method": "probabilistic"})
    params = SamplingParams(temperature=1.0, seed=1, max_tokens=9, ignore_eos=True)
    run(engine, prompts(1, 5, 7), params)
    run(
        engine, prompts(1, 5), SamplingParams(temperature=0, max_tokens=2)
    )  # tells the worker of the others
    runner: Any = engine.engine_core.model_runner
    assert len(runner.requests) == len(runner.speculation._draft_token_ids) == 1
    assert not runner.speculation._draft_probs


@pytest.mark.parametrize("kind", ["noisy", "eagle"])
def test_a_drafter_keeps_off_the_blocks_of_others(kind: str) -> None:
    """A request that was just admitted has no slots for its drafter's passes: they go to block 0, not to
    whatever its row held before."""
    engine = drafting_engine(kind, num_gpu_blocks=60, max_num_seqs=2)
    speculation: Any = engine.engine_core.model_runner.speculation
    manager = engine.engine_core.kv_cache_manager
    one_token_each = speculation.drafter._one_token_each
    propose = speculation._propose_by_model
    drafting: list[str] = []
    past_the_end: list[int] = []

    def remember(state: Any, *args: Any) -> None:
        drafting[:] = [state.req_ids[i] for i in args[2]]
        propose(state, *args)

    def check(*args: Any) -> Any:
        inputs = one_token_each(*args)
        slots = inputs.attn_metadata.slot_mapping.tolist()
        for req_id, slot in zip(drafting, slots, strict=True):
            assert slot // 4 in [0, *manager.get_block_ids(req_id)[0]]
            past_the_end.extend([slot] if slot < 4 else [])
        return inputs

    speculation._propose_by_model, speculation.drafter._one_token_each = remember, check
    run(engine, prompts(3, 30, 8, 12, 4, 16), PARAMS)  # rows are used again
    assert past_the_end, "every request had slots for its drafter: the test shows nothing"


def test_learners_parts_draft_and_judge() -> None:
    """`EngineParts.drafter` and `rejection_sampler` are called as the engine's own are."""
    made: list[Any] = []

    def make_sampler(*args: Any) -> RejectionSampler:
        made.append(args)
        return RejectionSampler(*args)

    parts = EngineParts(rejection_sampler=make_sampler)
    engine = make_engine(parts, speculative_config=speculative_config("ngram"))
    ((sampler, spec),) = made
    assert sampler is engine.engine_core.model_runner.sampler
    assert spec is engine.config.speculation
