"""What routers say in real vLLM, on a CPU: decodes of long prompts, alone and in one step with others.

    python in_vllm.py              # plain, and with VLLM_BATCH_INVARIANT=1 (two minutes)
    python in_vllm.py --replay     # what was recorded
    python in_vllm.py --record     # writes vllm.json

Real vLLM 0.22.1, its CPU build, in float32. The prompts are the course's pages, 900 tokens each. What the
routers of all layers say in the first step of all prompts and in the first decode is written down for one
request, and which experts it goes to.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.append(str(ROOT))  # the repository, where it is not installed

from course.learner.labs import load_module  # noqa: E402
from course.learner.stubs import run_script  # noqa: E402

RECORD = HERE / "vllm.json"
COMMAND = f"python {Path(__file__).resolve().relative_to(ROOT)} --record"
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR",
}  # fmt: skip
PROMPTS, TOKENS, COMPANY = 16, 900, (0, 1, 3)
SETTINGS: dict[str, dict[str, str]] = {
    "as it comes": {},
    "invariant": {"VLLM_BATCH_INVARIANT": "1"},
}


def ask() -> dict[str, Any]:
    """In this process: each prompt in each cast."""
    import torch
    from vllm import LLM, SamplingParams
    from vllm.model_executor.layers.fused_moe import cpu_fused_moe
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    search = load_module(HERE / "search.py", "lab_07_08_search")
    log: list[tuple[torch.Tensor, torch.Tensor]] = []
    plain = cpu_fused_moe.select_experts

    def tapped(*args: Any, **named: Any) -> Any:
        weights, ids = plain(*args, **named)
        logits = named["router_logits"] if "router_logits" in named else args[1]
        log.append((logits.clone(), ids.clone()))
        return weights, ids

    cpu_fused_moe.select_experts = tapped
    llm = LLM(
        str(search.MODEL), dtype="float32", enforce_eager=True, block_size=16, max_model_len=1024,
        max_num_batched_tokens=4096, enable_prefix_caching=False, async_scheduling=False,
        distributed_executor_backend=UniProcExecutor,
    )  # fmt: skip
    tokenizer = search.Tokenizer.from_folder(search.MODEL)
    bos, *ids = [token for window in search.windows(tokenizer) for token in window[1:]][
        : PROMPTS * 1000
    ]
    every = [[bos, *ids[i * 1000 : i * 1000 + TOKENS - 1]] for i in range(PROMPTS)]
    greedy = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
    told: dict[str, Any] = {"prompts": PROMPTS}
    for at, tokens in enumerate(every):
        seen: dict[int, list[tuple[bytes, list[list[int]]]]] = {}
        for company in COMPANY:
            log.clear()
            prompts = [tokens, *(every[(at + 1 + i) % PROMPTS] for i in range(company))]
            llm.generate([{"prompt_token_ids": one} for one in prompts], greedy, use_tqdm=False)
            steps = (log[:4], log[4:8])  # four layers: all prompts, then all decodes
            assert [len(step[0][0]) for step in steps] == [TOKENS * len(prompts), len(prompts)]
            seen[company] = [
                (
                    b"".join(logits[row].numpy().tobytes() for logits, _ in step),
                    [sorted(chosen[row].tolist()) for _, chosen in step],
                )
                for step, row in zip(steps, (TOKENS - 1, 0), strict=True)
            ]
        for company in COMPANY[1:]:
            for step, name in enumerate(("prefill", "decode")):
                row = told.setdefault(
                    f"{name}, {company} beside", {"other bits": 0, "another expert": 0}
                )
                row["other bits"] += seen[company][step][0] != seen[0][step][0]
                row["another expert"] += seen[company][step][1] != seen[0][step][1]
    return told


def show(found: dict[str, Any]) -> None:
    """One line per setting, step and company."""
    for setting, told in found["runs"].items():
        prompts = told["prompts"]
        for name, row in told.items():
            if name != "prompts":
                print(
                    f"{setting:12} {name:18} {row['other bits']:2} of {prompts} prompts have other router "
                    f"bits, {row['another expert']} another expert"
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--record", action="store_true", help="write vllm.json")
    parser.add_argument("--replay", action="store_true", help="read vllm.json, start nothing")
    parser.add_argument("--ask", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.ask:
        print("TOLD" + json.dumps(ask()))
        return
    if args.replay:
        show(json.loads(RECORD.read_text(encoding="utf-8")))
        return
    runs = {}
    for name, extra in SETTINGS.items():
        done = subprocess.run(
            [sys.executable, __file__, "--ask"],
            env=os.environ | ENVIRONMENT | extra,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        [line] = [one for one in done.stdout.splitlines() if one.startswith("TOLD")]
        runs[name] = json.loads(line[4:])
    found: dict[str, Any] = {"runs": runs}
    if args.record:
        from importlib.metadata import version

        [capture] = ROOT.glob("phase-04*/labs/lab-07*/capture.py")
        versions = {
            "python": platform.python_version(),
            "torch": version("torch"),
            "vllm": "0.22.1",
        }
        found = {
            "command": COMMAND, "date": datetime.date.today().isoformat(), "versions": versions,
            "hardware": load_module(capture, "lab_04_07_capture_for_08").processor(),
        } | found  # fmt: skip
        RECORD.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    show(found)


if __name__ == "__main__":
    run_script(main)
