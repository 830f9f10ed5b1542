"""The rejection sampler beside real vLLM's, on vLLM's own draws."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from mini_vllm.sample.metadata import SamplingMetadata
from mini_vllm.sample.rejection_sampler import (
    RejectionSampler,
    apply_sampling_constraints,
    rejection_sample,
    unconditional_to_conditional_rates,
)
from mini_vllm.sample.sampler import Sampler
from mini_vllm.spec_decode.metadata import SpecDecodeMetadata
from tests.engine.helpers.sampling.rejection_helpers import Batch, draw_batch
from tests.engine.helpers.sampling.sampler_helpers import VOCAB, Row, random_logits, rows_of
from tests.engine.helpers.thorough import either
from tests.engine.sample.test_rejection_sampler import drafted_params
from tests.engine.sample.test_sampler_vllm import vllm_sampler

pytestmark = pytest.mark.vllm


class Expand:
    """What the Triton kernel does; the CPU's does not, see the last test."""

    def __getitem__(self, grid: Any) -> Any:
        return self

    def __call__(self, output: Any, values: Any, ends: Any, old: int, new: int, **_: Any) -> None:
        start = 0
        for value, end in zip(values.tolist(), ends.tolist(), strict=True):
            output[start:end] = new if value == old else value
            start = end


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """vLLM's module, with the kernels that its CPU worker puts in, and its draws recorded in `drawn`."""
    import torch
    from vllm.utils import cpu_triton_utils
    from vllm.v1.sample import rejection_sampler as module

    for name in ("rejection_greedy_sample", "rejection_random_sample"):
        monkeypatch.setattr(module, f"{name}_kernel", getattr(cpu_triton_utils, f"{name}_kernel"))
    monkeypatch.setattr(module, "expand_kernel", Expand())
    drawn: dict[str, np.ndarray] = {}
    generate_uniform_probs = module.generate_uniform_probs

    def record_uniform_probs(*args: Any) -> Any:
        uniform_probs = generate_uniform_probs(*args)
        # The CPU's kernel compares in float32, a GPU's in float64.
        drawn["uniform_probs"] = uniform_probs.float().double().numpy()
        return uniform_probs

    class RecordInvQ:
        def __getitem__(self, grid: Any) -> Any:
            kernel = cpu_triton_utils.sample_recovered_tokens_kernel[grid]

            def call(*args: Any, **kwargs: Any) -> None:
                drawn["inv_q"] = args[5].numpy().copy()
                kernel(*args, **kwargs)

            return call

    monkeypatch.setattr(module, "generate_uniform_probs", record_uniform_probs)
    monkeypatch.setattr(module, "sample_recovered_tokens_kernel", RecordInvQ())
    monkeypatch.setattr(module, "drawn", drawn, raising=False)
    with torch.compiler.set_stance("force_eager"):
        yield module


def ask_vllm(module: Any, batch: Batch) -> np.ndarray:
    """What vLLM makes of the batch; its draws come into the batch."""
    import torch
    from vllm.v1.sample.logits_processor import LogitsProcessors
    from vllm.v1.sample.metadata import SamplingMetadata as VllmSamplingMetadata

    temperature = batch.temperature
    metadata = VllmSamplingMetadata(
        temperature=None if temperature is None else torch.tensor(temperature),
        all_greedy=temperature is None,
        all_random=temperature is not None and bool(temperature.all()),
        top_p=None,
        top_k=None,
        generators={},
        max_num_logprobs=None,
        no_penalties=True,
        prompt_token_ids=None,
        frequency_penalties=torch.zeros(0),
        presence_penalties=torch.zeros(0),
        repetition_penalties=torch.zeros(0),
        output_token_ids=[],
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        logitsprocs=LogitsProcessors(),
    )
    tokens: np.ndarray = module.rejection_sample(
        torch.tensor(batch.draft_token_ids, dtype=torch.int32),
        batch.num_draft_tokens,
        max(batch.num_draft_tokens),
        torch.tensor(np.cumsum(batch.num_draft_tokens), dtype=torch.int32),
        None if batch.draft_probs is None else torch.tensor(batch.draft_probs),
        torch.tensor(batch.target_logits),
        torch.tensor(batch.bonus_token_ids, dtype=torch.int32)[:, None],
        metadata,
    ).numpy()
    if temperature is not None:
        batch.uniform_probs = module.drawn["uniform_probs"]
        batch.inv_q = module.drawn["inv_q"]
    return tokens


