"""The command `mini-vllm generate`: complete prompts, from the command line or a file.

Has no counterpart in `vllm`; the knobs have the names of vLLM's flags.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from mini_vllm.entrypoints.cli.errors import EPILOG, print_error
from mini_vllm.entrypoints.cli.flags import (
    add_engine_flags,
    add_flags,
    make_engine,
    observe_drafts,
)
from mini_vllm.entrypoints.cli.lora_flags import add_lora_size_flags
from mini_vllm.sampling_params import RequestOutputKind, SamplingParams
from mini_vllm.utils.untrusted import MOST_BYTES, decode, parse_json, read_bytes, shorten_repr

if TYPE_CHECKING:
    from mini_vllm.engine.llm_engine import LLMEngine
    from mini_vllm.lora.request import LoRARequest
    from mini_vllm.outputs import CUDAGraphStat, RequestOutput
    from mini_vllm.trace import TraceRecorder

SAMPLING_FLAGS: dict[str, tuple[type, str]] = {
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


def add_generate_parser(commands: Any) -> None:
    """Register `generate` with the subparsers of `mini-vllm`."""
    generate = commands.add_parser(
        "generate",
        help="complete prompts",
        description="Complete prompts. One prompt streams; several are printed in order.",
        epilog=EPILOG,
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
        "--trace", metavar="FILE",
        help="write every step and the reasons: .html to step through, .txt to read, .json for "
        "Perfetto, .trace.json for 'mini-vllm trace'",
    )  # fmt: skip
    generate.add_argument(
        "--watch", action="store_true",
        help="show queue, batch and blocks while it runs (extra 'watch')",
    )  # fmt: skip
    generate.add_argument(
        "--watch-delay", type=float, default=0.05, metavar="S",
        help="seconds to rest after each step with --watch, to follow it by eye (0.05)",
    )  # fmt: skip
    generate.add_argument(
        "--mine", action="store_true",
        help="run on the parts that you built, where their labs pass (see 'course assemble')",
    )  # fmt: skip
    generate.add_argument(
        "--stats", action="store_true", help="print steps, speed and cache use to stderr"
    )
    add_flags(generate, "sampling", SAMPLING_FLAGS)
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
    add_engine_flags(generate)
    _add_lora_flags(generate)
    generate.set_defaults(max_tokens=256, temperature=0.0, run=run_generate)


def _add_lora_flags(parser: argparse.ArgumentParser) -> None:
    """Adapters. Their sizes have vLLM's names; `--enable-lora` goes without saying where one is given."""
    group = parser.add_argument_group("adapters")
    group.add_argument(
        "--lora", action="append", metavar="NAME=DIR",
        help="answer with this adapter, a folder as PEFT writes one: once for all prompts, or once a prompt, "
        "'none' for none",
    )  # fmt: skip
    add_lora_size_flags(group)


def _read_loras(texts: list[str] | None, num_prompts: int) -> list[LoRARequest | None]:
    """The adapter of each prompt. Raises ValueError."""
    if not texts:
        return [None] * num_prompts
    if len(texts) not in (1, num_prompts):
        raise ValueError(
            f"--lora must be given once, or once for each of the {num_prompts} prompts, got {len(texts)}"
        )
    from mini_vllm.lora.request import LoRARequest

    numbers: dict[str, int] = {}
    loras: list[LoRARequest | None] = []
    for text in texts:
        if text == "none":
            loras.append(None)
            continue
        name, _, folder = text.partition("=")
        if not name or not folder:
            raise ValueError(f"--lora must be NAME=DIR, got {shorten_repr(text)}")
        number = numbers.setdefault(text, len(numbers) + 1)
        loras.append(LoRARequest(name, number, folder))
    return loras if len(texts) == num_prompts else loras * num_prompts


def _read_prompts(args: argparse.Namespace) -> Iterator[tuple[str, str, bool]]:
    """Where each prompt comes from (for messages), its text, and whether that is JSON."""
    for number, prompt in enumerate(args.prompts, 1):
        yield f"prompt {number}", prompt, False
    name = args.prompts_file
    if name is None:
        return
    try:
        text = decode(_read(name))
    except ValueError as error:
        raise ValueError(f"--prompts-file {shorten_repr(name, 300)}: {error}") from error
    text = text.removeprefix("\ufeff")  # some editors put it in front
    # Not splitlines(): JSON strings may hold U+2028 and its like unescaped.
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield f"{name}:{number}", line.removesuffix("\r"), name.endswith(".jsonl")


def _read(name: str) -> bytes:
    if name != "-":
        return read_bytes(Path(name))
    if sys.stdin is None:
        raise ValueError("there is no standard input")
    raw = getattr(sys.stdin, "buffer", None)
    data: bytes = sys.stdin.read().encode() if raw is None else raw.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ValueError(f"it holds more than {MOST_BYTES} bytes")
    return data


def _parse_prompt(text: str, is_json: bool) -> Any:
    """The prompt in a form that the engine takes. Raises ValueError for a line that is none."""
    if not is_json:
        return text
    value = parse_json(text)
    if not isinstance(value, str | dict):
        raise ValueError(f"expected an object with 'prompt', got {shorten_repr(value)}")
    return value


