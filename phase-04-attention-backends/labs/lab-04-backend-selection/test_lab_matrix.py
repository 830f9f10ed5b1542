"""Lab 04-04, the choice: reasons, overrides, block sizes, and every cell of vLLM's matrix."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from course.learner.labs import load_support

support = load_support(__file__)
facts = support.facts
BACKENDS, Config, Machine = facts.BACKENDS, facts.Config, facts.Machine


def against(
    lab: ModuleType, name: str, config: Any, machine: Any, want: list[str], why: str
) -> None:
    """`refusals` says `want` of the backend called `name`."""
    got = list(lab.refusals(BACKENDS[name], config, machine))
    where = f"{name}, capability {machine.capability}, {support.matrix.label(config, ())}"
    assert got == want, f"{where}: {want}, got {got}. {why}"


def test_all_reasons_are_collected(lab: ModuleType) -> None:
    """`refusals` collects all reasons, in vLLM's order, with the combination at the end."""
    bad = Config(
        20, "float32", "nvfp4", 8, True, True, True, True, True, "encoder_decoder", True, True
    )
    against(
        lab, "FLASHMLA", bad, Machine((8, 0)),
        [
            facts.HEAD_SIZE, facts.DTYPE, facts.KV_DTYPE, facts.BLOCK_SIZE, facts.MM_PREFIX,
            facts.SINKS, facts.SPARSE, facts.PER_HEAD_SCALES, facts.CAPABILITY,
            facts.ATTN_TYPE["encoder_decoder"], facts.NON_CAUSAL, facts.BATCH_INVARIANT,
            facts.HOPPER_OR_BLACKWELL,
        ],
        "vLLM goes on after the first reason, so that its message names all",
    )  # fmt: skip


def test_heads_of_96_fit(lab: ModuleType) -> None:
    """FLASH_ATTN takes any multiple of 8 up to 256, and up to 512 where version 4 runs."""
    for head_size, capability, fine in [
        (96, (8, 0), True), (80, (8, 9), True), (100, (8, 0), False), (256, (8, 0), True),
        (264, (8, 0), False), (264, (9, 0), True), (512, (10, 0), True), (512, (11, 0), True),
        (512, (12, 0), False), (520, (9, 0), False), (260, (9, 0), False),
    ]:  # fmt: skip
        against(
            lab, "FLASH_ATTN", Config(head_size), Machine(capability), [] if fine else [facts.HEAD_SIZE],
            "Its head sizes are the multiples of 8 up to 256, and more of them where version 4 runs",
        )  # fmt: skip


def test_fp8_takes_version_3(lab: ModuleType) -> None:
    """FLASH_ATTN reads an e4m3 cache on Hopper, and no other fp8 cache anywhere."""
    for kv, capability, fine in [
        ("fp8", (9, 0), True), ("fp8_e4m3", (9, 0), True), ("fp8_e5m2", (9, 0), False),
        ("fp8", (8, 9), False), ("fp8", (10, 0), False), ("fp8", (12, 0), False), ("auto", (8, 0), True),
    ]:  # fmt: skip
        config = Config(128, kv_cache_dtype=kv)
        want = [] if fine else [facts.KV_DTYPE]
        why = "That the GPU computes in fp8 does not help: the kernel that reads such a cache is version 3"
        against(lab, "FLASH_ATTN", config, Machine(capability), want, why)