def test_the_same_tokens_on_the_same_draws(theirs: Any) -> None:
    """2,000 batches of mixed rows, requests without drafts, both rules, up to 8 drafts and 200 tokens."""
    import torch

    torch.manual_seed(85)
    seen: Counter[str] = Counter()
    for seed in range(2000):
        batch = draw_batch(seed)
        want = ask_vllm(theirs, batch)
        got = rejection_sample(**vars(batch))
        assert got.tolist() == want.tolist(), f"batch {seed}: {asdict(batch)}"
        kind = "certain" if batch.draft_probs is None else "probabilistic"
        seen[kind] += 1
        kept = (want >= 0).sum(axis=1)
        seen["accepted"] += int(kept.sum()) - len(kept)
        seen["bonus"] += int((kept > np.array(batch.num_draft_tokens)).sum())
        seen["rejected"] += int((kept <= np.array(batch.num_draft_tokens)).sum())
        seen["without drafts"] += batch.num_draft_tokens.count(0)
    assert min(seen.values()) > 60, seen


def whole_step(seed: int, greedy: bool) -> tuple[list[Row], list[list[int]], np.ndarray]:
    rng = np.random.default_rng([86, seed])
    n = int(rng.integers(1, 7))
    rows = rows_of(*(drafted_params(rng, 0.0 if greedy else rng.uniform(0.3, 2)) for _ in range(n)))
    for row in rows:
        row.output_token_ids.extend(rng.integers(0, VOCAB, int(rng.integers(0, 5))).tolist())
    logits = random_logits(1000 + seed, 5 * n)
    best = logits.argmax(-1)
    drafts, at = [], 0
    for _ in range(n):
        k = int(rng.integers(0, 5))
        wild = rng.integers(0, VOCAB, k)
        drafts.append(np.where(rng.random(k) < 0.8, best[at : at + k], wild).tolist())
        at += k + 1
    if not any(drafts):
        drafts[0], at = [1], at + 1
    return rows, drafts, logits[:at]


@pytest.mark.parametrize("greedy", [True, False])
def test_penalties_bad_words_and_allowed_tokens_of_draft_rows(theirs: Any, greedy: bool) -> None:
    """The logits that judge each draft and the bonus row's, and of greedy batches tokens and logprobs."""
    import torch
    from vllm.v1.spec_decode.metadata import SpecDecodeMetadata as VllmSpecDecodeMetadata

    judged: dict[str, Any] = {}
    real_rejection_sample = theirs.rejection_sample

    def record(*args: Any, **kwargs: Any) -> Any:
        judged["logits"] = args[5].numpy().copy()
        return real_rejection_sample(*args, **kwargs)

    theirs.rejection_sample = record
    try:
        for seed in range(either(15, 100)):
            rows, drafts, logits = whole_step(seed, greedy)
            num = np.array([len(ids) for ids in drafts])
            input_ids = np.array([t for ids in drafts for t in [0, *ids]])
            metadata = SpecDecodeMetadata.build(num, np.cumsum(num + 1), input_ids)
            ours = SamplingMetadata.build(rows, VOCAB)
            sampler, real = vllm_sampler(rows)
            real.spec_token_ids = drafts
            real.bad_words_token_ids = {
                i: words
                for i, row in enumerate(rows)
                if (words := row.sampling_params.bad_words_token_ids)
            }
            out = theirs.RejectionSampler(sampler)(
                VllmSpecDecodeMetadata(
                    draft_token_ids=torch.tensor(metadata.draft_token_ids, dtype=torch.int32),
                    num_draft_tokens=metadata.num_draft_tokens,
                    cu_num_draft_tokens=torch.tensor(metadata.cu_num_draft_tokens).int(),
                    cu_num_sampled_tokens=torch.tensor(metadata.cu_num_sampled_tokens).int(),
                    target_logits_indices=torch.tensor(metadata.target_logits_indices).int(),
                    bonus_logits_indices=torch.tensor(metadata.bonus_logits_indices).int(),
                    logits_indices=torch.tensor(metadata.logits_indices).int(),
                ),
                None,
                torch.tensor(logits),
                real,
            )

            draft_rows = ours.repeat_rows(
                [(i, ids[:pos]) for i, ids in enumerate(drafts) for pos in range(len(ids))]
            )
            mine = logits[metadata.target_logits_indices]
            mine = Sampler.apply_logits_processors(mine, draft_rows)
            mine = apply_sampling_constraints(mine, draft_rows)
            np.testing.assert_allclose(mine, judged["logits"], rtol=1e-5, atol=1e-5)
            bonus = logits[metadata.bonus_logits_indices]
            want = sampler.apply_logits_processors(torch.tensor(bonus), real, True)
            seen: dict[str, np.ndarray] = {}

            class Spy(Sampler):
                def sample(self, logits: np.ndarray, sampling_metadata: Any) -> np.ndarray:
                    seen["bonus"] = logits  # noqa: B023
                    return super().sample(logits, sampling_metadata)

            result = RejectionSampler(Spy())(metadata, None, logits, ours)
            np.testing.assert_allclose(seen["bonus"], want.numpy(), rtol=1e-5, atol=1e-5)
            if not greedy:
                continue
            assert result.sampled_token_ids.tolist() == out.sampled_token_ids.tolist()
            tokens, lists = RejectionSampler.parse_output(
                result.sampled_token_ids, VOCAB, (), result.logprobs
            )
            real_tokens, real_lists = theirs.RejectionSampler.parse_output(
                out.sampled_token_ids, VOCAB, (), out.logprobs_tensors
            )
            assert tokens == real_tokens
            assert (lists is None) == (real_lists is None)
            if lists is not None:
                for place in range(3):
                    got = np.concatenate([one[place] for one in lists])
                    np.testing.assert_allclose(got, real_lists[place], rtol=1e-5, atol=1e-5)
    finally:
        theirs.rejection_sample = real_rejection_sample


