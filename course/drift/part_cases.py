"""The cases of each part, drawn from a seed, and what the release that is first on PYTHONPATH makes of them.

    python -m course.drift.part_cases OUT PART...       in vLLM's environment; `parts` starts it

A case's outcome is anything that JSON holds; floats are rounded to five decimals.
"""

from __future__ import annotations

import inspect
import json
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from course.drift.defaults import become
from course.drift.part_settings import Rng, cache_config, graphs

VOCAB, EOS, STOP = 48, 0, 5
STAGES = (
    "allowed tokens", "bad words", "min_tokens", "min_tokens beside a grammar", "logit_bias",
    "penalties", "greedy", "temperature", "min_p", "top_k, top_p", "logprobs",
)  # fmt: skip
_MODES = ("raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits")


def generator(part: str, number: int) -> Rng:
    """Where a case is drawn from."""
    return np.random.default_rng([zlib.crc32(part.encode()), number])


def plain(value: Any) -> Any:
    """The value as JSON has it, of tensors, arrays and floats."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, float):
        return round(value, 5)
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value


# -- sampler ----------------------------------------------------------------------------------------


def triton_there() -> None:
    """Let vLLM find Triton, which interprets its kernels. Before those are imported."""
    import triton
    import triton.language as tl
    import triton.runtime.driver  # or vLLM takes Triton for missing
    import vllm.triton_utils as utils
    from triton.runtime import interpreter

    utils.HAS_TRITON, utils.triton, utils.tl = True, triton, tl
    patch = interpreter._patch_lang_core

    def patch_with_range(lang: Any, scope: Any) -> None:
        """An index of `tl.range` is a tensor, as where kernels are compiled; theirs is an int."""
        patch(lang, scope)
        count = lang.range

        def tensors(*args: Any, **kwargs: Any) -> Any:
            for i in count(*args, **kwargs):
                yield tl.tensor(
                    interpreter.TensorHandle(np.array([i], np.int32), tl.int32), tl.int32
                )

        scope.set_attr(lang, "range", tensors)

    interpreter._patch_lang_core = patch_with_range


def as_on_a_gpu() -> None:
    """No short cuts for a CPU, some of which are compiled."""
    from vllm.platforms import current_platform

    platform = type(current_platform)
    platform.is_cpu = lambda self: False
    platform.num_compute_units = lambda self, device_id=0: 8


def rows(rng: Rng, stages: tuple[str, ...], n: int) -> Any:
    """`SamplingMetadata` as the input batch makes it, of n requests that use these stages."""
    import torch
    import vllm
    from vllm.sampling_params import StructuredOutputsParams
    from vllm.v1.sample import logits_processor
    from vllm.v1.sample.metadata import SamplingMetadata

    def of(stage: str, draw: Callable[[], Any], otherwise: Any) -> list[Any]:
        """What `draw` gives, for two of three rows, if the stage is on."""
        return [draw() if stage in stages and rng.random() < 0.7 else otherwise for _ in range(n)]

    def tokens(most: int, least: int = 0) -> list[int]:
        drawn: list[int] = rng.integers(0, VOCAB, int(rng.integers(least, most + 1))).tolist()
        return drawn

    outputs = [tokens(9) for _ in range(n)]
    prompts = [tokens(9, 9) for _ in range(n)]
    draws = any(stage.startswith(("temp", "min_p", "top_k")) for stage in stages)
    temperature = of("temperature", lambda: rng.uniform(0.05, 2), 1.0 if draws else 0.0)
    if "greedy" in stages:
        temperature = of("greedy", lambda: 0.0, 1.0)
    top = "top_k, top_p"
    least = [
        max(one)
        for one in zip(
            of("min_tokens", lambda: int(rng.integers(1, 12)), 0),
            of("min_tokens beside a grammar", lambda: int(rng.integers(1, 12)), 0),
            strict=True,
        )
    ]
    params = [
        vllm.SamplingParams(
            temperature=t, min_p=p, logit_bias=bias, min_tokens=few, max_tokens=40, stop_token_ids=[STOP],
            structured_outputs=StructuredOutputsParams(choice=["a"])
            if few and "min_tokens beside a grammar" in stages
            else None,
        )
        for t, p, bias, few in zip(
            temperature,
            of("min_p", lambda: rng.uniform(0, 0.6), 0.0),
            of("logit_bias", lambda: {t: rng.uniform(-9, 9) for t in tokens(6)} or None, None),
            least,
            strict=True,
        )
    ]  # fmt: skip
    for one in params:
        one.update_from_generation_config({}, EOS)
    update = logits_processor.BatchUpdate(
        batch_size=n,
        removed=[],
        moved=[],
        added=[(i, p, prompts[i], outputs[i]) for i, p in enumerate(params)],
    )
    config: Any = SimpleNamespace(
        scheduler_config=SimpleNamespace(max_num_seqs=n), speculative_config=None
    )
    processors = [
        getattr(logits_processor, f"{kind}LogitsProcessor")(config, torch.device("cpu"), False)
        for kind in ("MinTokens", "LogitBias", "MinP")
    ]
    for processor in processors:
        processor.update_state(update)
    penalties = np.array(
        of("penalties", lambda: [*rng.uniform(-2, 2, 2), rng.uniform(0.5, 2)], [0.0, 0.0, 1.0])
    )
    barred = np.array(of("allowed tokens", lambda: rng.random(VOCAB) < 0.6, np.zeros(VOCAB, bool)))
    barred[:, int(rng.integers(VOCAB))] = False
    ks = of(top, lambda: int(rng.integers(1, VOCAB + 1)), VOCAB)
    ps = of(top, lambda: rng.uniform(0.02, 1), 1.0)
    words = of("bad words", lambda: [tokens(3, 1), tokens(1, 1)], [])
    for out, bad in zip(outputs, words, strict=True):
        if bad:
            bad.append([*out[-2:], *tokens(1, 1)])  # one that is nearly said
    specific = of("logprobs", lambda: tokens(4), [])
    return SamplingMetadata(
        temperature=None if max(temperature) == 0 else torch.tensor(temperature),
        all_greedy=max(temperature) == 0,
        all_random=min(temperature) > 0,
        top_p=None if min(ps) == 1 else torch.tensor(ps),
        top_k=None if min(ks) == VOCAB else torch.tensor(ks, dtype=torch.int32),
        generators={i: torch.Generator().manual_seed(int(rng.integers(2**40))) for i in range(n)},
        max_num_logprobs=int(rng.integers(0, 7)) if "logprobs" in stages else -1,
        no_penalties=bool((penalties == [0, 0, 1]).all()),
        prompt_token_ids=torch.tensor(prompts),
        presence_penalties=torch.tensor(penalties[:, 0]).float(),
        frequency_penalties=torch.tensor(penalties[:, 1]).float(),
        repetition_penalties=torch.tensor(penalties[:, 2]).float(),
        output_token_ids=outputs,
        allowed_token_ids_mask=torch.tensor(barred) if barred.any() else None,
        bad_words_token_ids={i: bad for i, bad in enumerate(words) if bad},
        logitsprocs=logits_processor.LogitsProcessors(processors),
        logprob_token_ids={i: ids for i, ids in enumerate(specific) if ids} or None,
    )


def draw_logits(rng: Rng, shape: tuple[int, int]) -> np.ndarray:
    """Sharp or flat, half of them with equals."""
    logits = rng.standard_normal(shape) * rng.choice([0.7, 3.0])
    logits = logits.round(int(rng.choice([1, 6])))
    return np.asarray(logits, np.float32)


def sample(rng: Rng, number: int, *stages: str) -> Any:
    """The tokens and logprobs that a batch of the sampler gets."""
    import torch
    from vllm.v1.sample.ops import topk_topp_sampler
    from vllm.v1.sample.sampler import Sampler

    n = int(rng.integers(1, 13))
    metadata = rows(rng, stages, n)
    logits = draw_logits(rng, (n, VOCAB))
    if "min_tokens beside a grammar" in stages:  # which lets a request end, and some only that
        left = rng.random((n, VOCAB)) < np.where(rng.random((n, 1)) < 0.5, 0, 0.3)
        left[:, EOS] = True
        logits[~left] = -np.inf
    topk_topp_sampler.HAS_TRITON = "Triton" in stages
    sampler = Sampler(str(rng.choice(_MODES)) if "logprobs" in stages else _MODES[2])
    sampler.topk_topp_sampler.forward = sampler.topk_topp_sampler.forward_native
    out = sampler(torch.tensor(logits), metadata)
    found = out.logprobs_tensors
    return plain([out.sampled_token_ids, found and list(found[:3])])


def draw_on_cpu(rng: Rng, number: int, seeded: str) -> Any:
    """The tokens of those rows that have a seed of their own; some cases have others beside them."""
    import torch
    from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler

    n = int(rng.integers(1, 13))
    seeds = {i: int(rng.integers(2**40)) for i in range(n) if seeded == "all" or rng.random() < 0.6}
    torch.manual_seed(number)
    generators = {i: torch.Generator().manual_seed(seed) for i, seed in seeds.items()}
    logits = torch.tensor(draw_logits(rng, (n, VOCAB)))
    tokens, _ = TopKTopPSampler().forward_cpu(logits, generators, None, None)
    return plain(tokens[list(seeds)])


def verify(rng: Rng, number: int, drafter: str, *stages: str) -> Any:
    """What the rejection sampler, with its own kernels, makes of drafts."""
    import torch
    from vllm.v1.sample.logits_processor import LogitsProcessors
    from vllm.v1.sample.rejection_sampler import RejectionSampler
    from vllm.v1.sample.sampler import Sampler
    from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

    n = int(rng.integers(1, 7))
    counts = rng.integers(0, 5, n)
    counts[0] = rng.integers(1, 5)
    metadata = rows(rng, stages, n)
    metadata.logitsprocs = LogitsProcessors(metadata.logitsprocs.non_argmax_invariant[:1])
    if "logprobs" not in stages:
        metadata.max_num_logprobs = None
    metadata.logprob_token_ids = None
    ends = np.cumsum(counts + 1)
    logits = draw_logits(rng, (int(ends[-1]), VOCAB))
    judged = np.delete(logits, ends - 1, axis=0)
    probs = np.exp(judged + rng.standard_normal(judged.shape))
    probs /= probs.sum(axis=1, keepdims=True)
    drafts = np.array([rng.choice(VOCAB, p=one) for one in probs])
    drafts = np.where(rng.random(len(drafts)) < 0.5, judged.argmax(axis=1), drafts)
    metadata.spec_token_ids = [one.tolist() for one in np.split(drafts, np.cumsum(counts)[:-1])]
    if drafter == "padded":  # not the first, before which the pin would read what is not its own
        logits[:, -1] += 3  # which the pin takes for a padded draft's
        drafts[1:][rng.random(len(drafts) - 1) < 0.4] = -1
    method = SimpleNamespace(
        rejection_sample_method="synthetic",
        synthetic_acceptance_rates=[0.8, 0.6, 0.4, 0.2],
    )
    sampler = RejectionSampler(
        Sampler(str(rng.choice(_MODES)) if "logprobs" in stages else _MODES[0]),
        method if drafter == "synthetic" else None,
        torch.device("cpu"),
    )
    sampler.sampler.topk_topp_sampler.forward = sampler.sampler.topk_topp_sampler.forward_native
    out = sampler(
        SpecDecodeMetadata(
            draft_token_ids=torch.tensor(drafts, dtype=torch.int32),
            num_draft_tokens=counts.tolist(),
            cu_num_draft_tokens=torch.tensor(np.cumsum(counts), dtype=torch.int32),
            cu_num_sampled_tokens=torch.tensor(ends, dtype=torch.int32),
            target_logits_indices=torch.tensor(np.delete(np.arange(ends[-1]), ends - 1)),
            bonus_logits_indices=torch.tensor(ends - 1),
            logits_indices=torch.arange(int(ends[-1])),
        ),
        torch.tensor(probs, dtype=torch.float32) if drafter == "model" else None,
        torch.tensor(logits),
        metadata,
    )
    tokens = out.sampled_token_ids
    found = out.logprobs_tensors
    return plain([tokens, found and [one[(tokens.flatten() >= 0)] for one in found[:3]]])


# -- drafts -----------------------------------------------------------------------------------------


def look_up(rng: Rng, number: int) -> Any:
    """What the n-gram proposer drafts for a batch."""
    from vllm.v1.spec_decode.ngram_proposer import NgramProposer

    least, most = sorted(rng.integers(1, 6, 2).tolist())
    k, length, n = int(rng.integers(1, 7)), int(rng.integers(16, 48)), int(rng.integers(1, 9))
    config: Any = SimpleNamespace(
        speculative_config=SimpleNamespace(
            prompt_lookup_min=least, prompt_lookup_max=most, num_speculative_tokens=k
        ),
        model_config=SimpleNamespace(max_model_len=length),
        scheduler_config=SimpleNamespace(max_num_seqs=n),
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
    )
    texts = rng.integers(0, rng.integers(2, 7), (n, length)).astype(np.int32)
    ends = rng.integers(1, length + 1, n).astype(np.int32)
    sampled = [[int(texts[i, end - 1])] if rng.random() < 0.8 else [] for i, end in enumerate(ends)]
    proposer = NgramProposer(config)
    first = (
        [k] if "num_speculative_tokens" in inspect.signature(proposer.propose).parameters else []
    )
    return plain(proposer.propose(*first, sampled, ends, texts))


# -- parts ------------------------------------------------------------------------------------------


class Part(NamedTuple):
    """Some cases of one kind."""

    run: Callable[..., Any]
    arguments: tuple[str, ...] = ()
    cases: int = 100
    stand_in: bool = False
    """On vLLM's CUDA platform, without a GPU."""


