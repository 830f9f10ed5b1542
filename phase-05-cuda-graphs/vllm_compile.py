"""vLLM's compiler at work on the shipped model, in its CPU build, for the cheatsheet. No GPU is needed.

    python phase-05-cuda-graphs/vllm_compile.py                  all topics, some ten minutes
    python phase-05-cuda-graphs/vllm_compile.py pieces fusion    some

On a CPU vLLM leaves its own compile mode: `CpuPlatform.check_and_update_config` turns VLLM_COMPILE into
DYNAMO_TRACE_ONCE, one graph for plain Inductor. `tokens` runs that, the others keep VLLM_COMPILE as on a GPU.
Two things are patched (`keep_mode`): the mode is put back behind that function, and the pass
FixFunctionalizationPass, which names operators of the CUDA wheel, does nothing. Two more are set (`KEPT`):
the list of sizes to compile for, which vLLM fills where there are graphs, is empty; and the fusions with
quantised operators, which only the CUDA wheel has, are off. No CUDA graphs here. The folder of the cache is a
fresh one in each process. Needs vLLM 0.22.1 and a C++ compiler.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vllm_topics import Say, each_apart, tell, wanted

from mini_vllm.config.engine import DEFAULT_MODEL

SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the core in this process
    "VLLM_LOGGING_LEVEL": "ERROR",
    "CUDA_VISIBLE_DEVICES": "",
}
KEPT: dict[str, Any] = {
    "mode": 3,
    "compile_sizes": [],
    "pass_config": {"fuse_norm_quant": False, "fuse_act_quant": False},
}
PROMPTS = ["Once upon a time", "The scheduler", "Kim is awake"]


def keep_mode() -> None:
    """Keep VLLM_COMPILE on the CPU; see the module's text."""
    from vllm.compilation.passes.utility.fix_functionalization import FixFunctionalizationPass
    from vllm.config import CompilationMode
    from vllm.platforms.cpu import CpuPlatform

    update = CpuPlatform.check_and_update_config.__func__

    def keep(cls: Any, config: Any) -> None:
        asked = config.compilation_config.mode
        if asked == CompilationMode.VLLM_COMPILE:
            config.compilation_config.mode = CompilationMode.NONE
        update(cls, config)
        config.compilation_config.mode = asked

    CpuPlatform.check_and_update_config = classmethod(keep)
    FixFunctionalizationPass.__call__ = lambda self, graph: None


def engine(**given: Any) -> Any:
    """vLLM with the shipped model, the worker in this process."""
    import vllm
    from vllm.model_executor.layers import rotary_embedding
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    rotary_embedding._ROPE_DICT.clear()  # or this engine gets the layer that the one before chose
    settings: dict[str, Any] = {
        "dtype": "float32", "block_size": 16, "max_model_len": 256, "max_num_seqs": 8,
        "max_num_batched_tokens": 256, "seed": 0, "distributed_executor_backend": UniProcExecutor,
    }  # fmt: skip
    return vllm.LLM(str(DEFAULT_MODEL), **(settings | given))


def answers(llm: Any) -> list[list[int]]:
    """24 greedy tokens for each of the prompts."""
    import vllm

    wanted = vllm.SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    outputs = llm.generate(PROMPTS, wanted, use_tqdm=False)
    return [list(out.outputs[0].token_ids) for out in outputs]


def config_of(llm: Any) -> Any:
    return llm.llm_engine.vllm_config.compilation_config


# --- tokens ---


def tokens(say: Say) -> None:
    """What compile mode vLLM has on a CPU when nobody says anything, and whether the tokens stay."""
    from vllm.compilation.counter import compilation_counter

    made = {}
    for name, given in {"enforce_eager=True": {"enforce_eager": True}, "no flag": {}}.items():
        llm = engine(**given)
        made[name] = answers(llm)
        config = config_of(llm)
        say(
            f"{name:20}{config.mode.name:20}backend {config.backend:10}graphs {config.cudagraph_mode.name}"
        )
    say(f"split graphs seen: {compilation_counter.num_piecewise_graphs_seen}")
    eager, compiled = made.values()
    say(f"tokens: {'all equal' if eager == compiled else 'NOT all equal'}, {sum(map(len, eager))}")