def test_conditional_rates() -> None:
    """vLLM's own function, on rates that reach 0 and rates that do not."""
    from vllm.v1.spec_decode.utils import unconditional_to_conditional_rates as real

    for rates in ([0.9, 0.45, 0.0, 0.0], [1.0, 1.0], [0.7], [0.0, 0.0]):
        assert unconditional_to_conditional_rates(rates) == real(rates)


def test_rows_of_drafts() -> None:
    """`SpecDecodeMetadata.build` and vLLM's model runner on the same step."""
    import torch
    from vllm.v1.spec_decode.metadata import SpecDecodeMetadata as VllmSpecDecodeMetadata
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    class Runner:
        """What `_calc_spec_decode_metadata` reads of a model runner."""

        device = torch.device("cpu")
        _arange_scratch = np.zeros(1000, np.int32)
        _arange_np = np.arange(1000, dtype=np.int32)
        arange_np = _arange_np
        _get_cumsum_and_arange = GPUModelRunner._get_cumsum_and_arange

        class input_ids:
            gpu = torch.arange(1000, dtype=torch.int32)

    rng = np.random.default_rng(87)
    for _ in range(30):
        num = rng.integers(0, 5, int(rng.integers(1, 9))).astype(np.int32)
        ends = np.cumsum(num + rng.integers(1, 5, len(num))).astype(np.int32)
        want = GPUModelRunner._calc_spec_decode_metadata(Runner(), num, ends)  # type: ignore[arg-type]
        got = SpecDecodeMetadata.build(num, ends, np.arange(1000))
        names = set(VllmSpecDecodeMetadata.__dataclass_fields__) - {"num_draft_tokens"}
        for name in sorted(names):
            assert getattr(got, name).tolist() == getattr(want, name).tolist(), name
        assert got.num_draft_tokens == want.num_draft_tokens
        assert got.max_spec_len == want.max_spec_len


def test_the_cpus_kernel_loses_the_temperature_of_draft_rows() -> None:
    """A fault of the pin's, on a CPU alone: `expand_kernel` writes into an int64 copy of its output, so the
    draft rows are divided by whatever was in memory. What the drafts of a request with a temperature are
    judged by there is not its distribution."""
    import torch
    from vllm.utils.cpu_triton_utils import expand_kernel

    output = torch.full((3,), 7.0)
    expand_kernel[(2,)](output, torch.tensor([0.5, 2.0]), torch.tensor([1, 3]), 0, 1)
    assert output.tolist() == [7.0, 7.0, 7.0]
