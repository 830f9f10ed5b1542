"""Lab 10-05: the predictions, the groups, the names in the log, the layers, and what real workers hold."""

from __future__ import annotations

import math
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from course.learner.labs import load_support
from course.learner.predictions import wrong_in
from mini_vllm.distributed.parallel_state import get_pp_indices
from mini_vllm.model_loader.shards import get_experts_of_rank

support = load_support(__file__)
RECORDED = support.recorded()
SPLITS = support.some_splits()


def test_the_predictions_hold(lab: ModuleType) -> None:
    """Your answers to the README's questions hold, before anything is run."""
    facts: dict[str, tuple[Any, str]] = {
        "rank 5": ([2, 1], "Write the eight numbers in rows of two. In which row is 5?"),
        "its layers": ([40, 60], "How many layers has a stage, and how many stages come before?"),
        "its kv heads": ([4, 8], "8 KV heads on the two ranks of a stage. Which are the second's?"),
        "its groups": ([[4, 5], [1, 3, 5, 7]], "A row of the table, and a column."),
        "six stages": (
            [13, 13, 13, 14, 14, 13], "How many are left over, and which stage has the head?",
        ),
        "gpus": (32, "Which of the three has no axis?"),
        "experts": (32, "Over how many ranks are a layer's experts shared out?"),
        "rank 0": ([2, 1], "How many worlds are there?"),
    }  # fmt: skip
    said = lab.predictions()
    apart = sorted(facts.keys() ^ said.keys())
    assert not apart, (
        f"eight questions; the README and your answers do not both have these: {apart}"
    )
    for name, (fact, ask) in facts.items():
        wrong = wrong_in(said[name], fact)
        assert not wrong, f"{name}: {wrong}. {ask}"


# ---- who sits with whom ----------------------------------------------------------------------------


def sizes_of(lab: ModuleType, split: Any, is_moe: bool = True) -> Any:
    return lab.Sizes(**split._asdict(), is_moe=is_moe)


def by_rank(groups: Any) -> dict[int, list[int]]:
    """Each rank's group."""
    return {int(rank): [int(one) for one in group] for group in groups for rank in group}


@cache
def vllms_by_rank(split: Any) -> dict[str, dict[int, list[int]]]:
    return {kind: by_rank(groups) for kind, groups in support.vllms_groups(split, True).items()}


