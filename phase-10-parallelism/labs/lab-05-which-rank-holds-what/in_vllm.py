"""Given: your groups and stages beside vLLM's own. Needs vLLM 0.22.1; `course grade` does not.

    python in_vllm.py [solution | starter]

vLLM's `initialize_model_parallel` is run for each split of up to 64 ranks. What would make process groups
only notes which ranks they would have, so one process is enough and no GPU is needed. What real workers hold
is recorded by record.py.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

from course.learner.labs import load_module, need_vllm

HERE = Path(__file__).resolve().parent
support = load_module(HERE / "support.py", "lab_10_05_support")
NAMES = ("_TP", "_DCP", "_PCP", "_PP", "_DP", "_EP", "_EPLB")


def vllms_groups(split: Any, is_moe: bool) -> dict[str, list[list[int]]]:
    """Every group that vLLM would make."""
    import torch
    import vllm.config
    from vllm.distributed import parallel_state

    asked: dict[str, Any] = {}

    def note(group_ranks: Any, *_: Any, **settings: Any) -> Any:
        asked[settings["group_name"]] = group_ranks
        return SimpleNamespace(rank_in_group=0)

    parallel = SimpleNamespace(
        data_parallel_size=split.dp, enable_elastic_ep=False, enable_eplb=False
    )
    config = SimpleNamespace(parallel_config=parallel, model_config=SimpleNamespace(is_moe=is_moe))
    world = SimpleNamespace(local_rank=0, device_group=None)
    distributed: Any = torch.distributed
    with (
        patch.multiple(
            distributed,
            is_initialized=lambda: True,
            get_world_size=lambda: split.world,
            get_rank=lambda: 0,
        ),
        patch.object(vllm.config, "get_current_vllm_config", lambda: config),
        patch.multiple(
            parallel_state,
            get_world_group=lambda: world,
            init_model_parallel_group=note,
            **dict.fromkeys(NAMES),
        ),
    ):
        parallel_state.initialize_model_parallel(
            split.tp, split.pp, split.pcp, split.dcp, backend="gloo"
        )
    return asked


def count_groups(lab: ModuleType, largest: int = 64) -> tuple[int, int]:
    """How many splits there are, and how many have other groups in vLLM; in which order they are listed does
    not matter."""
    tried = wrong = 0
    for split in support.all_splits(largest):
        for is_moe in (True, False) if split.dp == 1 else (True,):
            theirs = vllms_groups(split, is_moe)
            mine = lab.groups(lab.Sizes(**split._asdict(), is_moe=is_moe))
            tried += 1
            wrong += {kind: sorted(groups) for kind, groups in mine.items()} != {
                kind: sorted(groups) for kind, groups in theirs.items()
            }
    return tried, wrong


def count_stages(lab: ModuleType) -> tuple[int, int]:
    """The same of layers and stages; every second time the counts are given by hand."""
    from vllm.distributed.utils import get_pp_indices

    tried = wrong = 0
    for layers in range(1, 82):
        for pp in range(1, min(16, layers) + 1):
            by_hand = ",".join(str(n) for n in [*[1] * (pp - 1), layers - pp + 1])
            for partition in (None, by_hand):
                with patch.dict(os.environ):
                    os.environ.pop("VLLM_PP_LAYER_PARTITION", None)
                    if partition is not None:
                        os.environ["VLLM_PP_LAYER_PARTITION"] = partition
                    theirs = [range(*get_pp_indices(layers, stage, pp)) for stage in range(pp)]
                tried += 1
                wrong += list(lab.stages(layers, pp, partition)) != theirs
    return tried, wrong


def main(which: str = "starter") -> None:
    need_vllm()
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    lab = load_module(HERE / f"{which}.py", f"lab_10_05_{which}")
    print("groups: {:,} splits of up to 64 ranks, {} differ".format(*count_groups(lab)))
    print("stages: {:,} models, {} differ".format(*count_stages(lab)))


if __name__ == "__main__":
    main(*sys.argv[1:2])
