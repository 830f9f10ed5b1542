"""vLLM's own configuration, splitting and graph wrapper as on an H100, for the deep dive. No GPU is needed.

    python phase-05-cuda-graphs/vllm_on_paper.py                 all topics
    python phase-05-cuda-graphs/vllm_on_paper.py levels split    some

`levels`, `passes`, `split` and `hash` are asked of vLLM's CUDA platform, where lab 04-04's `cuda_stand_in.py`
stands in for the driver. `wrapper` and `late` run its `CUDAGraphWrapper`, and `graph_notebook.py` is in the
place of `torch.cuda.CUDAGraph`. Needs vLLM 0.22.1; its CPU build will do.
"""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from vllm_topics import ON_PAPER, Say, each_apart, tell, wanted

from course.learner.labs import load_module
from mini_vllm.config.engine import DEFAULT_MODEL

PHASES = Path(__file__).resolve().parents[1]
STAND_IN = PHASES / "phase-04-attention-backends/labs/lab-04-backend-selection" / "cuda_stand_in.py"


@cache
def h100(gpus: int = 1) -> Any:
    """vLLM on a machine with `gpus` H100s, on paper.

    The fusion passes build their patterns from operators that only the CUDA wheel has, so their modules are
    empty here: the class names stay, and `PostGradPassManager.configure` chooses among them as ever.
    """
    gpu = load_module(STAND_IN, "stand_in_of_phase_04").stand_in()
    gpu._finder.names.add("vllm.compilation.passes.fusion")
    gpu.become((9, 0))
    gpu.platform.device_count = classmethod(lambda cls: gpus)
    return gpu


def configured(**given: Any) -> Any:
    """The `VllmConfig` that vLLM makes of the flags `given`, for the shipped model in 16 bits."""
    from vllm.engine.arg_utils import EngineArgs

    given = {"max_num_seqs": 256, "max_num_batched_tokens": 8192} | given
    args = EngineArgs(model=str(DEFAULT_MODEL), dtype="bfloat16", max_model_len=512, **given)
    return args.create_engine_config()


# --- levels, passes ---


def levels(say: Say) -> None:
    """What each optimisation level and a few flags make of the configuration."""
    h100()
    cases: dict[str, dict[str, Any]] = {
        "-O0": {"optimization_level": 0},
        "-O1": {"optimization_level": 1},
        "-O2": {"optimization_level": 2},
        "-O3": {"optimization_level": 3},
        "no flag": {},
        "--enforce-eager": {"enforce_eager": True},
        "-cc.cudagraph_mode=NONE": {"compilation_config": {"cudagraph_mode": "NONE"}},
        "-cc.mode=NONE": {"compilation_config": {"mode": 0}},
        "  and FULL_DECODE_ONLY": {
            "compilation_config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}
        },
        "-cc.splitting_ops=[]": {"compilation_config": {"splitting_ops": []}},
    }
    head = f"{'flag':24}{'mode':14}{'cudagraph_mode':20}{'custom_ops':12}"
    say(f"{head}{'split at':>8}{'sizes':>7}")
    for name, given in cases.items():
        made = configured(**given).compilation_config
        row = f"{name:24}{made.mode.name:14}{made.cudagraph_mode.name:20}{','.join(made.custom_ops):12}"
        say(f"{row}{len(made.splitting_ops or []):8}{len(made.cudagraph_capture_sizes):7}")