def test_sinks(lab: ModuleType) -> None:
    """Sinks meet two reasons in FLASH_ATTN on an Ampere, one on a 12.0 and none on a Hopper; FLASHINFER
    needs the cubins on a B200.
    """
    both, one = [facts.SINKS, facts.SINKS_BELOW_9], [facts.SINKS]
    for name, machine, want in [
        ("FLASH_ATTN", Machine((8, 0)), both), ("FLASH_ATTN", Machine((12, 0)), one),
        ("FLASH_ATTN", Machine((9, 0)), []), ("FLASH_ATTN", Machine((10, 0)), []),
        ("FLASHINFER", Machine((9, 0)), one), ("FLASHINFER", Machine((10, 0)), []),
        ("FLASHINFER", Machine((10, 0), cubins=False), one), ("TRITON_ATTN", Machine((7, 5)), []),
        ("FLEX_ATTENTION", Machine((9, 0)), one),
    ]:  # fmt: skip
        against(
            lab, name, Config(64, has_sink=True), machine, want,
            "Sinks take FlashAttention 3 or 4, FlashInfer's TRT-LLM kernels, or Triton",
        )  # fmt: skip
    config = Config(64, has_sink=True, use_batch_invariant=True)
    against(
        lab, "FLASH_ATTN", config, Machine((10, 0)), one, "Batch-invariant, a B200 runs version 2"
    )


def test_what_is_not_for_it(lab: ModuleType) -> None:
    """MLA and sparse layers go to their own backends, and to no others."""
    latent = Config(576, use_mla=True)
    hopper = Machine((9, 0))
    why = "A backend is for MLA or it is not, and for sparse layers or not"
    against(lab, "FLASH_ATTN_MLA", latent, hopper, [], why)
    against(lab, "FLASH_ATTN_MLA", Config(576), hopper, [facts.NOT_MLA], why)
    against(lab, "TRITON_ATTN", latent, hopper, [facts.MLA], why)
    against(lab, "FLASHMLA_SPARSE", latent, hopper, [facts.NOT_SPARSE], why)
    against(lab, "TRITON_MLA", latent._replace(use_sparse=True), hopper, [facts.SPARSE], why)
    against(lab, "FLASHMLA_SPARSE", latent._replace(use_sparse=True), hopper, [], why)


def test_flashmla_is_for_hopper(lab: ModuleType) -> None:
    """FLASHMLA's capabilities are 9.x and 10.x, but its combination says no to a B200."""
    latent = Config(576, use_mla=True)
    b200, a100 = Machine((10, 0)), Machine((8, 0))
    why = "Its dense kernel is for Hopper only; the sparse one runs on a B200, too"
    against(lab, "FLASHMLA", latent, Machine((9, 0)), [], why)
    against(lab, "FLASHMLA", latent, b200, [facts.HOPPER], why)
    against(lab, "FLASHMLA", latent, a100, [facts.CAPABILITY, facts.HOPPER], why)
    against(lab, "FLASHMLA", latent._replace(use_sparse=True), b200, [facts.SPARSE], why)
    against(lab, "FLASH_ATTN_MLA", latent, b200, [facts.CAPABILITY, facts.NO_FA3], why)


def test_what_is_not_installed(lab: ModuleType) -> None:
    """A module whose package is missing cannot be imported, and vLLM asks it nothing more."""
    bad = Config(20, "float32")
    bare = Machine((8, 0), flashinfer=False)
    why = "vLLM catches the ImportError, and that is all there is to say"
    against(lab, "FLASHINFER", bad, bare, [facts.NOT_THERE], why)
    against(lab, "TRITON_ATTN", Config(128), bare, [], "It needs no flashinfer")
    latent = Config(576, kv_cache_dtype="fp8", use_mla=True)
    b200 = Machine((10, 0))
    against(lab, "TOKENSPEED_MLA", latent, b200, [facts.NO_TOKENSPEED], "A reason like any other")
    against(lab, "TOKENSPEED_MLA", latent, b200._replace(tokenspeed=True), [], "It is installed")


