"""Which kernel vLLM chooses for a quantised layer, by format and by card, and why it passed the others over.

    python phase-06-quantization/vllm_kernels.py            all topics
    python phase-06-quantization/vllm_kernels.py chosen     one

Each answer comes from a layer that vLLM builds: its own class reads the format's configuration and makes the
layer's method, whose `create_weights` picks the kernel. What the driver would answer is given by lab 04-04's
`cuda_stand_in.py`, what compiled code would by `COMPILED` below. No kernel runs. The machine has what vLLM's
CUDA wheel brings along: flashinfer with its cubins, and DeepGEMM. Needs vLLM 0.22.1; its CPU build will do.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from course.learner.labs import load_module

PHASES = Path(__file__).resolve().parents[1]
STAND_IN = PHASES / "phase-04-attention-backends/labs/lab-04-backend-selection" / "cuda_stand_in.py"
topics = load_module(PHASES / "phase-05-cuda-graphs/vllm_topics.py", "vllm_topics_of_phase_05")
Say = Callable[[str], None]

CARDS = {
    "T4": (7, 5),
    "A100": (8, 0),
    "L4": (8, 9),
    "H100": (9, 0),
    "B200": (10, 0),
    "RTX 5090": (12, 0),
}
"""Name and compute capability. Noor's is the L4."""

COMPILED = {
    "cutlass_scaled_mm_supports_fp8": 89,
    "cutlass_scaled_mm_supports_block_fp8": 90,
    "cutlass_group_gemm_supported": 90,
    "cutlass_scaled_mm_supports_fp4": 100,
}
"""From which capability on vLLM's compiled functions say yes, when built with CUDA 12.8 or newer: read in
scaled_mm_entry.cu and nvfp4_scaled_mm_entry.cu of the release's C++ source, which no installed vLLM has."""

LAYERS = {
    "qkv_proj": (4096, 6144),
    "o_proj": (4096, 4096),
    "gate_up_proj": (4096, 28672),
    "down_proj": (14336, 4096),
}
"""Llama-3.1-8B's linears as vLLM builds them: input and output size."""


def compressed(fmt: str, weights: dict[str, Any], inputs: dict[str, Any] | None) -> dict[str, Any]:
    """A `quantization_config` of compressed-tensors."""
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {
        "quant_method": "compressed-tensors",
        "format": fmt,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


def args(bits: int, strategy: str, **more: Any) -> dict[str, Any]:
    return {"num_bits": bits, "type": "int", "symmetric": True, "strategy": strategy} | more


def awq(group: int = 128) -> dict[str, Any]:
    raw = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True}
    return raw | {"modules_to_not_convert": ["lm_head"]}


def gptq(bits: int = 4, group: int = 128) -> dict[str, Any]:
    raw = {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": group,
        "desc_act": False,
        "sym": True,
    }
    # Where a checkpoint does not say which layers are quantised, vLLM reads it off the tensors' types.
    return raw | {"modules_in_block_to_quantize": ["linear"]}


def w4a16(group: int = 128, bits: int = 4) -> dict[str, Any]:
    if group == -1:
        return compressed("pack-quantized", args(bits, "channel"), None)
    return compressed("pack-quantized", args(bits, "group", group_size=group), None)