def passes(say: Say) -> None:
    """Which of vLLM's passes Inductor would run, in their order."""
    h100(gpus=2)
    from vllm.compilation.passes.pass_manager import PostGradPassManager

    plain: dict[str, Any] = {"compilation_config": {"custom_ops": ["+quant_fp8"]}}
    kept = {"compilation_config": {"custom_ops": ["+rms_norm", "+silu_and_mul"]}}
    asked = {"compilation_config": {"pass_config": {"fuse_attn_quant": True}}}
    cases: dict[str, dict[str, Any]] = {
        "-O1": {"optimization_level": 1},
        "-O2, -O3": {"optimization_level": 2},
        "-O2, custom op quant_fp8 on": plain,
        "-O2, rms_norm, silu_and_mul on": kept,
        # The size up to which the fused all-reduce pays stands in a module that is empty here: it is given.
        "-O2, 2 GPUs": {
            "tensor_parallel_size": 2,
            "compilation_config": {"pass_config": {"fi_allreduce_fusion_max_size_mb": 64}},
        },
        "-O2, fuse_attn_quant asked for": asked,
    }
    behind: list[str] = []
    for name, given in cases.items():
        config = configured(**given)
        manager = PostGradPassManager()
        manager.configure(config)
        chosen = [type(one).__name__ for one in manager.passes]
        say(f"{name:32}{', '.join(chosen)}")
        made = config.compilation_config
        if made.cudagraph_mode.name not in ("PIECEWISE", "FULL_AND_PIECEWISE"):
            say(f"{'':32}graphs: {made.cudagraph_mode.name}, split at {len(made.splitting_ops)}")
        behind = called(manager)[len(chosen) :]
    say(f"behind them, always: {', '.join(behind)}")
    default = configured()
    made = default.compilation_config
    off = [f.name for f in dataclasses.fields(made.pass_config)]
    off = [n for n in off if getattr(made.pass_config, n) is False]
    say(f"at -O2 on one GPU, off: {', '.join(off[:4])},")
    say(f"  {', '.join(off[4:])}")
    say(f"rms_norm is taken from: {', '.join(default.kernel_config.ir_op_priority.rms_norm)}")


def called(manager: Any) -> list[str]:
    """The names of the passes in the order in which the manager calls them."""
    from vllm.compilation.passes.inductor_pass import pass_context
    from vllm.config.utils import Range

    names: list[str] = []

    class Noted:
        def __init__(self, noted: Any) -> None:
            self.name = type(noted).__name__

        def is_applicable_for_range(self, compile_range: Any) -> bool:
            return True

        def __call__(self, graph: Any) -> None:
            names.append(self.name)

    manager.passes = [Noted(one) for one in manager.passes]
    for name in ("post_cleanup", "ir_lowering", "clone_elimination", "fix_functionalization"):
        setattr(manager, name, Noted(getattr(manager, name)))
    with pass_context(Range(1, 8192)):
        manager(None)
    return names


# --- split ---


class _Enough(Exception):
    """The graph is split; nothing of it is to be compiled or run."""


def traced() -> tuple[Any, list[Any], Any]:
    """The shipped Llama, traced by Dynamo with vLLM's CUDA code paths and split by `split_graph`.

    Dynamo works with tensors that have a shape and no memory, so nothing of the model is run.

    Returns:
        the graph before the split, the pieces, the configuration.
    """
    import torch
    import vllm.compilation.backends as backends
    from vllm.config import set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel
    from vllm.forward_context import set_forward_context
    from vllm.model_executor.models.llama import LlamaModel

    config = configured(block_size=16)
    config.device_config.device_type = "cpu"  # where the parameters go
    seen: list[Any] = []
    split_graph = backends.split_graph

    def watched(graph: Any, splitting_ops: list[str]) -> Any:
        nodes = Counter(node.op for node in graph.graph.nodes)
        seen.extend((nodes, split_graph(graph, splitting_ops)[1]))
        raise _Enough

    backends.split_graph = watched
    # A layer asks for its CUDA operator's name when it is made. Nobody calls it here.
    operators = torch.library.Library("_C", "FRAGMENT")
    if not hasattr(torch.ops._C, "silu_and_mul"):
        operators.define("silu_and_mul(Tensor! result, Tensor input) -> ()")
    with set_current_vllm_config(config):
        init_distributed_environment(1, 0, "tcp://127.0.0.1:0", 0, "gloo")
        initialize_model_parallel(1, 1)
        model = LlamaModel(vllm_config=config, prefix="model").to(torch.bfloat16)
        with set_forward_context(None, config, num_tokens=8), suppress(_Enough):
            model(torch.zeros(8, dtype=torch.int32), torch.arange(8), None)
    nodes, pieces = seen
    return nodes, pieces, config


