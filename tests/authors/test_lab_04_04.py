"""Lab 04-04: what the selector is told, the order of the candidates, the size of a block: all given there."""

from __future__ import annotations

from types import ModuleType

import pytest

from course.docs.pages import ROOT
from course.learner.labs import load_module

LAB = ROOT / "phase-04-attention-backends/labs/lab-04-backend-selection"
support = load_module(LAB / "support.py", "test_lab_04_04_support")
facts = support.facts
Config, Layer, Machine, Server = facts.Config, facts.Layer, facts.Machine, facts.Server


@pytest.fixture(scope="module")
def lab() -> ModuleType:
    return load_module(LAB / "starter.py", "test_lab_04_04_starter")


def told(lab: ModuleType, layer: object, server: object, want: object, why: str) -> None:
    """`inputs` says `want`."""
    got = lab.inputs(layer, server)
    wrong = {
        field: (right, mine)
        for field, right, mine in zip(Config._fields, want, got, strict=True)
        if right != mine
    }
    assert not wrong, f"{why}. Fields as (vLLM's, yours): {wrong}"


def test_a_window_is_not_told(lab: ModuleType) -> None:
    """Nor a soft cap, nor how many heads there are: no field of `Config` holds them."""
    layer = Layer(128, 40, 10, sliding_window=4096, logits_soft_cap=50.0)
    told(
        lab, layer, Server(), Config(128),
        "A sliding window, a soft cap and the number of heads do not matter to the choice for this layer",
    )  # fmt: skip


def test_what_a_layer_tells(lab: ModuleType) -> None:
    """Sinks, images, the kind of attention, and what the server says."""
    layer = Layer(80, sinks=True, mm_prefix=True, attn_type="encoder_only")
    server = Server("float16", "fp8_e5m2", 32, True, True, True)
    told(
        lab, layer, server,
        Config(
            80, "float16", "fp8_e5m2", 32, False, True, False, True, True, "encoder_only", True, True
        ),
        "Whatever `Config` has a field for is told",
    )  # fmt: skip
    told(
        lab,
        Layer(64, sinks=True),
        Server(),
        Config(64, has_sink=True),
        "Only the sinks are special",
    )


def test_no_block_size_is_no_wish(lab: ModuleType) -> None:
    """The 16 that vLLM has in mind is not what the user asked for."""
    told(
        lab, Layer(128), Server(), Config(128),
        "Nobody gave --block-size, so the selector is told None, and the backend may choose the size",
    )  # fmt: skip
    told(
        lab, Layer(128), Server(block_size=16), Config(128, block_size=16),
        "The user's 16 is a wish, although it is also the default",
    )  # fmt: skip


def test_an_mla_layer_tells_of_its_latent(lab: ModuleType) -> None:
    """512 and 64 are 576, whatever the heads were before; `num_heads` is told, and sinks are not."""
    deepseek = Layer(192, 16, 16, kv_lora_rank=512, qk_rope_head_dim=64)
    want = Config(576, "bfloat16", "fp8", 64, True, num_heads=16)
    why = "An MLA layer's head_size is that of what it caches, kv_lora_rank + qk_rope_head_dim"
    told(lab, deepseek, Server(kv_cache_dtype="fp8", block_size=64), want, why)
    loud = deepseek._replace(sinks=True, mm_prefix=True, attn_type="encoder", sliding_window=8)
    server = Server("float16", per_head_scales=True, use_non_causal=True, batch_invariant=True)
    want = Config(
        576, "float16", use_mla=True, num_heads=16, use_non_causal=True, use_batch_invariant=True
    )
    told(
        lab,
        loud,
        server,
        want,
        "An MLA layer says nothing of sinks, images, its kind or its scales",
    )
    want = Config(576, use_mla=True, use_sparse=True, num_heads=16)
    told(lab, deepseek._replace(sparse=True), Server(), want, "It does say that it is sparse")


def test_mla_can_be_switched_off(lab: ModuleType) -> None:
    """Then it is a layer with heads of 192, and none of the MLA backends is asked."""
    deepseek = Layer(192, 16, 16, sinks=True, kv_lora_rank=512, qk_rope_head_dim=64, sparse=True)
    told(
        lab, deepseek, Server(mla_disabled=True), Config(192, has_sink=True),
        "With VLLM_MLA_DISABLE=1 it is a layer like any other",
    )  # fmt: skip


def test_two_flags_and_no_variable(lab: ModuleType) -> None:
    """Either flag, in any case of letters, and nothing from the environment."""
    for flag, in_config, want in [
        ("TRITON_ATTN", None, "TRITON_ATTN"), (None, "flashinfer", "FLASHINFER"),
        ("Flashmla", None, "FLASHMLA"), ("cpu_attn", None, "CPU_ATTN"), (None, None, None),
        ("auto", None, None), (None, "AUTO", None), ("auto", "auto", None),
        ("FLASH_ATTN", "auto", "FLASH_ATTN"),
    ]:  # fmt: skip
        got = lab.requested(flag, in_config, {})
        assert got == want, (
            f"--attention-backend {flag} and --attention-config.backend {in_config}: {want}, got {got}"
        )


def test_no_environment_variable(lab: ModuleType) -> None:
    """What old posts say to export is read by nobody."""
    old = "VLLM_ATTENTION_" + "BACKEND"
    for flag, want in [(None, None), ("FLASH_ATTN", "FLASH_ATTN")]:
        got = lab.requested(flag, None, {old: "TRITON_ATTN"})
        assert got == want, (
            f"{old}=TRITON_ATTN and --attention-backend {flag}: {want}, got {got}. vLLM 0.22.1 warns of an "
            "unknown variable, and reads it nowhere"
        )