# --- pieces, fusion ---


def operators(piece: Any) -> list[str]:
    calls = [node for node in piece.graph.graph.nodes if node.op.startswith("call")]
    return [
        n.target if isinstance(n.target, str) else getattr(n.target, "__name__", str(n.target))
        for n in calls
    ]


def watch_split() -> list[Any]:
    """What `split_graph` is given and gives, in the list returned: the calls before, and the pieces."""
    import vllm.compilation.backends as backends

    seen: list[Any] = []
    split_graph = backends.split_graph

    def watched(graph: Any, splitting_ops: list[str]) -> Any:
        calls = sum(node.op.startswith("call") for node in graph.graph.nodes)
        split = split_graph(graph, splitting_ops)
        seen.extend((calls, split[1]))
        return split

    backends.split_graph = watched
    return seen


def pieces(say: Say) -> None:
    """The graph of the shipped Llama, cut where attention is; backend "eager": cut and not compiled."""
    from vllm.compilation.counter import compilation_counter

    expected = answers(engine(enforce_eager=True))
    keep_mode()
    seen = watch_split()
    llm = engine(compilation_config=KEPT | {"backend": "eager"})
    calls, parts = seen
    layers = llm.llm_engine.model_config.hf_config.num_hidden_layers
    say(f"one graph of {calls} calls becomes {len(parts)} pieces, for {layers} layers")
    for part in parts:
        names = operators(part)
        if part.is_splitting_graph:
            say(f"  {part.submod_name}  outside: {', '.join(names)}")
        else:
            heavy = Counter(names)["onednn_mm"]
            say(f"  {part.submod_name}  {len(names)} calls, {heavy} of them matrix products")
    count = compilation_counter
    say(f"given to the backend: {count.num_piecewise_capturable_graphs_seen}")
    same = answers(llm) == expected
    say(f"tokens as without compiling: {'all' if same else 'NOT all'}")


def fusion(say: Say) -> None:
    """Inductor on those pieces: nodes that it was given, kernels that it wrote, one piece in order."""
    expected = answers(engine(enforce_eager=True))
    keep_mode()
    seen, written = watch_split(), watch_compile()
    llm = engine(compilation_config=KEPT)
    say("piece      calls traced   nodes   matrix products   kernels written")
    inside = [part for part in seen[1] if not part.is_splitting_graph]
    for number, part in enumerate(inside):
        row = f"{part.submod_name:11}{len(operators(part)):12}"
        if number not in written:
            say(f"{row}   the code of one before")
            continue
        nodes, code = written[number]
        calls = launches(code)
        kernels = [call for call in calls if call.startswith("cpp_fused")]
        say(f"{row}{nodes:8}{len(calls) - len(kernels):18}{len(kernels):18}")
    say(f"{inside[1].submod_name} calls, in order:")
    for call in launches(written[1][1]):
        say(f"  {call}")
    same = answers(llm) == expected
    say(f"tokens as without compiling: {'all' if same else 'NOT all'}")


def watch_compile() -> dict[int, tuple[int, str]]:
    """For each piece that Inductor compiles, by its number: the nodes it was given, the code it wrote."""
    from torch._inductor import metrics
    from torch._inductor.graph import GraphLowering
    from vllm.compilation.compiler_interface import InductorStandaloneAdaptor

    written: dict[int, tuple[int, str]] = {}
    codes: list[str] = []
    compile_one = InductorStandaloneAdaptor.compile
    GraphLowering.save_output_code = staticmethod(codes.append)

    def watched(self: Any, *given: Any, **more: Any) -> Any:
        before = metrics.ir_nodes_pre_fusion
        made = compile_one(
            self, *given, **more
        )  # a piece that is known leaves it with an exception
        number = int(given[4].rpartition("_")[2])
        written[number] = (metrics.ir_nodes_pre_fusion - before, codes[-1])
        return made

    InductorStandaloneAdaptor.compile = watched
    return written


