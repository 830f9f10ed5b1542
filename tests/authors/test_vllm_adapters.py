"""What phase 11's script prints of real vLLM is what the phase's pages show, and what they say beside it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from topic_helpers import load_scripts, topics_on

from course.docs.pages import ROOT
from tests.engine.helpers.patience import PATIENCE
from tests.engine.helpers.real_vllm.vllm_helpers import output_of
from tests.engine.helpers.thorough import THOROUGH, either

PHASE = ROOT / "phase-11-multi-lora"
(adapters,) = load_scripts(PHASE, "vllm_adapters")
TOPICS = either([topic for topic in adapters.TOPICS if topic != "gone"], list(adapters.TOPICS))

pytestmark = pytest.mark.vllm


def shown() -> Iterator[tuple[str, list[str]]]:
    """Topic and lines of each block on the phase's pages that the script has printed."""
    for page in sorted(PHASE.glob("*.md")):
        for blocks in topics_on(page, {"vllm_adapters.py": adapters}).values():
            yield from blocks.items()


def test_the_pages_show_every_topic() -> None:
    assert {topic for topic, _ in shown()} == set(adapters.TOPICS)


@pytest.mark.parametrize("topic", TOPICS)
def test_the_pages_show_what_is_printed(topic: str) -> None:
    """`gone` starts a whole engine, so it is run where tests may take long."""
    lines = output_of(PHASE / "vllm_adapters.py", topic).splitlines()
    printed = lines[lines.index(f"{topic}, vLLM") :]
    assert printed == dict(shown())[topic]


def test_two_of_one_name_are_one_in_a_steps_set() -> None:
    """Exercise 3."""
    from vllm.lora.request import LoRARequest

    assert len({LoRARequest("ada", 1, "old/"), LoRARequest("ada", 2, "new/")}) == 1


def test_a_request_to_load_in_place_reads_the_file_whenever_it_is_seen() -> None:
    """Deep dive, section 6."""
    from vllm.lora.worker_manager import LRUCacheWorkerLoRAManager

    loads: list[int] = []

    def load(request: Any) -> Any:
        loads.append(request.lora_int_id)
        return SimpleNamespace(id=request.lora_int_id)

    def agree(*_: Any) -> bool:
        return True

    manager: Any = LRUCacheWorkerLoRAManager.__new__(LRUCacheWorkerLoRAManager)
    manager._load_adapter = load
    manager._adapter_manager = _Sized(
        list_adapters=lambda: {1}, capacity=4, lora_slots=1, get_adapter=agree,
        remove_adapter=agree, add_adapter=agree, activate_adapter=agree,
    )  # fmt: skip
    for in_place in (True, False):
        for _ in range(3):
            manager.set_active_adapters(
                [SimpleNamespace(lora_int_id=1, load_inplace=in_place)], None
            )
        assert len(loads) == 3


def test_the_gpus_kernel_reads_the_half_of_gathered_rows_that_is_right() -> None:
    """Deep dive, section 4; on CPU the last test."""
    child = ROOT / "tests/engine/helpers/real_vllm/gathered_child.py"
    printed = output_of(child, TRITON_INTERPRET="1", CUDA_VISIBLE_DEVICES="").splitlines()
    far = [
        float(line.rpartition(" ")[2]) for line in printed if "own" in line or "gathered" in line
    ]
    assert len(far) == 3
    assert max(far) < 0.002


def test_only_the_last_part_of_a_tensors_name_is_checked(tmp_path: Path) -> None:
    """Deep dive, section 1."""
    import torch
    from safetensors.torch import save_file
    from vllm.lora.lora_model import LoRAModel
    from vllm.lora.peft_helper import PEFTHelper

    helper = PEFTHelper(r=1, lora_alpha=1, target_modules=["q_proj"])

    def read(layer: int, module: str) -> LoRAModel:
        name = f"base_model.model.model.layers.{layer}.self_attn.{module}.lora_%s.weight"
        pair = {name % "A": torch.ones(1, 8), name % "B": torch.ones(8, 1)}
        save_file(pair, tmp_path / "adapter_model.safetensors")
        return LoRAModel.from_local_checkpoint(
            str(tmp_path), {"q_proj"}, helper, lora_model_id=1, device="cpu"
        )

    assert list(read(99, "q_proj").loras) == ["model.layers.99.self_attn.q_proj"]
    with pytest.raises(ValueError, match=r"layers\.0\.self_attn\.in_proj"):
        read(0, "in_proj")


class _Sized(SimpleNamespace):
    def __len__(self) -> int:
        return 1


RUN = """
import os, sys
os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "TORCH_COMPILE_DISABLE": "1", "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "CRITICAL",
}
cores = sorted(os.sched_getaffinity(0))
os.environ["VLLM_CPU_OMP_THREADS_BIND"] = f"{cores[0]}|{cores[-1]}"
from vllm.utils import torch_utils
torch_utils.async_tensor_h2d.__defaults__ = (False,)
from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest

if __name__ == "__main__":
    model, folder = sys.argv[1:]
    llm = LLM(
        model, dtype="float32", enforce_eager=True, max_model_len=256, tensor_parallel_size=2,
        distributed_executor_backend="mp", enable_lora=True,
    )
    params = SamplingParams(temperature=0, max_tokens=4)
    llm.generate(["Why "], params, lora_request=LoRARequest("ada", 1, folder), use_tqdm=False)
"""


@pytest.mark.skipif(not THOROUGH, reason="it starts an engine of two ranks")
def test_on_cpu_two_ranks_do_not_take_adapters_that_are_half_sharded(tmp_path: Path) -> None:
    """Deep dive, section 4. A failure here may mean that vLLM has mended it, as 0.25.0 did."""
    script = tmp_path / "run.py"
    script.write_text(RUN, "utf-8")
    command = [sys.executable, str(script), str(adapters.CHECKPOINTS / "tiny-llama")]
    command.append(str(adapters.ADAPTERS / "snake"))
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode
    assert "einsum(): subscript i has size 16" in done.stderr
