"""Lab 04-04: what you predict, what the selector is told, and what a GPU can do."""

from __future__ import annotations

from types import ModuleType

from course.learner.labs import load_support

support = load_support(__file__)
facts = support.facts
Config, Layer, Machine, Server = facts.Config, facts.Layer, facts.Machine, facts.Server


def test_the_predictions_hold(lab: ModuleType) -> None:
    """Your predictions hold: sixteen choices, each with the first reason against vLLM's favourite
    candidate.
    """
    ask = {
        "Llama on an A100": "Which candidate stands first, but on 10.x? Does it lack anything here?",
        "Llama on a B200": "Which candidate stands first on 10.x?",
        "Llama on a T4": "At which capability does each candidate begin?",
        "float32 on an H100": "In which types does each candidate compute?",
        "heads of 96 on an A100": "Which head sizes does the first candidate take?",
        "heads of 96 on a B200": "Which head sizes does the first candidate take, and which the next?",
        "a sliding window on an L4": "Is the selector told of a window?",
        "an fp8 cache on an A100": "Which version of FlashAttention reads fp8, and which does an A100 have?",
        "an fp8 cache on an H100": "Which version of FlashAttention reads fp8, and which does an H100 have?",
        "gpt-oss on an A100": "Which versions of FlashAttention take sinks? Who else does, and where?",
        "gpt-oss on an RTX 5090": "Which version of FlashAttention is there for 12.0?",
        "DeepSeek-V3 on an H100": "In which order are the MLA backends tried there?",
        "DeepSeek-V3 and an fp8 cache on an H100": "Which of the MLA backends read an fp8 cache?",
        "DeepSeek-V2-Lite on an L4": "At which capability does each MLA backend begin?",
        "DeepSeek-V3 and --block-size 16 on a B200": "Which block sizes does the first candidate take?",
        "Llama and --block-size 8 on an H100": "Which block sizes does each candidate take?",
    }
    said = lab.predictions()
    missing = sorted(ask.keys() ^ said.keys())
    assert not missing, f"these stand in one of the README and your predictions only: {missing}"
    for name, (machine, config) in support.QUESTIONS.items():
        fact, best = support.answer(machine, config), support.liked_best(machine, config)
        first = fact["refused"].get(best, [None])[0]
        guess = said[name]
        assert guess.backend == fact["backend"], (
            f"{name}: vLLM does not choose {guess.backend}. {ask[name]}"
        )
        assert guess.first == first, (
            f"{name}: {guess.backend} is right, but the first thing against {best} is not {guess.first!r}. "
            f"{ask[name]}"
        )


def test_the_version_of_flash_attention(lab: ModuleType) -> None:
    """`flash_attn_version` agrees with vLLM's on all machines of the matrix, and on five more."""
    for name, versions in support.kept()["flash_attn_version"].items():
        for invariant, want in zip((False, True), versions, strict=True):
            got = lab.flash_attn_version(support.MACHINES[name], invariant)
            kind = "batch-invariant" if invariant else "as usual"
            assert got == want, f"{name}, {kind}: FlashAttention {want}, got {got}"
    for capability, want in [
        ((7, 0), None), ((8, 6), 2), ((9, 1), 3), ((10, 3), 4), ((11, 0), 2), ((12, 1), 2),
    ]:  # fmt: skip
        got = lab.flash_attn_version(Machine(capability))
        assert got == want, f"capability {capability}: FlashAttention {want}, got {got}"
    for capability, want in [((9, 0), 3), ((10, 3), 2), ((8, 9), 2), ((7, 5), None)]:
        got = lab.flash_attn_version(Machine(capability), True)
        assert got == want, (
            f"capability {capability}, batch-invariant: FlashAttention {want}, got {got}. Only version 4 "
            "steps back, and to 2"
        )


def test_the_six_conditions(lab: ModuleType) -> None:
    """Each condition holds on the right ones of seven GPUs, with and without what it asks for."""
    gpus = [(7, 5), (8, 0), (9, 0), (10, 0), (10, 3), (11, 0), (12, 0)]
    for condition, where in {
        facts.NEVER: [],
        facts.ALWAYS: gpus,
        facts.FA3: [(9, 0)],
        facts.FA3_UP: [(9, 0), (10, 0), (10, 3)],
        facts.FA4_RUNS: [(9, 0), (10, 0), (10, 3), (11, 0)],
        facts.TRTLLM: [(10, 0), (10, 3)],
    }.items():
        got = [gpu for gpu in gpus if lab.holds(condition, Machine(gpu))]
        assert got == where, f"{condition!r} holds on {where}, yours on {got}"
        invariant = [gpu for gpu in gpus if lab.holds(condition, Machine(gpu), True)]
        want = {facts.FA3_UP: [(9, 0)], facts.TRTLLM: []}.get(condition, where)
        assert invariant == want, (
            f"{condition!r}, batch-invariant: holds on {want}, yours on {invariant}"
        )
    offline = lab.holds(facts.TRTLLM, Machine((10, 0), cubins=False))
    assert not offline, "without the cubins there are no TRT-LLM kernels on a B200"