FLOAT = {"type": "float"}
TOKEN = {"type": "float", "dynamic": True}
FORMATS: dict[str, dict[str, Any]] = {
    "W4A16 g128": w4a16(),
    "AWQ g128": awq(),
    "GPTQ g128": gptq(),
    "W8A16 channel": w4a16(-1, 8),
    "W8A8 int8": compressed("int-quantized", args(8, "channel"), args(8, "token", dynamic=True)),
    "FP8 channel, token": compressed(
        "float-quantized", args(8, "channel", **FLOAT), args(8, "token", **TOKEN)
    ),
    "FP8 tensor, static": compressed(
        "float-quantized", args(8, "tensor", **FLOAT), args(8, "tensor", **FLOAT)
    ),
    "FP8 block 128x128": compressed(
        "float-quantized",
        args(8, "block", block_structure=[128, 128], **FLOAT),
        args(8, "group", group_size=128, **TOKEN),
    ),
    "NVFP4 W4A4": compressed(
        "nvfp4-pack-quantized",
        args(4, "tensor_group", group_size=16, **FLOAT),
        args(4, "tensor_group", group_size=16, type="float", dynamic="local"),
    ),
    "MXFP4": compressed(
        "mxfp4-pack-quantized",
        args(4, "group", group_size=32, **FLOAT),
        args(4, "group", group_size=32, **TOKEN),
    ),
}


# --- vLLM on a card, on paper ---


@cache
def stand_in() -> Any:
    gpu = load_module(STAND_IN, "stand_in_of_phase_04").stand_in()
    gpu._finder.names |= {"flashinfer_cubin", "humming", "vllm.third_party.deep_gemm"}
    gpu.platform.get_cuda_runtime_major = classmethod(lambda cls: 12)
    import vllm._custom_ops as ops

    for name, least in COMPILED.items():
        setattr(ops, name, lambda capability, least=least: capability >= least)
    return gpu


def become(card: str) -> None:
    """Be that card from now on: what vLLM has remembered of the one before is asked anew."""
    stand_in().become(CARDS[card])
    from vllm.model_executor.kernels.linear.scaled_mm import cutlass
    from vllm.model_executor.layers.quantization.utils import w8a8_utils
    from vllm.utils import deep_gemm, flashinfer

    for module in (deep_gemm, flashinfer):
        for value in list(vars(module).values()):
            if isinstance(value, type(stand_in)):  # what functools.cache makes
                value.cache_clear()
    block = w8a8_utils.cutlass_block_fp8_supported()
    w8a8_utils.CUTLASS_FP8_SUPPORTED = w8a8_utils.cutlass_fp8_supported()
    w8a8_utils.CUTLASS_BLOCK_FP8_SUPPORTED = cutlass.CUTLASS_BLOCK_FP8_SUPPORTED = block


@cache
def engine_config(dtype: str) -> Any:
    """A configuration of the shipped model, and the groups of one that a layer asks for its share."""
    from vllm.config import ModelConfig, VllmConfig, set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel
    from vllm.distributed.parallel_state import model_parallel_is_initialized

    from mini_vllm.config.engine import DEFAULT_MODEL

    config = VllmConfig(model_config=ModelConfig(model=str(DEFAULT_MODEL), dtype=dtype))
    if not model_parallel_is_initialized():
        with set_current_vllm_config(config):
            init_distributed_environment(1, 0, "tcp://127.0.0.1:0", 0, "gloo")
            initialize_model_parallel(1, 1)
    return config


@contextmanager
def serving(card: str, linear_backend: str = "auto", dtype: str = "") -> Iterator[None]:
    """Inside, vLLM is on that card, with this `--linear-backend`.

    It computes in `dtype`, or else in bfloat16 where the card has it.
    """
    become(card)  # before anything of vLLM is imported
    import torch
    from vllm.config import set_current_vllm_config

    dtype = dtype or ("bfloat16" if CARDS[card] >= (8, 0) else "float16")
    config = engine_config(dtype)
    config.kernel_config.linear_backend = linear_backend
    kept = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, dtype))
    try:
        with set_current_vllm_config(config):
            yield
    finally:
        torch.set_default_dtype(kept)
        config.kernel_config.linear_backend = "auto"


