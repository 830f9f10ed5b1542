"""Given: your plan for each scene beside the simulator, your figures for the five reports, and three routers.

python show.py [solution | starter] [scenes | reports | routers | record]
"""

from __future__ import annotations

import io
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

from course.learner.labs import load_module
from mini_vllm.entrypoints.cli import main

HERE = Path(__file__).resolve().parent
support = load_module(HERE / "support.py", "lab_10_06_support")


def scenes(lab: ModuleType) -> None:
    """The cheapest plan of each scene, and its mean TPOT in milliseconds, on paper and simulated."""
    print(f"{'scene':20}{'plan':13}price  paper  simulated  limit")
    for name, scene in support.SCENES.items():
        plan = lab.cheapest(*support.asked(lab, name))
        if plan is None:
            print(f"{name:20}none")
            continue
        (tp, pp, _), replicas = plan.split, plan.replicas
        got = support.simulate(name, tp, pp, replicas)
        cut = f"tp{tp}" + (f"pp{pp}" if pp > 1 else "")
        print(
            f"{name:20}{replicas} x {cut:9}{plan.price:5.2f}{plan.forecast.tpot_s * 1e3:7.1f}"
            f"{got.tpot_ms:11.1f}{scene.tpot_ms:7g}"
        )


def reports(lab: ModuleType) -> None:
    """Each report's figures, as the planner has them."""
    split, of = lab.Split, support.model_of
    llama = of(lab, "llama-3-70b")
    a100 = support.site_of(lab, "three A100")
    said = [lab.refuse(llama, a100, split(*one)) or "fits" for one in ((2,), (3,), (1, 3))]
    room = [lab.kv_tokens(llama, a100, split(*one)) for one in ((2,), (1, 3))]
    print(
        f"5003   Llama-3-70B, if 4 GB are enough for the rest: tp 2 {said[0]} ({room[0]:,} tokens), "
        f"tp 3 {said[1]}, pp 3 {said[2]} ({room[1]:,})"
    )
    h100 = support.site_of(lab, "H100 servers")
    one, half = (lab.kv_tokens(llama, h100, split(tp)) for tp in (8, 4))
    print(
        f"16011  Noor's 70B, not the report's service: tp 8 holds {one:,} tokens, twice tp 4 {2 * half:,}: "
        f"{one - 2 * half:,} more"
    )
    qwen, site = (
        of(lab, "qwen2.5-32b"),
        support.site_of(lab, "H100 servers", card="a100", link="nvlink3"),
    )
    times = [1e3 * lab.step_seconds(qwen, site, split(tp), 1, 1, 100) for tp in (2, 4, 8)]
    rest = [measured / 0.2 - mine for measured, mine in zip((5.5, 3.91, 3.15), times, strict=True)]
    print(
        f"16300  a token takes {_row(times)} ms on paper; the rest of what was measured: {_row(rest)}"
    )
    fp8 = of(lab, "llama-3-70b", bytes_per_param=1)
    holds = lab.kv_tokens(fp8, h100, split(4)) / 3000
    print(f"8089   fp8 weights on tp 4: {holds:.0f} requests of 3,000 tokens")
    chunk = [8192 / lab.step_seconds(fp8, h100, split(tp), 8192, 3, 8192) for tp in (4, 8)]
    print(
        f"       prompt tokens per second: two of tp 4 {2 * chunk[0]:,.0f}, one of tp 8 {chunk[1]:,.0f}"
    )
    small = of(lab, "llama-3-8b")
    whole = 64 / lab.step_seconds(small, h100, split(), 64, 64, 64 * 500)
    eight = 64 / lab.step_seconds(small, h100, split(1, 8), 8, 8, 8 * 500)
    print(
        f"11500  64 requests: one card {whole:,.0f} tokens per second, eight full stages {eight:,.0f}"
    )


LOADS = {
    "prefixes": "--request-rate 80 --prefix-len 2000 --num-prefixes 400 --input-len 200 --output-len 40 "
    "--num-prompts 2400",
    "lengths": "--request-rate 120 --input-len 400 --output-len lognormal:40:1.5:2000 --max-num-seqs 24 "
    "--num-prompts 1500",
    "equal": "--request-rate 120 --input-len 400 --output-len 40 --num-prompts 1500",
}


def routers() -> None:
    """The routers with three loads: mean and 99th percentile of the TTFT, in milliseconds."""
    print(f"{'TTFT: mean, p99':16}" + "".join(f"{load:>18}" for load in LOADS))
    for router in ("round-robin", "least-loaded", "prefix"):
        cells = []
        for flags in LOADS.values():
            command = (
                f"simulate --replicas 4 --router {router} --cost h100-llama-3-8b {flags} --json -"
            )
            found = _run(command.split())
            cells.append(f"{found['mean_ttft_ms']:11.1f}{found['p99_ttft_ms']:7.1f}")
        print(f"{router:16}" + "".join(cells))


def _run(command: list[str]) -> dict[str, Any]:
    """The figures of a command of `mini-vllm`."""
    out = io.StringIO()
    with redirect_stdout(out):
        main(command)
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


def _row(values: list[float]) -> str:
    return " ".join(f"{value:.1f}" for value in values)


def record(lab: ModuleType) -> None:
    """Simulate each scene's plan and all that the tests compare with it."""
    found = {}
    for name in support.SCENES:
        plan = lab.cheapest(*support.asked(lab, name))
        tp, pp, _ = plan.split
        for one in ((tp, pp, plan.replicas), *support.cheaper(name, tp * pp * plan.replicas)):
            found["{}: {} x {} x {}".format(name, *one)] = list(support.run(name, *one))
            print(name, one, found["{}: {} x {} x {}".format(name, *one)], flush=True)
    lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in found.items())
    support.RECORDED.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


def show(which: str = "starter", what: str = "") -> None:
    lab = load_module(HERE / f"{which}.py", f"lab_10_06_{which}")
    if what == "record":
        record(lab)
    if what == "routers":
        routers()
    if what in ("", "scenes"):
        scenes(lab)
    if what in ("", "reports"):
        reports(lab)


if __name__ == "__main__":
    show(*sys.argv[1:3])
