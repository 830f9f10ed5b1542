"""Which attention backends there are, by name, and where their parts lie.

Mirrors `vllm/v1/attention/backends/registry.py:34 AttentionBackendEnum`: a name stands for an import path,
and the path is followed when the class is asked for. So every backend can be named, and refused
with a sentence, on a machine that has nothing of what it needs; and this file imports neither torch nor
Triton nor `mini_vllm.gpu`.

A backend of torch tensors wants a model of torch tensors, and what runs it, so their paths stand beside it.
vLLM names its worker the same way (`vllm/platforms/cuda.py:233 in CudaPlatformBase.check_and_update_config`).
Left out: choosing. Where no backend is named, vLLM takes the first of a list that fits GPU, dtype and model
(`vllm/platforms/cuda.py:293 CudaPlatformBase.get_attn_backend_cls`); here it is numpy.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from typing import Any

from mini_vllm.utils.untrusted import shorten_repr


@dataclass(frozen=True)
class Backend:
    """What runs under one name, as import paths
    (`vllm/v1/attention/backends/registry.py:34 AttentionBackendEnum`).

    Attributes:
        name: what `EngineConfig.attention` calls it.
        attention: a class with `get_kv_cache_shape` and `forward`; made with no argument.
        model: a `LlamaForCausalLM` for its tensors; made from config, weights and attention.
        forward: what runs that model in a step (`worker/forward.py`).
        graph_forward: what runs it under CUDA graphs (`EngineConfig.cudagraph_mode`).
        needs: packages, of the extra `torch`, that must be there.
    """

    name: str
    attention: str
    model: str
    forward: str
    graph_forward: str
    needs: tuple[str, ...] = ()

    def get_attention_cls(self) -> Any:
        return self._resolve(self.attention)

    def get_model_cls(self) -> Any:
        return self._resolve(self.model)

    def get_forward_cls(self) -> Any:
        return self._resolve(self.forward)

    def get_graph_forward_cls(self) -> Any:
        return self._resolve(self.graph_forward)

    def _resolve(self, path: str) -> Any:
        """The class at `path`. Raises ValueError that says what to install, if something is missing."""
        missing = [package for package in self.needs if importlib.util.find_spec(package) is None]
        if missing:
            from mini_vllm.utils.extras import how_to_get

            raise ValueError(
                f"attention={self.name!r} needs {' and '.join(missing)}, of the extra 'torch': "
                f"{how_to_get('torch')}"
            )
        module, name = path.rsplit(".", 1)
        return getattr(importlib.import_module(module), name)


BACKENDS: dict[str, Backend] = {
    backend.name: backend
    for backend in (
        Backend(
            "numpy",
            "mini_vllm.attention.tiled.TiledAttention",
            "mini_vllm.models.llama.LlamaForCausalLM",
            "mini_vllm.worker.forward.NumpyForward",
            "mini_vllm.worker.graph_forward.NumpyGraphForward",
        ),
        Backend(
            "torch",
            "mini_vllm.gpu.backend.TorchAttention",
            "mini_vllm.gpu.llama.LlamaForCausalLM",
            "mini_vllm.gpu.forward.TorchForward",
            "mini_vllm.gpu.cudagraph.TorchGraphForward",
            needs=("torch",),
        ),
        Backend(
            "triton",
            "mini_vllm.gpu.backend.TritonAttention",
            "mini_vllm.gpu.llama.LlamaForCausalLM",
            "mini_vllm.gpu.forward.TorchForward",
            "mini_vllm.gpu.cudagraph.TorchGraphForward",
            needs=("torch", "triton"),
        ),
    )
}


def get_backend(name: str) -> Backend:
    """The backend of that name. Raises ValueError with the names that there are.
    Source: `vllm/v1/attention/backends/registry.py:21 _AttentionBackendEnumMeta.__getitem__`."""
    if name not in BACKENDS:
        raise ValueError(
            f"attention must be one of {', '.join(BACKENDS)}, got {shorten_repr(name)}"
        )
    return BACKENDS[name]
