"""Given: what vLLM's own config makes of a server's settings, and how its dispatcher then runs a step.

    python in_vllm.py                                  # the recorded answers to all cases
    python in_vllm.py --only "42"                      # those whose name has these words
    python in_vllm.py --live --max-num-seqs 48         # asks vLLM, if it is installed
    python in_vllm.py --record                         # asks it for all cases, writes asked.json

A whole `VllmConfig` is made, from `EngineArgs`, and the dispatcher of the V1 model runner from that. No GPU
is needed: the stand-in of lab 04-04 tells vLLM that it is on an H100, and answers for the driver.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import io
import json
import logging
import platform
import textwrap
from pathlib import Path
from typing import Any

from course.learner.labs import load_module

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
RECORD = HERE / "asked.json"
COMMAND = "python phase-05-cuda-graphs/labs/lab-03-capture-sizes/in_vllm.py --record"
STAND_IN = "phase-04-attention-backends/labs/lab-04-backend-selection/cuda_stand_in.py"
RUNS = (
    (1, True), (33, True), (33, False), (42, True), (256, True), (257, True), (512, False), (513, False),
)  # fmt: skip
"""Steps to ask the dispatcher about: tokens, and whether each request has as many as a decode."""

CASES: dict[str, dict[str, Any]] = {
    "Kim alone": {"max_num_seqs": 1},
    "33 people": {"max_num_seqs": 33},
    "256 people": {"max_num_seqs": 256},
    "1,024 people": {"max_num_seqs": 1024},
    "21 people": {"max_num_seqs": 21},
    "a maximum of 42": {"max_num_seqs": 256, "max_cudagraph_capture_size": 42},
    "a maximum of 42, and steps of 42": {
        "max_num_seqs": 42, "max_num_batched_tokens": 42, "max_cudagraph_capture_size": 42,
    },
    "a step of 300 tokens": {"max_num_seqs": 256, "max_num_batched_tokens": 300},
    "interactivity": {"max_num_seqs": 256, "performance_mode": "interactivity"},
    "sizes of one's own": {"max_num_seqs": 256, "cudagraph_capture_sizes": [40, 1, 2, 4, 4]},
    "sizes and a maximum that disagree": {
        "max_num_seqs": 256, "cudagraph_capture_sizes": [1, 2, 4], "max_cudagraph_capture_size": 8,
    },
    "six people, six drafts": {"max_num_seqs": 6, "drafts": 6},
    "six people, six drafts, a maximum of 42": {
        "max_num_seqs": 6, "drafts": 6, "max_cudagraph_capture_size": 42,
    },
    "eager": {"max_num_seqs": 256, "enforce_eager": True},
}  # fmt: skip
OF_COMPILATION = ("max_cudagraph_capture_size", "cudagraph_capture_sizes", "cudagraph_mode")


class Asker:
    """vLLM on the stand-in: once in a process, before anything else of vLLM is imported."""

    def __init__(self) -> None:
        load_module(ROOT / STAND_IN, "lab_05_03_stand_in").stand_in().become((9, 0))
        import vllm.logger  # noqa: F401

        self.log = io.StringIO()
        handler = logging.StreamHandler(self.log)
        handler.setLevel(logging.WARNING)
        logging.getLogger("vllm").handlers = [handler]

    def __call__(self, settings: dict[str, Any]) -> dict[str, Any]:
        """The ladder, the mode, the captures and the runs, or the error; and what was warned of them."""
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.attention.backend import AttentionCGSupport
        from vllm.v1.cudagraph_dispatcher import CudagraphDispatcher

        given = {"max_num_batched_tokens": 8192, **settings}
        compilation = {name: given.pop(name) for name in OF_COMPILATION if name in given}
        drafts = given.pop("drafts", 0)
        if drafts:
            given["speculative_config"] = {
                "method": "ngram", "num_speculative_tokens": drafts, "prompt_lookup_max": 4,
            }  # fmt: skip
        self.log.truncate(self.log.seek(0))
        args = EngineArgs(
            model=str(ROOT / "mini_vllm/checkpoints/tiny-llama"),
            dtype="float16",
            max_model_len=256,
            compilation_config=compilation,
            **given,
        )
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                config = args.create_engine_config()
        except ValueError as error:
            said = next(line for line in str(error).splitlines() if "Value error" in line)
            return {"error": said.split("Value error, ")[-1].split(" [type=")[0]}
        compiled = config.compilation_config
        dispatcher = CudagraphDispatcher(config)
        # the model runner's part, once the attention backend is known; FA3 of an H100 bears everything
        mode = compiled.resolve_cudagraph_mode_and_sizes(
            AttentionCGSupport.ALWAYS, None, 1 + drafts
        )
        dispatcher.initialize_cudagraph_keys(mode, 1 + drafts)
        keys = {str(mode): len(found) for mode, found in dispatcher.cudagraph_keys.items()}
        warned = [line for line in self.log.getvalue().splitlines() if "cudagraph" in line]
        return {
            "mode": str(mode),
            "sizes": list(compiled.cudagraph_capture_sizes),
            "captures": keys,
            "warned": warned,
            "runs": [self._run(dispatcher, *one) for one in RUNS if possible(*one, settings)],
        }

    @staticmethod
    def _run(dispatcher: Any, num_tokens: int, uniform: bool) -> list[Any]:
        mode, key = dispatcher.dispatch(num_tokens, uniform)
        return [num_tokens, uniform, str(mode), key.num_tokens]


def possible(num_tokens: int, uniform: bool, settings: dict[str, Any]) -> bool:
    """Whether a server of these settings can have such a step."""
    if num_tokens > settings.get("max_num_batched_tokens", 8192):
        return False
    num_reqs, rest = divmod(num_tokens, 1 + settings.get("drafts", 0))
    return not uniform or (rest == 0 and num_reqs <= settings["max_num_seqs"])


def ladder(sizes: list[int]) -> str:
    """`1, 2, 4, 8, … 256 by 8, … 512 by 16`: every run of four or more with one step in short."""
    parts: list[str] = []
    at = 0
    while at < len(sizes):
        end, step = at + 1, 0
        if end < len(sizes):
            step = sizes[end] - sizes[at]
            while end < len(sizes) and sizes[end] - sizes[end - 1] == step:
                end += 1
        if end - at > 3:
            parts.append(f"{sizes[at]} … {sizes[end - 1]} by {step}")
        else:
            end = at + 1
            parts.append(str(sizes[at]))
        at = end
    return ", ".join(parts) or "none"


def show(name: str, settings: dict[str, Any], answer: dict[str, Any], runs: bool) -> None:
    """A case and its answer, in lines of a page's width."""
    told = ", ".join(f"{key}={value}" for key, value in settings.items())
    print(f"{name}: {told}")
    lines = [f"WARNING {line}" for line in answer.get("warned", ())]
    if "error" in answer:
        lines.append(f"ValueError: {answer['error']}")
    else:
        lines.append(f"{len(answer['sizes'])} sizes: {ladder(answer['sizes'])}")
        counts = ", ".join(f"{count} {mode}" for mode, count in answer["captures"].items())
        lines.append(f"{answer['mode']}; to capture: {counts}")
    for num_tokens, uniform, mode, padded in answer.get("runs", ()) if runs else ():
        kind = "a decode" if uniform else "mixed"
        as_what = "as they are" if mode == "NONE" else f"as {padded}"
        lines.append(f"{num_tokens} tokens, {kind}: {mode}, {as_what}")
    for line in lines:
        print(textwrap.fill(line, 106, initial_indent="  ", subsequent_indent="    "))


