"""Given: your test on servers that were not made for it. Needs vLLM 0.22.1; `course grade` does not.

    python in_vllm.py [solution | starter]

Three rejection samplers write two tokens at temperature 0.7: the one of `mini_vllm`; vLLM's with a plain form
of what the Triton kernel `expand_kernel` does on a GPU; and vLLM's with its CPU build's own `expand_kernel`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from course.learner.labs import load_module, need_vllm
from mini_vllm.sample.metadata import SamplingMetadata
from mini_vllm.sample.ops import softmax
from mini_vllm.sample.rejection_sampler import RejectionSampler
from mini_vllm.sample.sampler import Sampler
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.spec_decode.metadata import SpecDecodeMetadata

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

HERE = Path(__file__).resolve().parent
support = load_module(HERE / "support.py", "lab_08_06_support")
# What the Triton kernel of this name does, as lab 08-02 has it.
Expand = load_module(
    HERE.parent / "lab-02-rejection-sampler" / "in_vllm.py", "lab_08_02_in_vllm"
).Expand
TEMPERATURE = 0.7


class OfTheEngine:
    """One step of `mini_vllm`'s rejection sampler."""

    def __init__(self) -> None:
        self.sampler = RejectionSampler(Sampler(seed=0))

    def step(self, metadata: SpecDecodeMetadata, logits: np.ndarray) -> np.ndarray:
        n = len(metadata.num_draft_tokens)
        rows = [Row() for _ in range(n)]
        asked = SamplingMetadata.build(rows, logits.shape[1])
        return self.sampler(metadata, None, logits, asked).sampled_token_ids


class Row:
    """A request, as the engine's sampler reads it."""

    sampling_params = SamplingParams(temperature=TEMPERATURE)
    generator = None

    def __init__(self) -> None:
        self.prompt_token_ids: list[int] = []
        self.output_token_ids: list[int] = []


class OfVllm:
    """One step of vLLM's."""

    def __init__(self, expand: Any, seed: int) -> None:
        import torch
        from vllm.utils import cpu_triton_utils
        from vllm.v1.sample import rejection_sampler as module
        from vllm.v1.sample.sampler import Sampler as VllmSampler

        torch.compiler.set_stance("force_eager")
        self.seed = seed
        names = ("rejection_greedy_sample", "rejection_random_sample", "sample_recovered_tokens")
        for name in names:
            setattr(module, f"{name}_kernel", getattr(cpu_triton_utils, f"{name}_kernel"))
        self.module, self.expand = module, expand or cpu_triton_utils.expand_kernel
        self.sampler = module.RejectionSampler(VllmSampler())

    def step(self, metadata: SpecDecodeMetadata, logits: np.ndarray) -> np.ndarray:
        import torch
        from vllm.v1.sample.logits_processor import LogitsProcessors
        from vllm.v1.sample.metadata import SamplingMetadata as VllmSamplingMetadata
        from vllm.v1.spec_decode.metadata import SpecDecodeMetadata as VllmSpecDecodeMetadata

        n = len(metadata.num_draft_tokens)
        asked = VllmSamplingMetadata(
            temperature=torch.full((n,), TEMPERATURE),
            all_greedy=False,
            all_random=True,
            top_p=None,
            top_k=None,
            generators={},
            max_num_logprobs=None,
            no_penalties=True,
            prompt_token_ids=None,
            frequency_penalties=torch.zeros(0),
            presence_penalties=torch.zeros(0),
            repetition_penalties=torch.zeros(0),
            output_token_ids=[[] for _ in range(n)],
            allowed_token_ids_mask=None,
            bad_words_token_ids={},
            logitsprocs=LogitsProcessors(),
        )
        of_vllm = VllmSpecDecodeMetadata(
            draft_token_ids=torch.tensor(metadata.draft_token_ids, dtype=torch.int32),
            num_draft_tokens=metadata.num_draft_tokens,
            cu_num_draft_tokens=torch.tensor(metadata.cu_num_draft_tokens).int(),
            cu_num_sampled_tokens=torch.tensor(metadata.cu_num_sampled_tokens).int(),
            target_logits_indices=torch.tensor(metadata.target_logits_indices),
            bonus_logits_indices=torch.tensor(metadata.bonus_logits_indices),
            logits_indices=torch.tensor(metadata.logits_indices),
        )
        self.module.expand_kernel = self.expand
        self.seed += 1
        torch.manual_seed(self.seed)
        found: np.ndarray = self.sampler(
            of_vllm, None, torch.tensor(logits), asked
        ).sampled_token_ids.numpy()
        return found