def refusal(lab: ModuleType, flag: str | None, in_config: str | None, why: str) -> str:
    """The words with which `requested` refuses the two flags."""
    try:
        got = lab.requested(flag, in_config, {})
    except ValueError as error:
        return str(error)
    return pytest.fail(
        f"--attention-backend {flag}, in the config {in_config}: {why}, but got {got}"
    )


def test_both_flags_are_one_too_many(lab: ModuleType) -> None:
    """Even where they agree, and even where the first one says auto."""
    for flag, in_config in [
        ("FLASH_ATTN", "TRITON_ATTN"), ("FLASH_ATTN", "flash_attn"), ("auto", "TRITON_ATTN"),
    ]:  # fmt: skip
        said = refusal(lab, flag, in_config, "they exclude each other, whatever they say")
        named = flag in said and in_config in said
        assert named, f"the message should name both, {flag} and {in_config}: {said}"


def test_a_wrong_name_is_refused(lab: ModuleType) -> None:
    """By name, in either flag; and what is called so in other programs is a wrong name, too."""
    for flag, in_config in [
        ("NOSUCH", None), (None, "nosuch"), ("XFORMERS", "auto"), ("TRTLLM", None), ("", None),
    ]:  # fmt: skip
        said = refusal(lab, flag, in_config, "vLLM knows no such backend")
        name = in_config if flag is None else flag
        assert repr(name)[1:-1] in said, f"the message should name {name!r}: {said}"
    said = refusal(lab, "NOSUCH", "ELSEWHERE", "vLLM knows neither")
    assert "ELSEWHERE" in said, f"vLLM reads the config first, so ELSEWHERE is refused: {said}"


def test_every_name_may_be_asked_for(lab: ModuleType) -> None:
    """Those that CUDA has no use for as well: what they can do is not looked at yet."""
    for name in (*facts.BACKENDS, *facts.OTHERS):
        try:
            got = lab.requested(name.lower(), None, {})
        except ValueError as error:
            pytest.fail(f"vLLM has a backend called {name}, but you raise {error!r}")
        assert got == name, f"--attention-backend {name.lower()}: {name}, got {got}"


def test_the_order(lab: ModuleType) -> None:
    """Four lists, and what is sparse at their end."""
    dense, latent = Config(128), Config(576, use_mla=True)
    for config, capability, want in [
        (dense, (10, 3), "FLASHINFER FLASH_ATTN TRITON_ATTN FLEX_ATTENTION TURBOQUANT"),
        (dense, (12, 0), "FLASH_ATTN FLASHINFER TRITON_ATTN FLEX_ATTENTION TURBOQUANT"),
        (dense, (7, 5), "FLASH_ATTN FLASHINFER TRITON_ATTN FLEX_ATTENTION TURBOQUANT"),
        (latent, (9, 0), "FLASH_ATTN_MLA FLASHMLA FLASHINFER_MLA TRITON_MLA FLASHMLA_SPARSE"),
        (
            latent, (10, 0),
            "FLASHINFER_MLA TOKENSPEED_MLA CUTLASS_MLA FLASH_ATTN_MLA FLASHMLA TRITON_MLA FLASHMLA_SPARSE "
            "FLASHINFER_MLA_SPARSE",
        ),
    ]:  # fmt: skip
        got = list(lab.candidates(config, Machine(capability)))
        kind = "MLA" if config.use_mla else "not MLA"
        assert got == want.split(), f"{kind}, capability {capability}: {want.split()}, got {got}"


def test_who_is_sparse_and_first(lab: ModuleType) -> None:
    """On 10.x it hangs on the cache and on the number of heads."""
    for kv, num_heads, first in [
        ("auto", 128, "FLASHMLA_SPARSE"), ("bfloat16", 17, "FLASHMLA_SPARSE"),
        ("auto", None, "FLASHMLA_SPARSE"),
        ("auto", 16, "FLASHINFER_MLA_SPARSE"), ("auto", 8, "FLASHINFER_MLA_SPARSE"),
        ("fp8", 128, "FLASHINFER_MLA_SPARSE"), ("fp8_ds_mla", None, "FLASHINFER_MLA_SPARSE"),
        ("int8_per_token_head", 64, "FLASHINFER_MLA_SPARSE"),
    ]:  # fmt: skip
        config = Config(576, kv_cache_dtype=kv, use_mla=True, use_sparse=True, num_heads=num_heads)
        got = lab.candidates(config, Machine((10, 0)))[-2]
        assert got == first, f"cache in {kv}, {num_heads} heads, B200: {first} first, got {got}"


def test_the_block_follows_the_backend(lab: ModuleType) -> None:
    """Held against vLLM's `get_preferred_block_size` of all thirteen."""
    for name, want in support.kept()["preferred_block_size"].items():
        got = lab.cache_block_size(facts.BACKENDS[name], None)
        assert got == want, f"{name}, and nobody asks for a size: blocks of {want}, got {got}"
        for asked in (16, 256):
            got = lab.cache_block_size(facts.BACKENDS[name], asked)
            assert got == asked, (
                f"{name}, and the user asks for blocks of {asked}: got {got}. Whether the backend takes them "
                "was looked at before, in `refusals`"
            )
    for sizes, want in [((8,), 16), ((64, 8), 16), ((48, 24), 24), ((16,), 16)]:
        got = lab.cache_block_size(facts.Backend("OF_MINE", block_sizes=sizes), None)
        assert got == want, (
            f"a backend that takes multiples of {sizes}: blocks of {want}, got {got}"
        )