def run_generate(args: argparse.Namespace, out: TextIO) -> int:
    """The `generate` command. Exit status 1 if a prompt was refused (the others still run)."""
    if args.trace is not None:
        from mini_vllm.trace import check_trace_path

        check_trace_path(Path(args.trace))
    if args.watch:
        from mini_vllm.entrypoints.cli.watch import check_watch

        args.watch = check_watch(args.watch_delay, out)
    given = {name: getattr(args, name) for name in SAMPLING_FLAGS}
    params = SamplingParams(
        **{name: value for name, value in given.items() if value is not None},
        stop=args.stop,
        stop_token_ids=args.stop_token_id,
        ignore_eos=args.ignore_eos,
    )
    prompts = list(_read_prompts(args))
    if not prompts:
        raise ValueError("no prompt given: name one, or use --prompts-file")
    stream = len(prompts) == 1 and params.n == 1 and not args.json and not args.watch
    params.output_kind = RequestOutputKind.DELTA if stream else RequestOutputKind.FINAL_ONLY
    loras = _read_loras(args.lora, len(prompts))
    engine = make_engine(args)
    ran_as: list[CUDAGraphStat] = []
    if args.stats:
        engine.engine_core.step_observers.append(
            lambda step: _note(ran_as, step.model_runner_output.cudagraph_stats)
        )
    drafts = observe_drafts(engine) if args.stats else None
    recorder = None
    if args.trace is not None or args.watch:
        from mini_vllm.trace import TraceRecorder

        recorder = TraceRecorder(engine)

    refused = 0
    order: list[str] = []
    for number, (where, text, is_json) in enumerate(prompts):
        try:
            prompt = _parse_prompt(text, is_json)
            lora = loras[number]
            order.append(engine.add_request(str(number), prompt, params, lora_request=lora))
        except (TypeError, ValueError) as error:
            refused += 1
            print_error(f"{where}: {error}")

    start = time.perf_counter()
    num_tokens = 0
    done: dict[str, RequestOutput] = {}
    order.reverse()
    for outputs in _steps(engine, recorder if args.watch else None, args.watch_delay, out):
        for output in outputs:
            num_tokens += sum(len(o.token_ids) for o in output.outputs)
            if stream:
                out.write(output.outputs[0].text + ("\n" if output.finished else ""))
                out.flush()
            elif output.finished:
                done[output.request_id] = output
        while order and order[-1] in done and not args.watch:
            _print_output(done.pop(order.pop()), args.json, out)
    while order and order[-1] in done:
        _print_output(done.pop(order.pop()), args.json, out)
    elapsed = time.perf_counter() - start

    if args.trace is not None and recorder is not None:
        from mini_vllm.trace import write_trace

        write_trace(recorder.trace, Path(args.trace))
    if args.stats:
        core = engine.engine_core
        print(
            f"{num_tokens} tokens in {elapsed:.3f} s ({num_tokens / max(elapsed, 1e-9):.0f} tokens/s), "
            f"{core.num_steps} steps, {core.scheduler.num_preemptions} preemptions, "
            f"{core.config.num_gpu_blocks} KV blocks of {core.config.block_size} tokens",
            file=sys.stderr,
        )
    if drafts is not None:
        drafts.log(lambda text, *values: print(text % values, file=sys.stderr))
    if ran_as:
        modes = Counter(stat.runtime_mode for stat in ran_as).most_common()
        line = ", ".join(f"{count} {mode}" for mode, count in modes)
        launches = [stat.launches for stat in ran_as if stat.launches is not None]
        print(
            f"steps as graphs: {line}; {sum(stat.num_paddings for stat in ran_as)} rows of padding"
            + (f"; {sum(launches)} launches in the forward passes" if launches else ""),
            file=sys.stderr,
        )
    return 1 if refused else 0


def _note(ran_as: list[CUDAGraphStat], stat: CUDAGraphStat | None) -> None:
    if stat is not None:  # there are graphs, and the step had tokens
        ran_as.append(stat)


def _steps(
    engine: LLMEngine, watched: TraceRecorder | None, delay: float, out: TextIO
) -> Iterator[list[RequestOutput]]:
    """Step until nothing is left, with a picture of each step if it is watched."""
    if watched is None:
        while engine.has_unfinished_requests():
            yield engine.step()
        return
    from mini_vllm.entrypoints.cli.watch import Watch

    with Watch(engine, watched, delay, out) as watch:
        while engine.has_unfinished_requests():
            outputs = engine.step()
            watch.show()
            yield outputs


def _print_output(output: RequestOutput, as_json: bool, out: TextIO) -> None:
    if as_json:
        out.write(json.dumps(asdict(output), ensure_ascii=False) + "\n")
        return
    for completion in output.outputs:
        prompt = output.prompt if output.prompt is not None else output.prompt_token_ids
        out.write(f"--- {prompt}\n{completion.text}\n")