def operators(piece: Any) -> list[str]:
    """The names of what a piece calls, in order."""
    calls = [node for node in piece.graph.graph.nodes if node.op.startswith("call")]
    return [
        n.target if isinstance(n.target, str) else getattr(n.target, "__name__", str(n.target))
        for n in calls
    ]


def split(say: Say) -> None:
    """Where vLLM cuts a Llama of four layers, for FLASH_ATTN on an H100."""
    h100()
    nodes, pieces, config = traced()
    calls = sum(count for op, count in nodes.items() if op.startswith("call"))
    layers = config.model_config.hf_config.num_hidden_layers
    say(f"before: one graph, {calls} calls; after: {len(pieces)} pieces for {layers} layers")
    for piece in pieces:
        names = operators(piece)
        if piece.is_splitting_graph:
            say(f"{piece.submod_name:10} outside of graphs: {', '.join(names)}")
        else:
            heavy = Counter(names)["linear"]
            say(f"{piece.submod_name:10} {len(names):3} calls, {heavy} matrix products")
    named = config.compilation_config.splitting_ops
    shown = ", ".join(op.removeprefix("vllm::") for op in (named[0], *named[-2:]))
    say(f"cut at {len(named)} names, among them {shown}")


# --- hash ---


def hashes(say: Say) -> None:
    """One thing changed at a time: is what was compiled before found again, or looked for elsewhere?"""
    h100()
    from vllm.compilation.caching import aot_compile_hash_factors

    reference = aot_compile_hash_factors(configured())
    flags: list[dict[str, Any]] = [
        {"seed": 1},
        {"gpu_memory_utilization": 0.5},
        {"enable_prefix_caching": False},
        {"max_num_seqs": 300},
        {"max_num_seqs": 128},
        {"max_num_batched_tokens": 4096},
        {"compilation_config": {"cudagraph_mode": "PIECEWISE"}},
        {"compilation_config": {"cudagraph_capture_sizes": [1, 2, 4]}},
        {"compilation_config": {"custom_ops": ["+rms_norm"]}},
        {"optimization_level": 3},
    ]
    changed = {}
    for flag in flags:
        [(name, value)] = flag.items()
        changed[f"{name}={value}"] = aot_compile_hash_factors(configured(**flag))
    for name, value in (
        ("VLLM_PORT", "4000"),
        ("VLLM_LOGGING_LEVEL", "DEBUG"),
        ("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1"),
        ("OMP_NUM_THREADS", "1"),
    ):
        kept = os.environ.get(name)
        os.environ[name] = value
        changed[f"{name}={value}"] = aot_compile_hash_factors(configured())
        os.environ.pop(name) if kept is None else os.environ.update({name: kept})
    for name, factors in changed.items():
        parts = ("environment", "config")
        other = [part for part, a, b in zip(parts, factors, reference, strict=True) if a != b]
        say(f"{name:62}{'another: ' + ', '.join(other) if other else 'the same'}")
    assert aot_compile_hash_factors(configured()) == reference


# --- wrapper ---