def test_the_layout(lab: ModuleType) -> None:
    """Five axes; neighbours differ in the last one."""
    for split in SPLITS:
        found = np.asarray(lab.layout(sizes_of(lab, split)))
        inside = (split.dp, split.pp, split.pcp, split.tp)
        shape = (split.world // math.prod(inside), *inside)
        assert found.shape == shape, f"{support.words(split)}: {shape}; yours {found.shape}"
        assert found.ravel().tolist() == list(range(split.world)), (
            f"{support.words(split)}: the ranks count up along the last axis, then along the one before"
        )


@pytest.mark.parametrize("kind", support.KINDS)
def test_groups_are_vllms(lab: ModuleType, kind: str) -> None:
    """Every rank's group of this kind, on worlds of up to 64 ranks."""
    for split in SPLITS:
        found = lab.groups(sizes_of(lab, split))
        assert kind in found, f"{support.words(split)}: there is no {kind!r} among {sorted(found)}"
        mine, theirs = by_rank(found[kind]), vllms_by_rank(split)[kind]
        listed = sorted(int(rank) for group in found[kind] for rank in group)
        assert listed == list(range(split.world)), (
            f"{support.words(split)}: each rank is in one {kind} group; yours list {listed}"
        )
        wrong = [rank for rank in theirs if mine[rank] != theirs[rank]]
        assert not wrong, (
            f"{support.words(split)}: rank {wrong[0]}'s {kind} group is {theirs[wrong[0]]}; yours is "
            f"{mine[wrong[0]]}"
        )


def test_a_dense_model_has_no_expert_groups(lab: ModuleType) -> None:
    """The kinds of groups are six for a mixture of experts, else five."""
    for is_moe in (True, False):
        found = lab.groups(lab.Sizes(8, tp=4, pp=2, is_moe=is_moe))
        kinds = [kind for kind in support.KINDS if kind != "ep" or is_moe]
        assert sorted(found) == sorted(kinds), f"is_moe {is_moe}: {kinds}; yours {list(found)}"


def test_a_place_is_a_number_in_each_group(lab: ModuleType) -> None:
    """A rank's place: its number in its group of each kind."""
    for split in SPLITS[::5]:
        sizes = sizes_of(lab, split)
        for rank in range(0, split.world, 3):
            want = {
                kind: of_rank[rank].index(rank) for kind, of_rank in vllms_by_rank(split).items()
            }
            found = {kind: int(number) for kind, number in lab.place(sizes, rank).items()}
            assert found == want, f"{support.words(split)}, rank {rank}: {want}; yours {found}"


NAMES: list[tuple[dict[str, Any], int, bool, str]] = [
    ({"world": 8, "tp": 2, "pp": 4}, 7, False, "Worker_PP3_TP1"),
    ({"world": 8, "tp": 8}, 5, False, "Worker_TP5"),
    ({"world": 1}, 0, False, "Worker"),
    ({"world": 16, "tp": 8, "pcp": 2, "dcp": 4}, 13, False, "Worker_PCP1_TP5_DCP1"),
    ({"world": 8, "tp": 4, "dp": 2, "is_moe": True}, 6, True, "Worker_DP1_TP2_EP6"),
    ({"world": 8, "tp": 4, "dp": 2, "is_moe": True}, 6, False, "Worker_DP1_TP2"),
    ({"world": 16, "tp": 2, "pp": 2, "dp": 4, "is_moe": True}, 11, True, "Worker_DP2_PP1_TP1_EP5"),
    ({"world": 2, "pp": 2, "is_moe": True}, 1, True, "Worker_PP1_EP0"),
    ({"world": 4, "tp": 2}, 3, False, "Worker_TP1"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "rank", "expert_parallel", "name"), NAMES, ids=[name for *_, name in NAMES]
)
def test_names_in_the_log(
    lab: ModuleType, fields: dict[str, Any], rank: int, expert_parallel: bool, name: str
) -> None:
    """How a worker's lines begin."""
    found = lab.worker_name(lab.Sizes(**fields), rank, expert_parallel)
    assert found == name, f"{fields}, rank {rank}: {name}; yours {found}"


# ---- who holds what --------------------------------------------------------------------------------


def test_the_layers_of_the_stages(lab: ModuleType) -> None:
    """What is left over goes to the stages before the last one, one layer each."""
    for layers, pp in [(64, 4), (62, 6), (4, 2), (5, 2), (7, 4), (11, 4), (8, 8), (3, 1), (61, 8)]:
        want = [get_pp_indices(layers, stage, pp) for stage in range(pp)]
        found = list(lab.stages(layers, pp))
        assert [len(stage) for stage in found] == [len(stage) for stage in want], (
            f"{layers} layers on {pp} stages: {[len(stage) for stage in want]}; yours "
            f"{[len(stage) for stage in found]}"
        )
        assert found == want, f"{layers} layers on {pp} stages: {want}; yours {found}"


def test_layers_by_hand(lab: ModuleType) -> None:
    """`VLLM_PP_LAYER_PARTITION` gives the counts, and is refused if they do not fit."""
    for partition, want in {
        "1,3": [range(1), range(1, 4)],
        "3, 1": [range(3), range(3, 4)],
        "2,2": [range(2), range(2, 4)],
        "0,4": [range(0), range(4)],
        "-1,5": [range(0), range(-1, 4)],  # vLLM takes it, too
    }.items():
        found = list(lab.stages(4, 2, partition))
        assert found == want, f"{partition!r} for 4 layers on 2 stages: {want}; yours {found}"
    for partition in ("4", "1,2,1", "1,2", "2,3", "two,two", ""):
        try:
            found = lab.stages(4, 2, partition)
        except ValueError:
            continue
        pytest.fail(
            f"{partition!r} does not give 4 layers to 2 stages: a ValueError; yours returns {list(found)}"
        )


TINY = {"num_layers": 4, "num_kv_heads": 2, "head_dim": 32, "vocab_size": 264}


def box_words(box: Any) -> str:
    """The first and the last of the rows that a rank keeps, and of the columns, in words."""
    if box is None:
        return "none of it"
    ends = [int(end) for part in box for end in (part.start, part.stop)]
    rows = f"rows {ends[0]} to {ends[1] - 1}"
    return rows if len(ends) == 2 else f"{rows}, columns {ends[2]} to {ends[3] - 1}"


def server_words(server: dict[str, Any]) -> str:
    words = f"TP {server['tensor_parallel_size']}, PP {server['pipeline_parallel_size']}"
    words += f", partition {server['partition']}" if server["partition"] else ""
    return words + (", tied" if server["tied"] else "")


@pytest.mark.parametrize(
    "number", range(len(RECORDED)), ids=[server_words(one["server"]) for one in RECORDED]
)
def test_holds_what_vllms_workers_hold(lab: ModuleType, number: int) -> None:
    """Rows and columns of every tensor, on each rank of a real server."""
    server, ranks = RECORDED[number]["server"], RECORDED[number]["ranks"]
    sizes = lab.Sizes(
        len(ranks), tp=server["tensor_parallel_size"], pp=server["pipeline_parallel_size"]
    )
    model = lab.Model(**TINY, tied=server["tied"])
    for rank, kept in enumerate(ranks):
        for name, shape in support.shapes(server["tied"]).items():
            box = lab.holds(name, shape, model, sizes, rank, server["partition"])
            ends = kept.get(name)
            want = None if ends is None else tuple(map(range, ends[::2], ends[1::2]))
            assert box == want, (
                f"{server_words(server)}, rank {rank}, {name}: vLLM's worker has {box_words(want)}; yours "
                f"{box_words(box)}"
            )


def test_every_layer_has_its_stage(lab: ModuleType) -> None:
    """A layer's number may have two digits: Llama-3-70B's 80 layers on four stages of two ranks."""
    sizes, shape = lab.Sizes(8, tp=2, pp=4), (28_672, 8192)
    model = lab.Model(80, 8, 128, 128_256)
    for layer in range(80):
        name = f"model.layers.{layer}.mlp.up_proj.weight"
        having = [rank for rank in range(8) if lab.holds(name, shape, model, sizes, rank)]
        want = [layer // 20 * 2, layer // 20 * 2 + 1]
        assert having == want, (
            f"80 layers, tp 2, pp 4: ranks {want} have layer {layer}; yours {having}"
        )


def test_a_tied_embedding_on_more_ranks(lab: ModuleType) -> None:
    """Every rank of the first stage and of the last has its part of it, and none between them."""
    model, name, shape = lab.Model(**TINY, tied=True), "model.embed_tokens.weight", (264, 128)
    for fields in (
        {"world": 3, "pp": 3},
        {"world": 4, "tp": 2, "pp": 2},
        {"world": 6, "tp": 2, "pp": 3},
    ):
        sizes = lab.Sizes(**fields)
        for rank in range(sizes.world):
            stage, number = divmod(rank, sizes.tp)
            want = lab.share(name, shape, model, number, sizes.tp)
            if 0 < stage < sizes.pp - 1:
                want = None
            box = lab.holds(name, shape, model, sizes, rank)
            assert box == want, (
                f"a tied model, {fields}: of the embedding rank {rank}, on stage {stage}, has "
                f"{box_words(want)}; yours {box_words(box)}"
            )


def test_copies_hold_the_same(lab: ModuleType) -> None:
    """Ranks that differ only in DP, PCP or the external copy hold the same."""
    sizes = lab.Sizes(64, tp=2, pp=4, pcp=2, dp=2, is_moe=True)
    model = lab.Model(**TINY)
    ranks = np.arange(64).reshape(2, 2, 4, 2, 2)
    for (copy, dp, stage, pcp, number), rank in np.ndenumerate(ranks):
        name, shape = f"model.layers.{stage}.mlp.up_proj.weight", (384, 128)
        want = (range(192 * number, 192 * (number + 1)), range(128))
        found = lab.holds(name, shape, model, sizes, int(rank))
        assert found == want, (
            f"world 64, tp 2, pp 4, pcp 2, dp 2: rank {rank} is copy {copy}, DP {dp}, stage {stage}, PCP "
            f"{pcp}, TP {number}; of layer {stage}'s up_proj it keeps {box_words(want)}; yours "
            f"{box_words(found)}"
        )


WITH_EXPERTS: list[dict[str, int]] = [
    {"world": 8, "tp": 4, "dp": 2},
    {"world": 16, "tp": 2, "pp": 2, "pcp": 2, "dp": 2},
    {"world": 6, "tp": 3, "dp": 2},
    {"world": 8, "tp": 2, "dp": 2},
    {"world": 16, "tp": 2, "pp": 2, "dp": 2},
]


@pytest.mark.parametrize(
    "fields", WITH_EXPERTS, ids=[support.words(support.Split(**one)) for one in WITH_EXPERTS]
)
def test_experts(lab: ModuleType, fields: dict[str, int]) -> None:
    """A layer's experts are shared out over the stage's ranks of one external copy, in rank order."""
    split = support.Split(**fields)
    for count in (160, 60, 8):
        for rank in range(split.world):
            group = vllms_by_rank(split)["ep"][rank]
            want = get_experts_of_rank(count, group.index(rank), len(group))
            found = lab.experts(count, sizes_of(lab, split), rank)
            assert found == want, (
                f"{support.words(split)}: of {count} experts rank {rank} holds {want}; yours {found}"
            )
