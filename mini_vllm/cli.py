"""The `mini-vllm` command: `generate` and `bench`.

Mirrors the spirit of `vllm` (`vllm/entrypoints/cli/main.py`); the knobs have the names of vLLM's flags.
Left out: serving (a later phase).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

from mini_vllm.config import EngineConfig
from mini_vllm.sampling_params import RequestOutputKind, SamplingParams

if TYPE_CHECKING:
    from mini_vllm.engine import EngineParts, LLMEngine
    from mini_vllm.outputs import RequestOutput

_ENGINE_FLAGS: dict[str, tuple[type, str]] = {
    "block_size": (int, "tokens in a KV block"),
    "num_gpu_blocks": (int, "blocks in the KV cache, null block included"),
    "kv_cache_memory_bytes": (int, "memory for the KV cache, if --num-gpu-blocks is not given"),
    "max_model_len": (int, "most tokens in a request, prompt and output"),
    "max_num_seqs": (int, "most requests running at once"),
    "max_num_batched_tokens": (int, "token budget of a step"),
    "long_prefill_token_threshold": (int, "most tokens for one request in a step; 0: no limit"),
}
_SAMPLING_FLAGS: dict[str, tuple[type, str]] = {
    "n": (int, "completions for each prompt"),
    "max_tokens": (int, "most tokens to generate"),
    "min_tokens": (int, "no end before this many tokens"),
    "temperature": (float, "0: greedy; higher: more random"),
    "top_k": (int, "sample from the k most likely tokens; 0: from all"),
    "top_p": (float, "sample from the most likely tokens that together have this probability"),
    "min_p": (float, "drop tokens less likely than this share of the most likely one"),
    "presence_penalty": (float, "lower tokens that have been generated"),
    "frequency_penalty": (float, "lower tokens by how often they have been generated"),
    "repetition_penalty": (float, "above 1: lower tokens that stand in prompt or output"),
    "seed": (int, "seed of each request's own random stream"),
    "logprobs": (int, "also give the log probabilities of the top k tokens (with --json)"),
    "prompt_logprobs": (int, "the same for the prompt's tokens (with --json)"),
}
_EPILOG = """\
examples:
  mini-vllm generate "The scheduler"
  mini-vllm generate "A block table" "Chunked prefill" --max-tokens 80 --json
  mini-vllm generate --prompts-file prompts.txt --temperature 0.8 --seed 1 --n 2
  mini-vllm generate --mine "The scheduler"
  mini-vllm generate "Prefix caching" --num-gpu-blocks 20 --trace steps.txt
  mini-vllm bench --num-prompts 64 --input-len 64 --output-len 128