def wrapper(say: Say) -> None:
    """vLLM's `CUDAGraphWrapper`: capture once, replay, trust the context, copy nothing."""
    notebook = load_module(Path(__file__).with_name("graph_notebook.py"), "graph_notebook")
    import torch
    from vllm.compilation.cuda_graph import CUDAGraphWrapper
    from vllm.config import CUDAGraphMode, VllmConfig
    from vllm.forward_context import BatchDescriptor, set_forward_context

    calls: list[int] = []

    def step(rows: Any) -> Any:
        calls.append(len(rows))
        return rows * 2 + 1

    config = VllmConfig()
    with notebook.standing_in() as log:
        wrapped = CUDAGraphWrapper(step, config, CUDAGraphMode.FULL)
        buffer = torch.zeros(8)

        def run(name: str, rows: Any, mode: Any, tokens: int) -> Any:
            calls.clear(), log.clear()
            key = BatchDescriptor(num_tokens=tokens)
            with set_forward_context(
                None, config, cudagraph_runtime_mode=mode, batch_descriptor=key
            ):
                out = wrapped(rows)
            python = f"Python ran on {calls[0]} rows" if calls else "Python did not run"
            did = ", ".join(log) or "no graph"
            say(f"{name:40}{did:26}{python:24}{out.tolist()}")
            return out

        full, none, piecewise = CUDAGraphMode.FULL, CUDAGraphMode.NONE, CUDAGraphMode.PIECEWISE
        kim = buffer[:1]
        run("Kim, mode NONE", kim, none, 1)
        run("mode PIECEWISE, the wrapper is FULL", kim, piecewise, 1)
        run("mode FULL, first time", kim, full, 1)
        kim.fill_(5)
        first = run("5 written into the buffer", kim, full, 1)
        run("a new tensor with 7, buffer left alone", torch.full((1,), 7.0), full, 1)
        kim.fill_(6)
        second = run("6 written into the buffer", kim, full, 1)
        say(f"the answer to 5, kept by its name, now says {first.tolist()[0]:g}")
        assert first.data_ptr() == second.data_ptr()
        run("the key says 1, the batch has 2 rows", buffer[:2], full, 1)
        say(f"entries: {[key.num_tokens for key in wrapped.concrete_cudagraph_entries]}")


def late(say: Say) -> None:
    """After the start-up no graph is captured any more; and who checks the addresses."""
    notebook = load_module(Path(__file__).with_name("graph_notebook.py"), "graph_notebook")
    import torch
    from vllm.compilation.cuda_graph import CUDAGraphWrapper
    from vllm.compilation.monitor import set_cudagraph_capturing_enabled
    from vllm.config import CUDAGraphMode, VllmConfig
    from vllm.forward_context import BatchDescriptor, set_forward_context

    config, full = VllmConfig(), CUDAGraphMode.FULL

    def run(wrapped: Any, rows: Any, by_name: bool = False) -> str:
        key = BatchDescriptor(num_tokens=len(rows))
        with set_forward_context(None, config, cudagraph_runtime_mode=full, batch_descriptor=key):
            try:
                return str((wrapped(rows=rows) if by_name else wrapped(rows)).tolist())
            except (RuntimeError, AssertionError) as error:
                words = str(error).split(". ")[0].split(" during replay")
                return f"{type(error).__name__}: {words[0]}"

    for level in ("INFO", "DEBUG"):
        os.environ["VLLM_LOGGING_LEVEL"] = level
        with notebook.standing_in():
            wrapped = CUDAGraphWrapper(lambda rows: rows + 1, config, full)
            set_cudagraph_capturing_enabled(True)
            by_name = CUDAGraphWrapper(lambda rows: rows + 1, config, full)
            kept = torch.zeros(1)
            run(wrapped, kept)
            run(by_name, kept, by_name=True)  # as the V1 runner calls the model
            set_cudagraph_capturing_enabled(False)  # as the runner does after its captures
            say(f"VLLM_LOGGING_LEVEL={level}")
            say(f"  the captured tensor          {run(wrapped, kept)}")
            seven = torch.full((1,), 7.0)
            say(f"  another tensor, holding 7    {run(wrapped, seven)}")
            say(f"  the same as rows=…           {run(by_name, seven, by_name=True)}")
            say(f"  a size never captured        {run(wrapped, torch.zeros(2))}")


TOPICS: dict[str, Callable[[Say], None]] = {
    "levels": levels,
    "passes": passes,
    "split": split,
    "hash": hashes,
    "wrapper": wrapper,
    "late": late,
}


def main() -> None:
    os.environ |= ON_PAPER
    names = wanted(TOPICS)
    if len(names) > 1:  # vLLM decides once in a process on which machine it is
        each_apart(__file__, names)
    else:
        tell(names[0], TOPICS[names[0]])


if __name__ == "__main__":
    main()