def test_one_divisor_is_enough(lab: ModuleType) -> None:
    """A block size needs only one divisor that the kernel takes, because vLLM may split its blocks."""
    for name, size, fine in [
        ("FLASHINFER", 48, True), ("FLASHINFER", 128, True), ("FLASHINFER", 24, False),
        ("FLASHMLA", 128, True), ("FLASHMLA", 32, False), ("FLASH_ATTN_MLA", 16, True),
        ("FLASH_ATTN_MLA", 8, False), ("FLASHMLA", None, True),
    ]:  # fmt: skip
        mla = BACKENDS[name].mla
        config = Config(576 if mla else 128, block_size=size, use_mla=mla)
        why = f"One of {BACKENDS[name].block_sizes} must divide the block size; None is no wish"
        want = [] if fine else [facts.BLOCK_SIZE]
        against(lab, name, config, Machine((9, 0)), want, why)


def test_both_ends_of_a_range(lab: ModuleType) -> None:
    """The oldest and the newest GPU of a backend belong to its range."""
    why = "The oldest and the newest GPU belong to the range"
    for name, capability, fine in [
        ("FLASHINFER", (7, 0), False), ("FLASHINFER", (7, 5), True), ("FLASHINFER", (12, 1), True),
        ("FLASHINFER", (12, 2), False), ("FLASH_ATTN", (8, 0), True), ("FLASH_ATTN", (12, 2), True),
        ("TRITON_ATTN", (7, 0), True),
    ]:  # fmt: skip
        want = [] if fine else [facts.CAPABILITY]
        against(lab, name, Config(128), Machine(capability), want, why)


def test_an_override_is_validated(lab: ModuleType) -> None:
    """An override with reasons against it raises, with all of them, and nothing else is tried."""
    a100 = Machine((8, 0))
    got = None
    try:
        got = lab.select(Config(128), a100, "FLASHMLA")
    except lab.facts.InvalidOverrideError as error:
        reasons = error.reasons
    except lab.facts.NoBackendError as error:
        pytest.fail(
            f"FLASHMLA is asked for, so no other was tried, but got NoBackendError: {error}"
        )
    if got is not None:
        pytest.fail(
            f"FLASHMLA cannot run this on an A100, so vLLM does not start; you chose {got.backend}. An "
            "override is held against its limits, and there is no second choice"
        )
    want = [facts.HEAD_SIZE, facts.NOT_MLA, facts.CAPABILITY, facts.HOPPER]
    assert reasons == want, f"the error names every reason, {want}, got {reasons}"


def test_an_override_that_will_do(lab: ModuleType) -> None:
    """An override that will do is taken, whatever vLLM would have liked better."""
    got = lab.select(Config(128), Machine((9, 0)), "FLEX_ATTENTION")
    want = facts.Choice("FLEX_ATTENTION", ("FLEX_ATTENTION",))
    assert got == want, f"FLEX_ATTENTION is asked for, and will do: {want}, got {got}"
    got = lab.select(Config(128, block_size=16), Machine((10, 0)), "TRITON_ATTN")
    want = facts.Choice("TRITON_ATTN", ("TRITON_ATTN",))
    assert got == want, f"nobody else is looked at: {want}, got {got}"


def test_a_block_size_costs_the_better_one(lab: ModuleType) -> None:
    """The warning names the candidates before the choice that only the block size rules out."""
    latent = Config(576, kv_cache_dtype="fp8", use_mla=True, num_heads=128)
    for config, machine, backend, precluded in [
        (latent._replace(block_size=32), Machine((9, 0)), "TRITON_MLA", ("FLASHMLA",)),
        (latent._replace(block_size=64), Machine((9, 0)), "FLASHMLA", ()),
        (
            latent._replace(block_size=16), Machine((10, 0), tokenspeed=True), "TRITON_MLA",
            ("FLASHINFER_MLA", "TOKENSPEED_MLA", "CUTLASS_MLA"),
        ),
        (latent._replace(block_size=32), Machine((10, 0)), "FLASHINFER_MLA", ()),
        (
            latent._replace(block_size=128, kv_cache_dtype="auto"), Machine((10, 0)),
            "FLASHINFER_MLA", (),
        ),
    ]:  # fmt: skip
        got = lab.select(config, machine)
        where = f"blocks of {config.block_size} on {machine.capability}"
        assert got.backend == backend, f"{where}: {backend}, got {got.backend}"
        assert got.precluded == precluded, (
            f"{where}: the warning names {precluded}, got {got.precluded}. Only who was preferred, and is "
            "refused for nothing but the block size"
        )


