"""Lab 07-07: a learner's tile sizes held against vLLM's own functions, on every file that it ships.

    LAB_IMPL=starter pytest -m vllm tests/authors/test_lab_07_07_vllm.py

Without LAB_IMPL the reference is held.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from course.learner.labs import load_module
from tests.engine.helpers.real_vllm.vllm_helpers import ROOT

LAB = ROOT / "phase-07-gemm-and-moe" / "labs" / "lab-07-default-moe-config"
CHOICE = os.environ.get("LAB_IMPL", "").strip() or "solution"
STEPS = (1, 3, 24, 40, 100, 640, 1152, 3000, 8192, 100_000)
pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def lab() -> ModuleType:
    named = {"solution": LAB / "solution.py", "starter": LAB / "starter.py"}
    return load_module(named.get(CHOICE, Path(CHOICE)), "lab_07_07_held")


@pytest.fixture(scope="module")
def files() -> ModuleType:
    return load_module(LAB / "files.py", "lab_07_07_files_held")


@pytest.fixture
def vllm_moe(monkeypatch: pytest.MonkeyPatch) -> Any:
    """vLLM's module, as if each of its devices were the one that is asked for."""
    from vllm import envs
    from vllm.model_executor.layers.fused_moe import fused_moe

    envs.disable_envs_cache()  # an engine that another test has started in this process keeps all variables

    class Device:
        name = "NVIDIA A100-SXM4-80GB"

        def get_device_name(self) -> str:
            return self.name

        def is_rocm(self) -> bool:
            return False

        def is_cuda(self) -> bool:
            return True

    monkeypatch.setattr(fused_moe, "current_platform", Device())
    fused_moe.get_moe_configs.cache_clear()
    yield fused_moe
    fused_moe.get_moe_configs.cache_clear()


def asked(
    moe: Any, tokens: int, e: int, n: int, dtype: str | None, shape: list[int] | None
) -> dict[str, int]:
    """What vLLM chooses; `w2` of 4-bit weights is packed, two numbers in one."""
    packed = n // 2 if dtype == "int4_w4a16" else n
    found: dict[str, int] = moe.try_get_optimal_moe_config(
        (e, 2 * n, 4096), (e, 4096, packed), 2, dtype, tokens, shape
    )
    return found


def test_the_recorded_files_are_the_shipped_ones(files: ModuleType) -> None:
    """Names, keys and BLOCK_SIZE_M in files.json."""
    import json

    shipped = {
        path.name: json.loads(path.read_text("utf-8"))
        for path in files.shipped_folder().glob("*.json")
    }
    recorded = files.recorded()
    assert sorted(shipped) == sorted(recorded)
    for name, configs in shipped.items():
        configs.pop("triton_version", None)
        got = {int(key): one["BLOCK_SIZE_M"] for key, one in configs.items()}
        assert list(got.items()) == list(recorded[name].block_m.items()), name


def test_every_shipped_file(lab: ModuleType, files: ModuleType, vllm_moe: Any) -> None:
    """Name and choice, for ten sizes of a step."""
    for file in files.recorded().values():
        e, n, device, dtype, shape = file.parts
        vllm_moe.current_platform.name = device.replace("_", " ")
        vllm_moe.get_moe_configs.cache_clear()  # it remembers a file without its device
        name = vllm_moe.get_config_file_name(e, n, dtype, shape)
        assert lab.file_name(e, n, device.replace("_", " "), dtype, shape) == name == file.name
        for tokens in STEPS:
            got = lab.choose(tokens, e, n, device, dtype, shape, [files.shipped_folder()])
            assert got == asked(vllm_moe, tokens, e, n, dtype, shape), f"{name}, {tokens} tokens"