def record() -> None:
    """All cases, asked of vLLM, with how that was done."""
    ask = Asker()
    import torch
    import vllm

    versions = {"vllm": vllm.__version__.split("+")[0], "torch": torch.__version__.split("+")[0]}
    made = {
        "command": COMMAND,
        "date": datetime.date.today().isoformat(),
        "versions": versions | {"python": platform.python_version()},
    }
    cases = [{"name": name, **ask(settings)} for name, settings in CASES.items()]
    lines = ",\n".join(json.dumps(case) for case in cases)
    RECORD.write_text(
        f'{{"made": {json.dumps(made)},\n"cases": [\n{lines}\n]}}\n', encoding="utf-8"
    )


def recorded() -> dict[str, dict[str, Any]]:
    """vLLM's answers, by the cases' names."""
    cases = json.loads(RECORD.read_text(encoding="utf-8"))["cases"]
    return {case.pop("name"): case for case in cases}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="WORDS", help="cases with these words")
    parser.add_argument("--runs", action="store_true", help="and how some steps run")
    parser.add_argument("--record", action="store_true", help=f"ask vLLM, write {RECORD.name}")
    parser.add_argument("--live", action="store_true", help="ask vLLM about a server of your own:")
    for name in ("max-num-seqs", "max-num-batched-tokens", "max-cudagraph-capture-size", "drafts"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--cudagraph-capture-sizes", type=int, nargs="+")
    parser.add_argument("--performance-mode")
    parser.add_argument("--cudagraph-mode")
    parser.add_argument("--enforce-eager", action="store_true", default=None)
    args = vars(parser.parse_args())
    only, runs, live = args.pop("only"), args.pop("runs"), args.pop("live")
    if args.pop("record"):
        record()
    elif live:
        settings = {"max_num_seqs": 256} | {k: v for k, v in args.items() if v is not None}
        show("yours", settings, Asker()(settings), runs=True)
    else:
        for name, answer in recorded().items():
            if not only or any(words in name for words in only):
                show(name, CASES[name], answer, runs)


if __name__ == "__main__":
    main()
