"""Lab 11-03: the predictions, an adapter's file, a slot's buffers, and what slots take from the KV cache."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from safetensors.numpy import load_file

from course.learner.labs import load_support
from course.learner.predictions import wrong_in
from mini_vllm.config.engine import DEFAULT_MODEL

support = load_support(__file__)
RECORDED = support.recorded()
SERVERS = pytest.mark.parametrize("server", RECORDED, ids=lambda server: server.words())
Pairs = list[tuple[tuple[int, ...], tuple[int, ...]]]


def test_the_predictions_hold(lab: ModuleType) -> None:
    """Your answers to the README's questions hold, before anything is run."""
    facts: dict[str, tuple[Any, str]] = {
        "slot and file": (
            "more than six times",
            "Which linears does a layer have beside q and v? Add up what each takes in and gives.",
        ),
        "rank 9": ([16, 0.4375], "Which ranks may a server be started with? How many rows of 16 stay empty?"),
        "q and v": (
            ["q_proj", "k_proj", "v_proj"], "Which module are they in, and what else is in it?",
        ),
        "tied": (2, "An adapter of the head changes logits. Does it change what the embedding gives?"),
        "eight ranks": (
            "nearly half",
            "Of qkv_proj every rank has all of the input. Which of A and B can be cut? Of o_proj?",
        ),
        "before the first": (16, "When is the KV cache's size set? What would the first adapter do to it?"),
        "KV": (700, "How many bytes of K and V has a token, over 32 layers with 8 KV heads of 128?"),
    }  # fmt: skip
    said = lab.predictions()
    apart = sorted(facts.keys() ^ said.keys())
    assert not apart, (
        f"seven questions; the README and your answers do not both have these: {apart}"
    )
    for name, (fact, ask) in facts.items():
        wrong = wrong_in(said[name], fact)
        assert not wrong, f"{name}: {wrong}. {ask}"


# ---- an adapter ------------------------------------------------------------------------------------


def test_the_smallest_max_lora_rank(lab: ModuleType) -> None:
    """An adapter's rank is rounded up to one that vLLM takes."""
    legal = (1, 8, 16, 32, 64, 128, 256, 320, 512)
    above = {rank + 1: higher for rank, higher in pairwise(legal)}
    for rank, want in sorted((above | dict(zip(legal, legal, strict=True))).items()):
        found = lab.smallest_max_lora_rank(rank)
        assert found == want, f"rank {rank}: max_lora_rank {want}; yours {found}"
    try:
        found = lab.smallest_max_lora_rank(513)
    except ValueError:
        return
    pytest.fail(f"rank 513 is served with no max_lora_rank: a ValueError; yours returns {found}")


@pytest.mark.parametrize(
    ("name", "rank", "linears"),
    [
        ("snake", 4, support.LINEARS),
        ("telegram", 8, ("q_proj", "k_proj", "v_proj", "o_proj", "down_proj")),
        ("questions", 16, ("q_proj", "v_proj")),
    ],
)
def test_the_file_of_a_shipped_adapter(
    lab: ModuleType, name: str, rank: int, linears: tuple[str, ...]
) -> None:
    """The numbers in the three tenants' files, in float32."""
    folder = Path(DEFAULT_MODEL).parent / "tiny-llama-lora" / name
    tensors = load_file(folder / "adapter_model.safetensors")
    want = sum(tensor.nbytes for tensor in tensors.values())
    found = lab.file_bytes(support.model_of(lab, "tiny"), rank, linears, 4)
    assert found == want, (
        f"{name}, rank {rank} for {', '.join(linears)}: {want:,} bytes; yours {found:,}"
    )


# ---- a slot ----------------------------------------------------------------------------------------


@SERVERS
def test_wrapped_modules_are_vllms(lab: ModuleType, server: Any) -> None:
    """The modules for which real vLLM made buffers."""
    want = {name: one["count"] for name, one in RECORDED[server]["modules"].items()}
    model, lora = support.model_of(lab, server.model), support.config_of(lab, server)
    found = dict(lab.wrapped(model, lora))
    assert found == want, (
        f"{server.words()}: vLLM has buffers for {support.counts(want)}; yours {support.counts(found)}"
    )