def test_a_cpu_has_one(lab: ModuleType) -> None:
    """A CPU gets CPU_ATTN, whatever is asked for, and no backend for MLA."""
    cpu = Machine(None)
    for config, override in [
        (Config(128), None), (Config(96, "float32", "fp8"), "FLASHINFER"), (Config(64), "NOSUCH"),
    ]:  # fmt: skip
        try:
            got = lab.select(config, cpu, override)
        except (lab.facts.InvalidOverrideError, KeyError) as error:
            pytest.fail(
                f"a CPU does not look at the override {override!r}: it logs a line, and {error!r}"
            )
        want = facts.Choice("CPU_ATTN", ("CPU_ATTN",))
        assert got == want, f"on a CPU, {override} asked for: {want}, got {got}"
    for override in (None, "CPU_ATTN", "TRITON_MLA"):
        try:
            got = lab.select(Config(576, use_mla=True), cpu, override)
        except lab.facts.NoBackendError as error:
            want = {"CPU_ATTN": [facts.MLA]}
            assert error.refused == want, f"the error says {want}, got {error.refused}"  # noqa: PT017
        else:
            pytest.fail(f"vLLM has no MLA on a CPU, with {override} asked for neither, got {got}")


def test_the_refused_are_named_in_the_error(lab: ModuleType) -> None:
    """Where no candidate will do, the error names every one with its reasons."""
    try:
        got = lab.select(Config(128, block_size=8), Machine((8, 0)))
    except lab.facts.NoBackendError as error:
        refused = error.refused
    else:
        pytest.fail(f"with blocks of 8 no backend will do, got {got}")
    order = ["FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION", "TURBOQUANT"]
    assert list(refused) == order, f"the refused, in their order: {order}, got {list(refused)}"


def test_vllm_chose_the_same(lab: ModuleType) -> None:
    """`select` agrees with vLLM on dense layers in half precision and float32: heads, blocks, caches,
    twelve machines.
    """

    def plain(config: Any, override: str | None) -> bool:
        usual = Config(config.head_size, config.dtype, config.kv_cache_dtype, config.block_size)
        return override is None and config == usual

    support.same_as_vllm(lab, plain, "matrix.py --why shows a cell in full.")


def test_vllm_chose_the_same_with_sinks(lab: ModuleType) -> None:
    """`select` agrees with vLLM on the same dense layers with sinks."""
    support.same_as_vllm(
        lab,
        lambda config, override: override is None and config.has_sink,
        "Who has sinks hangs on the GPU, on the version of FlashAttention and on the cubins.",
    )


def test_vllm_chose_the_same_for_mla(lab: ModuleType) -> None:
    """`select` agrees with vLLM on MLA: latents of three sizes, dense and sparse."""
    support.same_as_vllm(
        lab,
        lambda config, override: override is None and config.use_mla,
        "MLA has lists of its own.",
    )


def test_vllm_chose_the_same_in_rare_cases(lab: ModuleType) -> None:
    """`select` agrees with vLLM in rare cases: images, encoders, scales for each head, non-causal
    attention, batch invariance.
    """

    usual = tuple(Config(0))[7:12]
    support.same_as_vllm(
        lab,
        lambda config, override: override is None and tuple(config)[7:12] != usual,
        "Look at the reason's own words in facts.py.",
    )


def test_vllm_took_the_same_overrides(lab: ModuleType) -> None:
    """`select` agrees with vLLM on overrides: thirteen names, with six configurations, on six GPUs."""
    support.same_as_vllm(
        lab,
        lambda config, override: override is not None,
        "An override is taken or refused; nothing else is tried.",
    )
