"""Given: what real vLLM allocates for its slots. Needs vLLM 0.22.1; `course grade` does not.

    python record.py            print it, as one line of JSON
    python record.py --record   write recorded.json, which the tests read

Measured is every wrapped module's `lora_a_stacked` and `lora_b_stacked`. The small models of support.py are
served, with made-up weights: the buffers are those of the running workers. The large ones are made by the
same classes on torch's meta device, where a tensor has a shape and no memory.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from course.learner.labs import load_module

support = load_module(Path(__file__).resolve().parent / "support.py", "lab_11_03_support")


def look(manager: Any) -> dict[str, Any]:
    """The bytes of all slots of a real manager, and the shapes of one."""
    total, modules = 0, {}
    for name, module in manager.modules.items():
        pair = [
            tensors if isinstance(tensors, tuple) else (tensors,)
            for tensors in (module.lora_a_stacked, module.lora_b_stacked)
        ]
        total += sum(tensor.nbytes for tensors in pair for tensor in tensors)
        assert all(len(x) == manager.lora_slots for tensors in pair for x in tensors), name
        # the embedding's A is (slots, vocabulary, rank); the others have an axis of length 1 in between
        shapes = [[list(x.shape[-2:]) for x in tensors] for tensors in pair]
        here = modules.setdefault(name.rpartition(".")[2], {"count": 0, "a": [], "b": []})
        assert not here["count"] or [here["a"], here["b"]] == shapes, name
        here |= {"count": here["count"] + 1, "a": shapes[0], "b": shapes[1]}
    return {"bytes": total, "modules": modules}


def look_in_worker(worker: Any) -> dict[str, Any]:
    return look(worker.model_runner.lora_manager._adapter_manager)


def write_config(folder: Path, shape: Any) -> None:
    """A checkpoint without weights."""
    config = json.loads((support.TINY / "config.json").read_text("utf-8")) | {
        "num_hidden_layers": shape.num_layers,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab_size,
        "tie_word_embeddings": shape.tied,
    }
    if not shape.adapts_embeddings:
        config |= {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
    (folder / "config.json").write_text(json.dumps(config), "utf-8")


def settings_of(server: Any, folder: str) -> dict[str, Any]:
    """What vLLM is asked for."""
    lora = server.lora
    targets = None if lora.target_modules is None else list(lora.target_modules)
    return {
        "model": folder,
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "dtype": server.dtype,
        "enforce_eager": True,
        "max_model_len": 64,
        "max_num_batched_tokens": 64,
        "max_num_seqs": 4,
        "num_gpu_blocks_override": 16,
        "enable_lora": True,
        "lora_dtype": server.lora_dtype,
        "max_loras": lora.max_loras,
        "max_lora_rank": lora.max_lora_rank,
        "fully_sharded_loras": lora.fully_sharded_loras,
        "lora_target_modules": targets,
    }


def serve(server: Any) -> dict[str, Any]:
    """Start the engine and look into its workers, whose buffers must be alike."""
    from vllm import LLM
    from vllm.v1.executor import UniProcExecutor

    with tempfile.TemporaryDirectory() as place:
        write_config(Path(place), server.shape)
        llm = LLM(
            **settings_of(server, place),
            tensor_parallel_size=server.tp,
            distributed_executor_backend="mp" if server.tp > 1 else UniProcExecutor,
        )
        found = llm.collective_rpc(look_in_worker)
        assert len(found) == server.tp
        assert all(one == found[0] for one in found)
        del llm
        gc.collect()
        return found[0]


def make_on_paper(server: Any) -> dict[str, Any]:
    """The model and its manager on the meta device; the groups of ranks are stand-ins that say how many
    there are."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.distributed import parallel_state
    from vllm.engine.arg_utils import EngineArgs
    from vllm.lora.model_manager import LoRAModelManager
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    with tempfile.TemporaryDirectory() as place:
        write_config(Path(place), server.shape)
        config = EngineArgs(**settings_of(server, place)).create_engine_config()
    group, alone = (
        SimpleNamespace(world_size=n, rank_in_group=0, is_first_rank=True, is_last_rank=True)
        for n in (server.tp, 1)
    )
    with (
        patch.multiple(parallel_state, _TP=group, _PP=alone, _DP=alone, _PCP=alone, _DCP=alone),
        set_current_vllm_config(config),
    ):
        with torch.device("meta"), set_default_torch_dtype(config.model_config.dtype):
            model: Any = initialize_model(config)
        lora_config = config.lora_config
        assert lora_config is not None
        size = config.model_config.get_vocab_size()
        device = torch.device("cpu")
        return look(LoRAModelManager(model, 4, 64, size, lora_config, device, config))


def no_pinned_memory() -> None:
    """In each process: the copies of a step would ask for pinned memory, which takes a GPU."""
    from vllm.utils import torch_utils

    torch_utils.async_tensor_h2d.__defaults__ = (False,)


def record_all(servers: Sequence[Any]) -> list[dict[str, Any]]:
    """Of each server what was found: all with one process in one, the others in several each."""
    found: dict[Any, dict[str, Any]] = {}
    alone = [server for server in servers if server.tp == 1 or server not in support.SERVED]
    for group in [alone, *([server] for server in servers if server not in alone)]:
        if group:
            found |= zip(group, run_child(group), strict=True)
    return [{"server": support.as_json(server)} | found[server] for server in servers]


def run_child(servers: Sequence[Any]) -> list[dict[str, Any]]:
    """Measure in a process of its own."""
    every = [*support.SERVED, *support.ON_PAPER]
    sizes = [server.tp for server in servers if server in support.SERVED]
    environment = os.environ | {
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
        "TORCH_COMPILE_DISABLE": "1",
    }
    if max(sizes, default=1) > 1:
        cores = os.cpu_count() or 1
        environment["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(str(r % cores) for r in range(sizes[0]))
    command = [sys.executable, __file__, "--child", *(str(every.index(one)) for one in servers)]
    run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    lines = [line for line in run.stdout.splitlines() if line.startswith('{"bytes"')]
    return [json.loads(line) for line in lines]


if __name__ == "__mp_main__":  # a rank's process
    no_pinned_memory()
if __name__ == "__main__":
    EVERY = [*support.SERVED, *support.ON_PAPER]
    if sys.argv[1:2] == ["--child"]:
        no_pinned_memory()
        for server in (EVERY[int(number)] for number in sys.argv[2:]):
            measure = serve if server in support.SERVED else make_on_paper
            print(json.dumps(measure(server)), flush=True)
    elif sys.argv[1:2] == ["--record"]:
        rows = [json.dumps(one, separators=(",", ":")) for one in record_all(EVERY)]
        text = ",\n".join(rows)
        support.RECORDED.write_text(f'{{"vllm":"0.22.1","servers":[\n{text}\n]}}\n', "utf-8")
    else:
        print(json.dumps(record_all(EVERY)))