def test_two_thousand_shapes(lab: ModuleType, files: ModuleType, vllm_moe: Any) -> None:
    """Random E, N and tokens, with and without a file, in three dtypes and in blocks."""
    rng = random.Random(7)
    shipped = list(files.recorded().values())
    found = 0
    for _ in range(2000):
        e, n, device, dtype, shape = rng.choice(shipped).parts
        if rng.random() < 0.7:  # mostly shapes that have no file
            e, n = rng.randint(1, 256), 32 * rng.randint(1, 500)
            dtype, shape = rng.choice(
                [(None, None), ("fp8_w8a8", None), ("float32", None), ("fp8_w8a8", [128, 128])]
            )
        tokens = int(2 ** rng.uniform(0, 16))
        vllm_moe.current_platform.name = device.replace("_", " ")
        vllm_moe.get_moe_configs.cache_clear()
        got = lab.choose(tokens, e, n, device, dtype, shape, [files.shipped_folder()])
        assert got == asked(vllm_moe, tokens, e, n, dtype, shape), (
            e,
            n,
            device,
            dtype,
            shape,
            tokens,
        )
        found += lab.file_name(e, n, device, dtype, shape) in files.recorded()
    assert 500 < found < 800


def test_your_folder_comes_first(
    lab: ModuleType,
    files: ModuleType,
    vllm_moe: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """VLLM_TUNED_CONFIG_FOLDER hides the shipped file, large keys included."""
    name = "E=8,N=7168,device_name=NVIDIA_A100-SXM4-80GB.json"
    (tmp_path / name).write_text('{"1": {"BLOCK_SIZE_M": 48}, "32": {"BLOCK_SIZE_M": 48}}')
    monkeypatch.setenv("VLLM_TUNED_CONFIG_FOLDER", str(tmp_path))
    device = vllm_moe.current_platform.name
    for tokens in STEPS:
        got = lab.choose(tokens, 8, 7168, device, folders=[tmp_path, files.shipped_folder()])
        assert got == asked(vllm_moe, tokens, 8, 7168, None, None) == {"BLOCK_SIZE_M": 48}


def test_batch_invariant_reads_no_file(
    lab: ModuleType, files: ModuleType, vllm_moe: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One configuration for all shapes and steps."""
    from vllm import envs

    monkeypatch.setattr(envs, "VLLM_BATCH_INVARIANT", True, raising=False)
    for tokens in STEPS:
        got = lab.choose(tokens, 8, 7168, vllm_moe.current_platform.name, invariant=True)
        assert got == asked(vllm_moe, tokens, 8, 7168, None, None)


def test_e_and_n_are_vllms(lab: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own parallel config and its own expert map, for up to 8 GPUs each way."""
    from types import SimpleNamespace

    from vllm.model_executor.layers.fused_moe import config as moe_config
    from vllm.model_executor.layers.fused_moe.expert_map_manager import determine_expert_map

    monkeypatch.setattr(moe_config, "get_tensor_model_parallel_rank", lambda: 0)
    monkeypatch.setattr(moe_config, "get_dp_group", lambda: SimpleNamespace(rank_in_group=0))
    for tp in (1, 2, 4, 8):
        for dp in (1, 2, 4):
            for parallel in (False, True):
                asked_for = SimpleNamespace(
                    enable_expert_parallel=parallel, all2all_backend="", enable_eplb=False
                )
                made = moe_config.FusedMoEParallelConfig.make(tp, 1, dp, 1, asked_for)
                for rank in range(tp * dp):
                    held, _, _ = determine_expert_map(made.ep_size, rank % made.ep_size, 60)
                    got = lab.local_shape(
                        lab.Experts(60, 3584, 4), lab.Ranks(tp, dp, parallel), rank
                    )
                    assert tuple(got) == (held, 3584 // made.tp_size), (tp, dp, parallel, rank)


def test_which_dtypes_are_asked_for(files: ModuleType) -> None:
    """Nine shipped files have a dtype that no lookup names."""
    import itertools

    import torch
    from vllm.model_executor.layers.fused_moe.config import _get_config_dtype_str

    flags = ("use_fp8_w8a8", "use_fp8_w8a16", "use_int8_w8a16", "use_int4_w4a16")
    names = {
        _get_config_dtype_str(dtype=dtype, **dict(zip(flags, on, strict=True)))
        for dtype in (torch.float32, torch.bfloat16, torch.float16)
        for on in itertools.product((False, True), repeat=4)
    }
    assert names == set(files.ASKED_FOR)
    assert sum(file.parts[3] not in names for file in files.recorded().values()) == 9