def read_config(raw: dict[str, Any]) -> Any:
    """The `QuantizationConfig` that vLLM makes of a checkpoint whose config.json says `raw`.

    vLLM asks its overrides first, then compares card and dtype with what the method takes.
    """
    import torch
    from vllm.config import LoadConfig, ModelConfig, VllmConfig

    from mini_vllm.config.engine import DEFAULT_MODEL

    dtype = str(torch.get_default_dtype()).removeprefix("torch.")
    with tempfile.TemporaryDirectory() as folder:
        described = json.loads((Path(DEFAULT_MODEL) / "config.json").read_text("utf-8"))
        described["quantization_config"] = raw
        (Path(folder) / "config.json").write_text(json.dumps(described), "utf-8")
        model = ModelConfig(model=folder, dtype=dtype, skip_tokenizer_init=True)
        return VllmConfig._get_quantization_config(model, LoadConfig())


def build(raw: dict[str, Any], shape: tuple[int, int]) -> Any:
    """A linear layer of vLLM's, without memory: configuration, method, parameters, kernel."""
    import torch
    from vllm.model_executor.layers.linear import ReplicatedLinear

    config = read_config(raw)
    with torch.device("meta"):
        return ReplicatedLinear(
            *shape, bias=False, quant_config=config, disable_tp=True, prefix="model.layers.0.linear"
        )


def kernel_of(layer: Any) -> Any:
    """The kernel that the layer's method or scheme holds."""
    for holder in (getattr(layer, "scheme", None), layer.quant_method):
        for name in ("kernel", "fp8_linear", "linear_kernel"):
            if (kernel := getattr(holder, name, None)) is not None:
                return kernel
    raise LookupError(f"{type(layer.quant_method).__name__} holds no kernel")


def tried(raw: dict[str, Any], shape: tuple[int, int] = LAYERS["qkv_proj"]) -> Any:
    """The layer, or in its place the sentence with which vLLM refuses it."""
    try:
        return build(raw, shape)
    except (ValueError, RuntimeError, NotImplementedError) as error:
        # One of them is raised with its sentence in pieces.
        return "".join(map(str, error.args))


def scheme_of(layer: Any) -> str:
    """Who made the parameters: a scheme of compressed-tensors, or a linear method. The short name."""
    name = type(getattr(layer, "scheme", layer.quant_method)).__name__
    return name.removeprefix("CompressedTensors").removesuffix("LinearMethod")


def passed_over(layer: Any) -> list[tuple[str, str]]:
    """The kernels that stand before the layer's in vLLM's table, and the reason that each gives."""
    import vllm.model_executor.kernels.linear as table
    from vllm.platforms import current_platform

    kernel = kernel_of(layer)
    capability = current_platform.get_device_capability().to_int()
    cuda = current_platform._enum
    tables = (
        table._POSSIBLE_KERNELS, table._POSSIBLE_INT8_KERNELS, table._POSSIBLE_FP8_KERNELS,
        table._POSSIBLE_FP8_BLOCK_KERNELS, table._POSSIBLE_NVFP4_KERNELS, table._POSSIBLE_MXFP4_KERNELS,
    )  # fmt: skip
    # One table each, but for FP8 Marlin, which is chosen below capability 8.9 only.
    [kernels] = [kinds[cuda] for kinds in tables if type(kernel) in kinds[cuda]]
    earlier = kernels[: kernels.index(type(kernel))]
    return [(one.__name__, reason(one, kernel.config, capability)) for one in earlier]


def reason(kernel: Any, config: Any, capability: int) -> str:
    """Why a kernel says no, in its own words."""
    if hasattr(kernel, "get_min_capability"):
        if kernel.get_min_capability() > capability:
            return f"from capability {kernel.get_min_capability()} on"
    else:
        there, why = kernel.is_supported(capability)
        if not there:
            return str(why)
    can, why = kernel.can_implement(config)
    return "says yes" if can else str(why)


# --- topics ---