def launches(code: str) -> list[str]:
    """What the function `call` in Inductor's output calls, kernel by kernel."""
    body = code[code.index("def call(") :]
    return re.findall(r"^ +(cpp_fused_\w+|torch\.ops\.[\w.]+|extern_kernels\.\w+)\(", body, re.M)


# --- starts ---


def starts(say: Say) -> None:
    """A first start, a second, and a third that may not use the cache; what lies in the folder."""
    with tempfile.TemporaryDirectory() as root:
        took = {}
        for name, more in {
            "first start": {},
            "second start": {},
            "third, cache off": {"VLLM_DISABLE_COMPILE_CACHE": "1"},
        }.items():
            done = subprocess.run(
                [sys.executable, __file__, "one-start"], check=True, capture_output=True, text=True,
                env=os.environ | {"VLLM_CACHE_ROOT": root} | more,
            )  # fmt: skip
            [line] = [line for line in done.stdout.splitlines() if line.startswith("{")]
            counted = json.loads(line)
            took[name] = counted.pop("seconds")
            say(f"{name}: {', '.join(f'{key} {value}' for key, value in counted.items())}")
            if name == "first start":
                folder(say, Path(root) / "torch_compile_cache")
        first = took["first start"]
        for name, seconds in took.items():
            say(f"{name:18}{seconds / first:5.2f} of the first start's compile time")


def folder(say: Say, root: Path) -> None:
    """The kinds of files below each folder, hashes shortened."""
    kinds: dict[str, Counter[str]] = {}
    for file in sorted(root.rglob("*")):
        if file.is_file():
            parts = file.relative_to(root).parts
            depth = 3 if parts[0] == "torch_aot_compile" else 2
            place = "/".join(f"{p[:6]}…" if len(p) > 40 else p for p in parts[:depth])
            name = file.name if file.suffix not in {".cpp", ".so", ".lock"} else f"*{file.suffix}"
            kinds.setdefault(place, Counter())[name if len(name) < 45 else "others"] += 1
    for place, names in kinds.items():
        listed = ", ".join(f"{n} {name}" if n > 1 else name for name, n in names.items())
        say(f"  {place}: {listed}")


def one_start() -> None:
    """A child of `starts`: load the model, print vLLM's counters and how often the C++ compiler ran."""
    from torch._inductor import cpp_builder
    from vllm.compilation.counter import compilation_counter

    ran: list[str] = []
    run = cpp_builder._run_compile_cmd

    def watched(command: str, folder: str) -> None:
        ran.append(command)
        run(command, folder)

    cpp_builder._run_compile_cmd = watched
    keep_mode()
    llm = engine(compilation_config=KEPT)
    names = {
        "num_backend_compilations": "pieces",
        "num_compiled_artifacts_saved": "saved",
        "num_compiled_artifacts_loaded": "loaded",
        "num_aot_artifacts_saved": "AOT saved",
        "num_aot_artifacts_loaded": "AOT loaded",
    }
    counted = {name: getattr(compilation_counter, field) for field, name in names.items()}
    counted["C++ compiler"] = len(ran)
    print(json.dumps(counted | {"seconds": config_of(llm).compilation_time}))


TOPICS: dict[str, Callable[[Say], None]] = {
    "tokens": tokens,
    "pieces": pieces,
    "fusion": fusion,
    "starts": starts,
}


def main() -> None:
    os.environ |= SETTINGS
    if sys.argv[1:] == ["one-start"]:
        one_start()
        return
    names = wanted(TOPICS)
    if len(names) > 1:  # one patches what another runs as it is
        each_apart(__file__, names)
        return
    with tempfile.TemporaryDirectory() as root:
        os.environ["VLLM_CACHE_ROOT"] = root
        tell(names[0], TOPICS[names[0]])


if __name__ == "__main__":
    main()
