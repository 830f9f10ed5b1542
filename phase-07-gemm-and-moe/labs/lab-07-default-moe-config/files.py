"""Which of the tuned files that vLLM 0.22.1 ships a server gets, and what is odd about them.

    python files.py [--impl solution|starter|FILE] [--experts 8 --intermediate 14336 --top-k 2]
                    [--device NAME] [--dtype NAME]
    python files.py --audit [--impl ...]
    python files.py --write      # where vLLM is installed: reads its folder, writes files.json

`files.json` has of each file the name, the keys, and BLOCK_SIZE_M for each of them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.append(str(ROOT))  # the repository, where it is not installed

from course.learner.labs import load_module  # noqa: E402
from course.learner.stubs import run_script  # noqa: E402

ASKED_FOR = ("fp8_w8a8", "fp8_w8a16", "int8_w8a16", "int4_w4a16", "float32", None)
NAME = re.compile(
    r"E=(\d+),N=(\d+),device_name=([^,]+)(?:,dtype=([^,]+))?(?:,block_shape=\[([\d,]+)\])?\.json"
)
STEPS = (1, 64, 8192)


class File(NamedTuple):
    """A tuned file: its name, and BLOCK_SIZE_M by number of tokens, in the order of the file."""

    name: str
    block_m: dict[int, int]

    @property
    def parts(self) -> tuple[int, int, str, str | None, list[int] | None]:
        """What `file_name` takes: E, N, device, dtype, block shape."""
        found = NAME.fullmatch(self.name)
        assert found, self.name
        e, n, device, dtype, shape = found.groups()
        return (
            int(e),
            int(n),
            device,
            dtype,
            [int(one) for one in shape.split(",")] if shape else None,
        )


def recorded() -> dict[str, File]:
    """All files by name, from files.json."""
    raw = json.loads((HERE / "files.json").read_text("utf-8"))
    return {
        name: File(name, dict(zip(raw["keys"][which], blocks, strict=True)))
        for name, (which, blocks) in raw["files"].items()
    }


def shipped_folder() -> Path:
    """The folder `configs` of the installed vLLM, found without importing it."""
    for place in sys.path:
        folder = Path(place, "vllm", "model_executor", "layers", "fused_moe", "configs")
        if folder.is_dir():
            return folder
    raise SystemExit("files.py --write reads vLLM's own folder, and vLLM is not installed here")


def write() -> None:
    """Reads every file of the installed vLLM."""
    keys: list[list[int]] = []
    files: dict[str, Any] = {}
    for path in sorted(shipped_folder().glob("*.json")):
        configs = json.loads(path.read_text("utf-8"))
        configs.pop("triton_version", None)
        mine = [int(key) for key in configs]
        if mine not in keys:
            keys.append(mine)
        blocks = [config["BLOCK_SIZE_M"] for config in configs.values()]
        files[path.name] = [keys.index(mine), blocks]
    lines = [f"  {json.dumps(name)}: {json.dumps(one)}" for name, one in files.items()]
    lists = ",\n  ".join(json.dumps(one) for one in keys)
    text = f'{{"keys": [\n  {lists}\n ],\n "files": {{\n' + ",\n".join(lines) + "\n }\n}\n"
    (HERE / "files.json").write_text(text, "utf-8")
    print(f"{len(files)} files")


def table(lab: ModuleType, args: argparse.Namespace) -> None:
    """One row per way to spread the model: the file's name, and BLOCK_SIZE_M per step."""
    experts = lab.Experts(args.experts, args.intermediate, args.top_k)
    files = recorded()
    print(f"{args.device}, {args.dtype or '16 bits'}: BLOCK_SIZE_M of a step of")
    print("GPUs  split              E       N  file" + "".join(f"{step:>7,}" for step in STEPS))
    for gpus in (1, 2, 4, 8):
        for parallel in (False, True):
            if gpus == 1 and parallel:
                continue
            e, n = lab.local_shape(experts, lab.Ranks(gpus, 1, parallel))
            file = files.get(lab.file_name(e, n, args.device, args.dtype))
            blocks = []
            for step in STEPS:
                if file:
                    configs = {key: {"BLOCK_SIZE_M": one} for key, one in file.block_m.items()}
                    blocks.append(lab.nearest_config(configs, step)["BLOCK_SIZE_M"])
                else:
                    blocks.append(lab.default_config(step, e, args.dtype)["BLOCK_SIZE_M"])
            how = "expert parallel" if parallel else "tensor parallel" if gpus > 1 else ""
            told = f"{gpus:4}  {how:15} {e:4} {n:7}  {'yes' if file else 'no':4}"
            print(told + "".join(f"{one:7}" for one in blocks))


def audit(lab: ModuleType) -> None:
    """What no lookup finds, and what a lookup finds that was tuned for something else."""
    files = recorded()
    never = [one for one in files.values() if one.parts[3] not in ASKED_FOR]
    few = [one for one in files.values() if max(one.block_m) < 1024]
    no_decode = [one for one in files.values() if min(one.block_m) > 64]
    print(f"{len(files)} files")
    kinds = ", ".join(sorted({str(one.parts[3]) for one in never}))
    print(f"{len(never):3} have a dtype that is never asked for: {kinds}")
    print(f"{len(few):3} have no key of 1,024 tokens or more")
    print(f"{len(no_decode):3} have no key of 64 tokens or fewer")
    for dtype in (None, "fp8_w8a8"):
        same = [
            block == lab.default_config(key, one.parts[0], dtype)["BLOCK_SIZE_M"]
            for one in files.values()
            if one.parts[3:] == (dtype, None)
            for key, block in one.block_m.items()
        ]
        told = f"of {len(same):,} keys the default has {sum(same) / len(same):.0%} right"
        print(f"    BLOCK_SIZE_M, {dtype or '16 bits'}: {told}")
    print("\nanswers of 8,192 tokens and of 1, by files without near keys")
    for one in few + [file for file in no_decode if file not in few]:
        answers = []
        for step in (8192, 1):
            key = min(one.block_m, key=lambda key: abs(key - step))
            answers.append(f"{one.block_m[key]:4} of key {key}")
        print(f"  {one.name[:-5]}\n    {', '.join(answers)}")


def load_lab(choice: str | None) -> ModuleType:
    """`starter.py` or `solution.py` of this folder, or another path. Without a choice LAB_IMPL decides."""
    choice = choice or os.environ.get("LAB_IMPL", "").strip() or "solution"
    path = HERE / f"{choice}.py" if choice in ("starter", "solution") else Path(choice)
    if not path.is_file():
        raise SystemExit(f"--impl {choice}: there is no file {path}")
    return load_module(path, "lab_07_07_for_scripts")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--impl", default=None, metavar="solution|starter|FILE")
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--intermediate", type=int, default=14336)
    parser.add_argument("--top-k", type=int, default=2)
    parser.add_argument("--device", default="NVIDIA_A100-SXM4-80GB")
    parser.add_argument("--dtype", default=None)
    parser.add_argument("--audit", action="store_true")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    if args.write:
        write()
    elif args.audit:
        audit(load_lab(args.impl))
    else:
        table(load_lab(args.impl), args)


if __name__ == "__main__":
    run_script(main)