def chosen(say: Say) -> None:
    """Scheme and kernel for each format, on each card, for Llama-3.1-8B's query, key and value."""
    found: dict[str, dict[tuple[str, str], list[str]]] = {}
    for card in CARDS:
        with serving(card):
            for name, raw in FORMATS.items():
                layer = tried(raw)
                answer = (
                    ("refused", layer)
                    if isinstance(layer, str)
                    else (scheme_of(layer), type(kernel_of(layer)).__name__)
                )
                found.setdefault(name, {}).setdefault(answer, []).append(card)
    for name, answers in found.items():
        say(name)
        for (scheme, kernel), cards in answers.items():
            shown = kernel if scheme == "refused" else f"{kernel}, {scheme}"
            say(f"    {', '.join(cards)}: {shown}")


def refused(say: Say) -> None:
    """What the kernels say that stand before the chosen one in vLLM's table."""
    cases = {
        "L4": list(FORMATS),
        "H100": ["W4A16 g128"],
        "B200": ["W4A16 g128", "FP8 block 128x128"],
    }
    for card, names in cases.items():
        with serving(card):
            for name in names:
                layer = tried(FORMATS[name])
                earlier = passed_over(layer)
                say(f"{card}, {name}: {type(kernel_of(layer)).__name__}, {len(earlier)} before it")
                for kernel, why in earlier:
                    say(f"    {kernel}: {why}")


def groups(say: Say) -> None:
    """Group sizes and shapes of W4A16: what takes them on two cards, and what is said of the rest."""
    for card in ("L4", "H100"):
        with serving(card):
            for size in (-1, 16, 32, 64, 128, 256):
                name = "one a channel" if size == -1 else f"groups of {size}"
                tell_layer(say, f"{card}, {name}", tried(w4a16(size)))
            for shape in ((4096, 6208), (4096, 6160), (14304, 4096)):
                tell_layer(
                    say, f"{card}, {shape[0]} to {shape[1]}, one a channel", tried(w4a16(-1), shape)
                )
    with serving("L4", dtype="float16"):
        tell_layer(say, "L4, groups of 16, float16", tried(w4a16(16)))
    with serving("L4"):
        tell_layer(say, "L4, AWQ, groups of 16", tried(awq(16)))
        tell_layer(say, "L4, GPTQ, asymmetric", tried(gptq() | {"sym": False}))
        tell_layer(say, "L4, GPTQ, 3 bits", tried(gptq(3)))


def flags(say: Say) -> None:
    """The user's own words on the L4: `--linear-backend` and `VLLM_DISABLED_KERNELS`."""
    for backend in ("auto", "machete", "exllama", "triton"):
        with serving("L4", backend):
            tell_layer(say, f"W4A16, --linear-backend={backend}", tried(w4a16()))
    for kernel, name in (
        ("CutlassInt8ScaledMMLinearKernel", "W8A8 int8"),
        ("MarlinLinearKernel", "W4A16 g128"),
    ):
        os.environ["VLLM_DISABLED_KERNELS"] = kernel
        with serving("L4"):
            tell_layer(say, f"{name}, {kernel} disabled", tried(FORMATS[name]), every=True)
    del os.environ["VLLM_DISABLED_KERNELS"]


def tell_layer(say: Say, name: str, layer: Any, every: bool = False) -> None:
    """One layer: its kernel, or the sentence of the refusal.

    Below it the reasons: those of Machete and Marlin, where there are more than two, or `every` one.
    """
    if not isinstance(layer, str):
        say(f"{name}: {type(kernel_of(layer)).__name__}")
        return
    head, *reasons = (" ".join(line.split()) for line in layer.splitlines())
    say(f"{name}: {head}")
    for line in reasons:
        if every or len(reasons) < 3 or line.startswith(("Machete", "Marlin")):
            say(f"    {line}")


TOPICS = {"chosen": chosen, "refused": refused, "groups": groups, "flags": flags}


def main() -> None:
    os.environ |= topics.ON_PAPER
    for name in topics.wanted(TOPICS):
        topics.tell(name, TOPICS[name])


if __name__ == "__main__":
    main()
