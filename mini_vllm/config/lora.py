"""The rules for adapters' settings.

Mirrors `vllm/config/lora.py:31 LoRAConfig`, and what adapters do not go with here.
"""

from __future__ import annotations

from typing import Any

from mini_vllm.config.checks import check_integer
from mini_vllm.config.scheduler import PIN
from mini_vllm.utils.untrusted import shorten_repr

MAX_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""(`vllm/config/lora.py:26 MaxLoRARanks`)"""


def check_lora(config: Any) -> None:
    """Check an `EngineConfig`, whose file calls this.

    Raises ValueError naming the field, its value and the rule. As upstream, where `enable_lora` is off
    nothing is asked of the others (`vllm/config/lora.py:109 LoRAConfig._validate_lora_config`).
    """
    check_integer("max_loras", config.max_loras, 1)
    if config.max_cpu_loras is not None:
        check_integer("max_cpu_loras", config.max_cpu_loras, 1)
        if config.max_cpu_loras < config.max_loras:
            raise ValueError(
                f"max_cpu_loras ({config.max_cpu_loras}) must be greater than or equal to max_loras "
                f"({config.max_loras})"
            )
    rank = config.max_lora_rank
    if isinstance(rank, bool) or rank not in MAX_LORA_RANKS:
        raise ValueError(
            f"max_lora_rank must be one of {', '.join(map(str, MAX_LORA_RANKS))}, got {shorten_repr(rank)}"
        )
    for name, usual in (
        ("attention", "numpy"),
        ("cudagraph_mode", "NONE"),
        ("speculative_config", None),
        ("rules", PIN),
        ("tensor_parallel_size", 1),
        ("pipeline_parallel_size", 1),
        ("data_parallel_size", 1),
        ("distributed_executor_backend", None),
    ):
        value = getattr(config, name)
        if value != usual and (name, value) != ("distributed_executor_backend", "uni"):
            raise ValueError(
                f"enable_lora does not go with {name} {shorten_repr(value)} here: only {usual!r} is supported"
            )