class Server:
    """A sampler, a model of two tokens, and its drafter: `draw(n)` as `support.Box` has it."""

    def __init__(
        self, sampler: Any, logits: tuple[Any, Any], draft_first: int, draft_second: Any
    ) -> None:
        self.sampler, self.logits = sampler, logits
        self.draft_first, self.draft_second = draft_first, draft_second

    def draw(self, n: int) -> np.ndarray:
        first, second = self.logits
        chain = self.draft_first, int(self.draft_second[self.draft_first])
        rows = np.stack(
            [first, second[chain[0]], second[chain[0]]]
        )  # what follows is not looked at
        tokens = self._step([chain] * n, np.tile(rows, (n, 1)))[:, :2].copy()
        short = np.flatnonzero(tokens[:, 1] < 0)
        if not len(short):  # what was in memory let every first draft pass
            return tokens
        after = second[tokens[short, 0]]
        drafts = [(int(self.draft_second[token]),) for token in tokens[short, 0]]
        tokens[short, 1] = self._step(drafts, np.repeat(after, 2, axis=0))[:, 0]
        return tokens

    def _step(self, drafts: list[tuple[int, ...]], logits: np.ndarray) -> np.ndarray:
        counts = np.array([len(ids) for ids in drafts])
        input_ids = np.array([token for ids in drafts for token in (0, *ids)])
        metadata = SpecDecodeMetadata.build(counts, np.cumsum(counts + 1), input_ids)
        found: np.ndarray = self.sampler.step(metadata, logits)
        return found


def main(which: str = "starter") -> None:
    need_vllm()
    lab = load_module(HERE / f"{which}.py", f"lab_08_06_{which}")
    samplers = {
        "mini_vllm": OfTheEngine(),
        "vLLM, expand mended": OfVllm(Expand(), 1000),
        "vLLM, CPU as it is": OfVllm(None, 2000),
    }
    accused: dict[str | None, int] = {}
    sums = {name: [0.0, 0, 0] for name in samplers}
    for seed in range(20):
        first, second, *drafts = support.make_model(seed)
        logits = np.log(first).astype(np.float32), np.log(second).astype(np.float32)
        model = softmax(logits[0][None] / TEMPERATURE)[0], softmax(logits[1] / TEMPERATURE)
        right = lab.pairs_if_right(*model)
        boxes = {name: Server(one, logits, *drafts) for name, one in samplers.items()}
        name = lab.find_biased(boxes, *model, *drafts)
        accused[name] = accused.get(name, 0) + 1
        for name, box in boxes.items():
            tokens = box.draw(1500)
            counts = np.bincount(tokens[:, 0] * 3 + tokens[:, 1], minlength=9)
            sums[name][0] += lab.chi_square(counts, right.ravel()) / 20
    print(
        f"of 20 models, 3 tokens, temperature {TEMPERATURE}; chi-square of 1,500 more pairs, by chance 8"
    )
    for name in samplers:
        print(f"{name:20} accused {accused.get(name, 0):3} times   chi-square {sums[name][0]:7.1f}")
    print(f"{'nobody':20} accused {accused.get(None, 0):3} times")


if __name__ == "__main__":
    main(*sys.argv[1:2])