@SERVERS
def test_buffers_are_vllms(lab: ModuleType, server: Any) -> None:
    """The shapes of one slot's A and B, module by module."""
    model, lora = support.model_of(lab, server.model), support.config_of(lab, server)
    for name, one in RECORDED[server]["modules"].items():
        want: Pairs = list(zip(map(tuple, one["a"]), map(tuple, one["b"]), strict=True))
        found = [(tuple(a), tuple(b)) for a, b in lab.buffers(name, model, lora, server.tp)]
        assert len(found) == len(want), (
            f"{server.words()}, {name}: vLLM has {len(want)} pairs of A and B; yours has {len(found)}"
        )
        for number, (mine, theirs) in enumerate(zip(found, want, strict=True)):
            for letter, my_shape, their_shape in zip("AB", mine, theirs, strict=True):
                assert my_shape == their_shape, (
                    f"{server.words()}, {name}, pair {number}: vLLM's {letter} is {their_shape}; yours "
                    f"{my_shape}"
                )


@SERVERS
def test_slots_have_vllms_bytes(lab: ModuleType, server: Any) -> None:
    """All slots of a rank, to the byte."""
    model, lora = support.model_of(lab, server.model), support.config_of(lab, server)
    want = RECORDED[server]["bytes"] // server.lora.max_loras
    found = lab.slot_bytes(model, lora, server.tp)
    assert found == want, (
        f"{server.words()}: one slot on one rank has {want:,} bytes; yours {found:,}"
    )
    if server.tp == 1:
        found = lab.slot_bytes(model, lora)
        assert found == want, (
            f"{server.words()}, tp left out: {want:,} bytes on the only rank; yours {found:,}"
        )


def test_a_rank_that_cannot_be_cut(lab: ModuleType) -> None:
    """What vLLM refuses at the start is refused, and nothing else."""
    for of, tp, fully_sharded, rank, name, refused in (
        ("Llama-3-8B", 16, True, 8, "qkv_proj", True),
        ("Llama-3-8B", 16, True, 1, "gate_up_proj", True),
        ("one KV head", 3, True, 8, "qkv_proj", True),
        ("Llama-3-8B", 16, True, 8, "o_proj", False),
        ("Llama-3-8B", 16, True, 8, "lm_head", False),
        ("Llama-3-8B", 16, True, 16, "qkv_proj", False),
        ("Llama-3-8B", 16, False, 8, "qkv_proj", False),
    ):
        model = support.model_of(lab, of)
        lora = lab.LoRAConfig(max_lora_rank=rank, fully_sharded_loras=fully_sharded)
        case = f"{of}, {name}, TP {tp}, rank {rank}, {'' if fully_sharded else 'not '}fully sharded"
        try:
            found = lab.buffers(name, model, lora, tp)
        except ValueError:
            found = None
        if refused:
            assert found is None, (
                f"{case}: {tp} ranks cannot share out {rank} rows of A evenly; yours returns {found}"
            )
        else:
            assert found is not None, f"{case}: vLLM makes buffers; yours raises ValueError"


# ---- a card ----------------------------------------------------------------------------------------

ROOMS = (3 * 2**30, 10**9, 0)
BLOCK = {1: 2 * 2**20, 2: 2**20}
"""Bytes of a KV block of Llama-3-8B on one rank, by TP."""


def slots_of_8b(tp: int, max_loras: int = 1) -> int:
    server = support.Server("Llama-3-8B", tp=tp)
    size: int = RECORDED[server]["bytes"]
    return size * max_loras


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("max_loras", [1, 4, 40])
def test_kv_blocks_beside_slots(lab: ModuleType, max_loras: int, tp: int) -> None:
    """Whole KV blocks in what the slots leave."""
    model, lora = support.model_of(lab, "Llama-3-8B"), lab.LoRAConfig(max_loras)
    for room in ROOMS:
        want = max(0, (room - slots_of_8b(tp, max_loras)) // BLOCK[tp])
        found = lab.kv_blocks(model, lora, tp, room)
        assert found == want, (
            f"Llama-3-8B, TP {tp}, {max_loras} slots, {room:,} bytes: {want} blocks; yours {found}"
        )


@pytest.mark.parametrize("tp", [1, 2])
def test_the_most_slots(lab: ModuleType, tp: int) -> None:
    """One more would leave too few blocks."""
    model = support.model_of(lab, "Llama-3-8B")
    slot = slots_of_8b(tp)
    cases = [(room, blocks) for room in ROOMS for blocks in (0, 100, 450, 1500)]
    cases += [(1000 * BLOCK[tp] + 3 * slot + more, 1000) for more in (-1, 0, 1)]
    for room, blocks in cases:
        want = max((n for n in range(200) if room - n * slot >= blocks * BLOCK[tp]), default=0)
        for max_loras in (1, 16):
            found = lab.most_slots(model, lab.LoRAConfig(max_loras), tp, room, blocks)
            assert found == want, (
                f"Llama-3-8B, TP {tp}, {room:,} bytes, {blocks} blocks to be left: {want} slots; yours "
                f"{found}, from a LoRAConfig with max_loras {max_loras}"
            )
