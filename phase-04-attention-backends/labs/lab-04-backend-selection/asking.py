"""Given: how matrix.py asks vLLM. Its selection code is run as it is, on the machine of cuda_stand_in.py.

For each cell it is `CudaPlatformBase.get_attn_backend_cls` that chooses, warns and refuses, and
`get_valid_backends` that gives the reasons.
"""

from __future__ import annotations

import ast
import logging
import os
import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from course.learner.labs import load_module

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
facts = load_module(HERE / "facts.py", "lab_04_04_facts")


def asker(
    machines: Mapping[str, Any],
) -> tuple[Callable[[Any, Any, str | None], dict[str, Any]], dict[str, Any]]:
    """A function that asks vLLM for a cell of the matrix, and what else the matrix holds of vLLM.

    To be called once in a process, before anything of vLLM is imported. The function takes a `Machine`, a
    `Config` and an override or None. It returns vLLM's answer: `backend`, `order`, `valid`, `refused` and
    `precluded`, or for an override its `backend` or the `reasons` against it.
    """
    os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
    gpu = load_module(HERE / "cuda_stand_in.py", "lab_04_04_stand_in").stand_in()
    import torch
    import vllm
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.platforms import cuda
    from vllm.v1.attention.backends.fa_utils import get_flash_attn_version
    from vllm.v1.attention.backends.registry import AttentionBackendEnum
    from vllm.v1.attention.selector import AttentionSelectorConfig

    plain = VllmConfig()
    by_path = {kind.value: kind.name for kind in AttentionBackendEnum}
    warned: list[tuple[Any, ...]] = []

    class Listen(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "precluded" in record.msg:
                warned.append(tuple(record.args or ()))

    logger = logging.getLogger("vllm")
    logger.handlers = [Listen(logging.WARNING)]
    logger.setLevel(logging.WARNING)

    def ask(machine: Any, config: Any, override: str | None) -> dict[str, Any]:
        gpu.become(*machine, batch_invariant=config.use_batch_invariant)
        asked = config._asdict()
        num_heads = asked.pop("num_heads")
        asked["dtype"] = getattr(torch, config.dtype)
        asked = AttentionSelectorConfig(**asked)
        kind = None if override is None else AttentionBackendEnum[override]
        warned.clear()
        path = None
        with set_current_vllm_config(plain):
            try:
                path = gpu.platform.get_attn_backend_cls(kind, asked, num_heads)
            except ValueError as error:
                if override is not None:
                    return {"reasons": ast.literal_eval(str(error).partition("Reason: ")[2])}
                if "No valid attention backend" not in str(error):
                    raise
            if override is not None:
                return {"backend": by_path[path]}
            valid, refused = gpu.platform.get_valid_backends(
                gpu.platform.capability, asked, num_heads
            )
        order = cuda._get_backend_priorities(
            config.use_mla, gpu.platform.capability, num_heads, config.kv_cache_dtype
        )
        return {
            "backend": None if path is None else by_path[path],
            "order": [kind.name for kind in order],
            "valid": [kind.name for kind, _ in valid],
            "refused": {kind.name: reasons for kind, (_, reasons) in refused.items()},
            "precluded": warned[0][1].split(", ") if warned else [],
        }

    versions: dict[str, list[int | None]] = {}
    for name, machine in machines.items():
        versions[name] = []
        for invariant in (False, True):
            gpu.become(*machine, batch_invariant=invariant)
            versions[name].append(get_flash_attn_version())
    gpu.become((10, 0))
    sizes = {}
    with set_current_vllm_config(plain):
        for name in facts.BACKENDS:
            sizes[name] = AttentionBackendEnum[name].get_class().get_preferred_block_size(16)
    made = {
        "hardware": processor(),
        "versions": {
            "vllm": vllm.__version__,
            "torch": torch.__version__.partition("+")[0],
            "python": platform.python_version(),
        },
    }
    return ask, {
        "made": made,
        "flash_attn_version": versions,
        "preferred_block_size": sizes,
        "names": [kind.name for kind in AttentionBackendEnum],
    }


def processor() -> str:
    """As the captures of lab 02-05 name it."""
    other = ROOT / "phase-02-paged-attention" / "labs" / "lab-05-real-vllm-blocks" / "capture.py"
    return str(load_module(other, "lab_04_04_from_02_05").processor())