_TOP = "top_k, top_p"
_LIKE = ("allowed tokens", "bad words", "min_tokens", "penalties")
_ALL = (*_LIKE, "logit_bias", "greedy", "temperature", "min_p", _TOP, "logprobs")
_JUDGED = (*_LIKE, "greedy", "temperature", _TOP, "logprobs")
_MODELS = {
    "full attention": ("full", "full of two widths", "latent"),
    "windows and chunks": (
        "windows", "full and windows", "full and chunks", "windows of half the width",
    ),
    "windows whose pages do not divide": ("windows of other pages",),
    "states": ("full and states",),
    "latent with an indexer": ("latent and an indexer",),
}  # fmt: skip
PARTS = {
    **{f"sampler: {stage}": Part(sample, (stage,)) for stage in STAGES},
    f"sampler: {_TOP}, in Triton": Part(sample, (_TOP, "Triton"), 20),
    "sampler: all stages": Part(sample, _ALL, 300),
    "sampler: drawn on a CPU, all rows with seeds": Part(draw_on_cpu, ("all",)),
    "sampler: drawn on a CPU, some rows with seeds": Part(draw_on_cpu, ("some",)),
    "rejection sampler: greedy": Part(verify, ("ngram",)),
    "rejection sampler: drafts without probabilities": Part(verify, ("ngram", "temperature")),
    "rejection sampler: drafts with probabilities": Part(verify, ("model", "temperature")),
    "rejection sampler: all stages": Part(verify, ("ngram", *_JUDGED), 200),
    "rejection sampler: synthetic acceptance": Part(verify, ("synthetic", "temperature")),
    "rejection sampler: padded drafts": Part(verify, ("padded", "temperature")),
    "n-gram proposer": Part(look_up, (), 200),
    "CUDA graphs: capture sizes": Part(graphs, ("sizes",), 60, True),
    "CUDA graphs: capture sizes with drafts": Part(graphs, ("sizes", "drafts"), 60, True),
    "CUDA graphs: dispatch": Part(graphs, ("dispatch",), 60, True),
    "CUDA graphs: dispatch with drafts": Part(graphs, ("dispatch", "drafts"), 60, True),
    **{
        f"KV cache: {name}": Part(cache_config, ("groups", *kinds), 40, True)
        for name, kinds in _MODELS.items()
    },
    "KV cache: longest text that fits": Part(
        cache_config,
        ("longest", *_MODELS["full attention"], *_MODELS["windows and chunks"], *_MODELS["states"]),
        80,
        True,
    ),
}


def outcome(part: str, number: int) -> Any:
    """What this vLLM makes of a case. Raises whatever vLLM raises."""
    run = PARTS[part]
    return run.run(generator(part, number), number, *run.arguments)


def main(argv: list[str] | None = None) -> int:
    out, *names = sys.argv[1:] if argv is None else argv
    if PARTS[names[0]].stand_in:
        become("H100")
    else:
        triton_there()
        as_on_a_gpu()
    found: dict[str, list[Any]] = {}
    for name in names:
        found[name] = []
        for number in range(PARTS[name].cases):
            try:
                found[name].append(outcome(name, number))
            except Exception as error:
                found[name].append({"error": f"{type(error).__name__}: {error}"[:160]})
    Path(out).write_text(json.dumps(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