"""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mini-vllm",
        description="vLLM's engine in miniature, on numpy: same decisions, same tokens.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    generate = commands.add_parser(
        "generate",
        help="complete prompts",
        description="Complete prompts. One prompt streams; several are printed in order.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    generate.add_argument("prompts", nargs="*", metavar="PROMPT", help="text to continue")
    generate.add_argument(
        "--prompts-file",
        metavar="FILE",
        help="read more prompts: one a line, or in a .jsonl file one object a line with 'prompt' or "
        "'prompt_token_ids'; '-' is standard input",
    )
    generate.add_argument("--json", action="store_true", help="one JSON object a prompt, when done")
    generate.add_argument(
        "--trace", metavar="FILE", help="write every step: .txt to read, .json for Perfetto"
    )
    generate.add_argument(
        "--mine", action="store_true",
        help="run on the parts that you built, where their labs pass (see 'course assemble')",
    )  # fmt: skip
    generate.add_argument(
        "--stats", action="store_true", help="print steps, speed and cache use to stderr"
    )
    _add_flags(generate, "sampling", _SAMPLING_FLAGS)
    generate.add_argument(
        "--stop", action="append", metavar="TEXT", help="end at this text; repeatable"
    )
    generate.add_argument(
        "--stop-token-id",
        action="append",
        type=int,
        metavar="ID",
        help="end at this token; repeatable",
    )
    generate.add_argument("--ignore-eos", action="store_true", help="go on after the end token")
    _add_engine_flags(generate)
    generate.set_defaults(max_tokens=256, temperature=0.0, run=run_generate)

    bench = commands.add_parser(
        "bench",
        help="measure throughput and latency",
        description="Run random prompts of one length to outputs of one length, all added at the start, "
        "and print what vLLM's benchmarks print: throughput, time to first token, time between tokens.",
    )
    bench.add_argument(
        "--num-prompts", type=_positive, default=64, metavar="N", help="requests (64)"
    )
    bench.add_argument(
        "--input-len", type=_positive, default=64, metavar="N", help="prompt tokens (64)"
    )
    bench.add_argument(
        "--output-len", type=_positive, default=64, metavar="N", help="output tokens (64)"
    )
    bench.add_argument("--seed", type=int, default=0, help="seed of the random prompts (0)")
    bench.add_argument("--json", action="store_true", help="print the figures as JSON")
    _add_engine_flags(bench)
    bench.set_defaults(run=run_bench)
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def _add_flags(
    parser: argparse.ArgumentParser, title: str, flags: dict[str, tuple[type, str]]
) -> argparse._ArgumentGroup:
    group = parser.add_argument_group(title)
    for name, (kind, text) in flags.items():
        metavar = "N" if kind is int else "X"
        group.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar=metavar, help=text)
    return group


def _add_engine_flags(parser: argparse.ArgumentParser) -> None:
    group = _add_flags(parser, "engine", _ENGINE_FLAGS)
    group.add_argument(
        "--model", metavar="DIR", help="checkpoint folder (default: the shipped tiny Llama)"
    )
    group.add_argument(
        "--enable-prefix-caching", action=argparse.BooleanOptionalAction, default=True,
        help="reuse the KV of equal prefixes (on)",
    )  # fmt: skip
    group.add_argument(
        "--enable-chunked-prefill", action=argparse.BooleanOptionalAction, default=True,
        help="compute long prompts over several steps (on)",
    )  # fmt: skip
    group.add_argument(
        "--scheduling-policy", choices=("fcfs", "priority"), default="fcfs",
        help="order of waiting requests (fcfs)",
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


def _make_engine(args: argparse.Namespace) -> LLMEngine:
    from mini_vllm.engine import DEFAULT_MODEL, DEFAULT_PARTS, LLMEngine

    settings = {name: getattr(args, name) for name in _ENGINE_FLAGS}
    config = EngineConfig(
        **{name: value for name, value in settings.items() if value is not None},
        enable_prefix_caching=args.enable_prefix_caching,
        enable_chunked_prefill=args.enable_chunked_prefill,
        scheduling_policy=args.scheduling_policy,
    )
    parts = _my_parts() if getattr(args, "mine", False) else DEFAULT_PARTS
    return LLMEngine(args.model or DEFAULT_MODEL, config, parts=parts)


def _read_prompts(args: argparse.Namespace) -> Iterator[tuple[str, str, bool]]:
    """Where each prompt comes from (for messages), its text, and whether that is JSON."""
    for number, prompt in enumerate(args.prompts, 1):
        yield f"prompt {number}", prompt, False
    name = args.prompts_file
    if name is None:
        return
    text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    # Not splitlines(): JSON strings may hold U+2028 and its like unescaped.
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield f"{name}:{number}", line.removesuffix("\r"), name.endswith(".jsonl")


def _parse_prompt(text: str, is_json: bool) -> Any:
    """The prompt in a form that the engine takes. Raises ValueError for a line that is none."""
    if not is_json:
        return text
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"not a JSON value: {error}") from error
    if not isinstance(value, str | dict):
        raise ValueError(f"expected an object with 'prompt', got {text[:40]}")
    return value


def run_generate(args: argparse.Namespace, out: TextIO) -> int:
    """The `generate` command. Exit status 1 if a prompt was refused (the others still run)."""
    if args.trace is not None:
        from mini_vllm.trace import check_trace_path

        check_trace_path(Path(args.trace))
    given = {name: getattr(args, name) for name in _SAMPLING_FLAGS}
    params = SamplingParams(
        **{name: value for name, value in given.items() if value is not None},
        stop=args.stop,
        stop_token_ids=args.stop_token_id,
        ignore_eos=args.ignore_eos,
    )
    prompts = list(_read_prompts(args))
    if not prompts:
        raise ValueError("no prompt given: name one, or use --prompts-file")
    stream = len(prompts) == 1 and params.n == 1 and not args.json
    params.output_kind = RequestOutputKind.DELTA if stream else RequestOutputKind.FINAL_ONLY
    engine = _make_engine(args)
    recorder = None
    if args.trace is not None:
        from mini_vllm.trace import TraceRecorder

        recorder = TraceRecorder(engine)

    refused = 0
    order: list[str] = []
    for number, (where, text, is_json) in enumerate(prompts):
        try:
            prompt = _parse_prompt(text, is_json)
            order.append(engine.add_request(str(number), prompt, params))
        except (TypeError, ValueError) as error:
            refused += 1
            print(f"mini-vllm: {where}: {error}", file=sys.stderr)

    start = time.perf_counter()
    num_tokens = 0
    done: dict[str, RequestOutput] = {}
    order.reverse()
    while engine.has_unfinished_requests():
        for output in engine.step():
            num_tokens += sum(len(o.token_ids) for o in output.outputs)
            if stream:
                out.write(output.outputs[0].text + ("\n" if output.finished else ""))
                out.flush()
            elif output.finished:
                done[output.request_id] = output
        while order and order[-1] in done:
            _print_output(done.pop(order.pop()), args.json, out)
    elapsed = time.perf_counter() - start

    if recorder is not None:
        from mini_vllm.trace import write_trace

        write_trace(recorder.steps, Path(args.trace))
    if args.stats:
        core = engine.engine_core
        print(
            f"{num_tokens} tokens in {elapsed:.3f} s ({num_tokens / max(elapsed, 1e-9):.0f} tokens/s), "
            f"{core.num_steps} steps, {core.scheduler.num_preemptions} preemptions, "
            f"{core.config.num_gpu_blocks} KV blocks of {core.config.block_size} tokens",
            file=sys.stderr,
        )
    return 1 if refused else 0


def _print_output(output: RequestOutput, as_json: bool, out: TextIO) -> None:
    if as_json:
        out.write(json.dumps(asdict(output), ensure_ascii=False) + "\n")
        return
    for completion in output.outputs:
        prompt = output.prompt if output.prompt is not None else output.prompt_token_ids
        out.write(f"--- {prompt}\n{completion.text}\n")


def run_bench(args: argparse.Namespace, out: TextIO) -> int:
    """The `bench` command."""
    import numpy as np

    engine = _make_engine(args)
    total, limit = args.input_len + args.output_len, engine.config.max_model_len
    if total > (limit or total):
        raise ValueError(
            f"--input-len {args.input_len} and --output-len {args.output_len} make {total} tokens, "
            f"more than the maximum model length of {limit}"
        )
    rng = np.random.default_rng(args.seed)
    low = min(8, engine.model.config.vocab_size - 1)  # the shipped model's first ids are special
    prompts = rng.integers(low, engine.model.config.vocab_size, (args.num_prompts, args.input_len))
    params = SamplingParams(
        temperature=0, max_tokens=args.output_len, ignore_eos=True, detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )  # fmt: skip
    start = time.perf_counter()
    for number, prompt in enumerate(prompts):
        engine.add_request(str(number), prompt.tolist(), params)
    first: dict[str, float] = {}
    last: dict[str, float] = {}
    gaps: list[float] = []
    while engine.has_unfinished_requests():
        outputs = engine.step()
        now = time.perf_counter()
        for output in outputs:
            request_id = output.request_id
            if request_id in first:
                gaps.append(now - last[request_id])
            else:
                first[request_id] = now
            last[request_id] = now
    elapsed = time.perf_counter() - start
    ttft = np.array([t - start for t in first.values()])
    itl = np.array(gaps or [0.0])
    generated = args.num_prompts * args.output_len
    figures = {
        "requests": args.num_prompts,
        "input_tokens": args.num_prompts * args.input_len,
        "output_tokens": generated,
        "duration_s": elapsed,
        "request_throughput_per_s": args.num_prompts / elapsed,
        "output_throughput_tokens_per_s": generated / elapsed,
        "ttft_ms_median": 1e3 * float(np.median(ttft)),
        "ttft_ms_p99": 1e3 * float(np.percentile(ttft, 99)),
        "itl_ms_median": 1e3 * float(np.median(itl)),
        "itl_ms_p99": 1e3 * float(np.percentile(itl, 99)),
        "steps": engine.engine_core.num_steps,
        "preemptions": engine.engine_core.scheduler.num_preemptions,
    }
    if args.json:
        out.write(json.dumps(figures) + "\n")
    else:
        for name, value in figures.items():
            shown = f"{value:,.2f}" if isinstance(value, float) else f"{value:,}"
            out.write(f"{name.replace('_', ' '):32}{shown:>14}\n")
    return 0


def main(argv: list[str] | None = None) -> int:
    """Entry point. Exit status: 0 done, 1 some prompt refused, 2 nothing could be run."""
    args = build_parser().parse_args(argv)
    try:
        return int(args.run(args, sys.stdout))
    except BrokenPipeError:  # the reader of a pipe has seen enough
        sys.stderr.close()
        return 0
    except (ValueError, TypeError, OSError) as error:
        print(f"mini-vllm: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
