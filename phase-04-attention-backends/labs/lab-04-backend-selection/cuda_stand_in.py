"""Given: vLLM's CUDA platform on a machine that has no GPU, so that its selection code can be asked.

Import this before anything of vLLM, and call `stand_in()` once. From then on vLLM's `current_platform` is its
own `CudaPlatformBase`, told which GPU it is on instead of asking the driver:

    gpu = stand_in()
    gpu.become((8, 9))

The order of the candidates, their validation and their messages are vLLM's. What stands in is only:

- the compiled extensions of the CUDA build. Platform and backends import them; nothing calls them here.
- the driver's answers: capability, name, memory, number of devices.
- the packages flashinfer and tokenspeed_mla, which may be there or not: `become` says.
- the look-up whether NVIDIA's server can be reached, which `become` answers, too.
- workspaces that two MLA backends allocate on a GPU when they are imported: they get no memory.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
import types
from collections.abc import Sequence
from typing import Any

EXTENSIONS = (
    "vllm._C",
    "vllm._C_stable_libtorch",
    "vllm._moe_C",
    "vllm._moe_C_stable_libtorch",
    "vllm._flashmla_C",
    "vllm._flashmla_extension_C",
    "vllm.third_party.flashmla",
    "vllm.vllm_flash_attn._vllm_fa2_C",
    "vllm.vllm_flash_attn._vllm_fa3_C",
)
"""What vLLM's CUDA wheel brings along, and its CPU wheel does not.

The CPU wheel has a `vllm._C` too, but another: compiled for AVX-512, with kernels for a CPU.
`vllm.platforms.cuda` imports whatever has that name, and on a processor without AVX-512 that is an illegal
instruction."""
PACKAGES = ("flashinfer", "tokenspeed_mla")


class _Anything:
    """What an empty module gives for any name."""

    def __init__(self, *args: object, **kwargs: object) -> None: ...

    def __call__(self, *args: object, **kwargs: object) -> _Anything:
        return _Anything()

    def __getattr__(self, name: str) -> _Anything:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything()


class _EmptyModule(types.ModuleType):
    """A module that can be imported, with whatever name one wants to have from it."""

    __path__: Sequence[str] = ()

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (_Anything,), {})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds an empty module under each of `names` and below."""

    def __init__(self) -> None:
        self.names = set(EXTENSIONS)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if any(name == known or name.startswith(known + ".") for known in self.names):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        return _EmptyModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None: ...


class StandIn:
    """vLLM's CUDA platform, and the switches of the machine that it believes to be on.

    Attributes:
        platform: the class, `CudaPlatformBase` with the driver's answers filled in.
    """

    def __init__(self, finder: _Finder, platform: Any) -> None:
        self.platform = platform
        self._finder = finder

    def become(
        self,
        capability: tuple[int, int],
        flashinfer: bool = True,
        cubins: bool = True,
        tokenspeed: bool = False,
        batch_invariant: bool = False,
    ) -> None:
        """Be another machine from now on. The first four are those of `Machine` in facts.py; the last one
        is vLLM's `VLLM_BATCH_INVARIANT`, which the selector's answers depend on in more than one place.
        """
        from vllm.platforms import cuda
        from vllm.platforms.interface import DeviceCapability
        from vllm.utils import flashinfer as flashinfer_utils
        from vllm.v1.attention import selector

        self.platform.capability = DeviceCapability(*capability)
        os.environ["VLLM_BATCH_INVARIANT"] = str(int(batch_invariant))
        flashinfer_utils.has_nvidia_artifactory = lambda: cubins
        for package, there in zip(PACKAGES, (flashinfer, tokenspeed), strict=True):
            self._switch(package, there)
        # What vLLM remembers of the machine before.
        flashinfer_utils.supports_trtllm_attention.cache_clear()
        selector._cached_get_attn_backend.cache_clear()
        cuda._get_backend_priorities.cache_clear()

    def _switch(self, package: str, there: bool) -> None:
        if there == (package in self._finder.names):
            return
        if there:
            self._finder.names.add(package)
        else:
            self._finder.names.discard(package)
        # Whoever has imported it, or has failed to, is to try again.
        needs = (
            "vllm.v1.attention.backends.flashinfer",
            "vllm.v1.attention.backends.mla.flashinfer",
        )
        for name in list(sys.modules):
            own = name.split(".")[0] == package
            if own or (package == "flashinfer" and name.startswith(needs)):
                del sys.modules[name]


def stand_in() -> StandIn:
    """Put the platform in vLLM's place. Once in a process, before anything else of vLLM is imported."""
    if "vllm" in sys.modules:
        raise RuntimeError("vllm is imported already: the stand-in has to come before it")
    finder = _Finder()
    finder.names.update(PACKAGES)
    sys.meta_path.insert(0, finder)
    import torch
    import vllm.platforms
    from vllm.platforms.cpu import CpuPlatform  # noqa: F401  # brings what the next lines need
    from vllm.platforms.interface import DeviceCapability

    vllm.platforms._current_platform = None
    from vllm.platforms.cuda import CudaPlatformBase

    class OnPaper(CudaPlatformBase):  # type: ignore[misc]
        """`CudaPlatformBase`, told what it would ask the driver."""

        capability = DeviceCapability(8, 0)

        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> Any:
            return cls.capability

        @classmethod
        def get_device_name(cls, device_id: int = 0) -> str:
            return f"a GPU of capability {cls.capability.as_version_str()}"

        @classmethod
        def get_device_total_memory(cls, device_id: int = 0) -> int:
            return 80 << 30

        @classmethod
        def device_count(cls) -> int:
            return 1

        @classmethod
        def num_compute_units(cls, device_id: int = 0) -> int:
            return 108

        @classmethod
        def is_fully_connected(cls, device_ids: list[int]) -> bool:
            return True

    vllm.platforms._current_platform = OnPaper()
    for name in ("zeros", "empty"):
        setattr(torch, name, _without_memory(getattr(torch, name)))
    import vllm._custom_ops as ops
    from vllm.vllm_flash_attn import flash_attn_interface

    flash_attn_interface.FA4_AVAILABLE = True  # a folder of Python files in the CUDA wheel
    for name in dir(ops):  # asked when modules of quantization are imported, whatever the model
        if name.startswith("cutlass_") and "support" in name:
            setattr(ops, name, lambda capability: capability >= 89)
    return StandIn(finder, OnPaper)


def _without_memory(allocate: Any) -> Any:
    def allocated(*args: Any, **kwargs: Any) -> Any:
        if str(kwargs.get("device")).startswith("cuda"):
            kwargs["device"] = "meta"
        return allocate(*args, **kwargs)

    return allocated
