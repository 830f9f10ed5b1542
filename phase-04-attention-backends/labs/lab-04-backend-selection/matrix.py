"""Lab 04-04: what vLLM's own selection code answers, for every GPU generation, without a GPU.

    M=phase-04-attention-backends/labs/lab-04-backend-selection/matrix.py
    python $M head_size=96 --usual
    python $M head_size=64,96 dtype= --usual --why --on A100
    python $M use_mla=True --impl starter
    python $M --live head_size=112 has_sink=True
    python $M --save

The first three read matrix.json. `NAME=VALUE` takes the rows whose `Config` has that value, `NAME=` any.
With `--usual` all other fields have the value that they usually have: heads of 128, bfloat16, no MLA. `--on`
limits the machines, `--why` prints why others were refused, and `--impl` lays your `select` beside vLLM's.

`--live` asks vLLM (0.22.1, its CPU build will do) for one `Config`, in the matrix or not. `--save` asks it
for all of them and writes matrix.json. asking.py and cuda_stand_in.py say how that works without a GPU.
"""

from __future__ import annotations

import argparse
import ast
import datetime
import itertools
import json
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(ROOT))  # the repository, where it is not installed

from course.learner.labs import load_module  # noqa: E402
from course.learner.stubs import run_script  # noqa: E402

facts = load_module(HERE / "facts.py", "lab_04_04_facts")
Config, Machine = facts.Config, facts.Machine
MATRIX = HERE / "matrix.json"
COMMAND = f"python {Path(__file__).resolve().relative_to(ROOT)} --save"

MACHINES = {
    "T4": Machine((7, 5)),
    "A100": Machine((8, 0)),
    "L4": Machine((8, 9)),
    "H100": Machine((9, 0)),
    "B200": Machine((10, 0)),
    "RTX 5090": Machine((12, 0)),
    # The answer depends on what is installed, and on whether one server of NVIDIA's can be reached.
    "T4 without flashinfer": Machine((7, 5), flashinfer=False),
    "A100 without flashinfer": Machine((8, 0), flashinfer=False),
    "B200 without cubins": Machine((10, 0), cubins=False),
    "B200 with tokenspeed": Machine((10, 0), tokenspeed=True),
    "B200 without flashinfer": Machine((10, 0), flashinfer=False),
    "B200 with tokenspeed, without flashinfer": Machine((10, 0), flashinfer=False, tokenspeed=True),
}
"""By name. The last ones are asked in bfloat16 only."""
GENERATIONS = tuple(MACHINES)[:6]
HALF, ALL = ("float16", "bfloat16"), ("float16", "bfloat16", "float32")
BLOCKS = (None, 8, 16, 32, 64, 128)


def configs() -> Iterator[Any]:
    """Every question of the matrix, each once."""
    seen = set()
    for config in itertools.chain(_dense(), _latent(), _rare()):
        if config not in seen:
            seen.add(config)
            yield config


def _dense() -> Iterator[Any]:
    heads = (20, 64, 80, 96, 128, 256, 512)
    for dtype, head_size, block_size in itertools.product(ALL, heads, (None, 8, 16, 64)):
        for kv, sink in itertools.product(("auto", "fp8"), (False, True)):
            yield Config(head_size, dtype, kv, block_size, has_sink=sink)


def _latent() -> Iterator[Any]:
    for dtype, block_size, sparse in itertools.product(ALL, BLOCKS, (False, True)):
        for kv, num_heads in itertools.product(("auto", "fp8"), (128, 16)):
            yield Config(
                576, dtype, kv, block_size, use_mla=True, use_sparse=sparse, num_heads=num_heads
            )
    for head_size, kv in itertools.product((288, 320), ("auto", "fp8")):
        yield Config(head_size, kv_cache_dtype=kv, use_mla=True, num_heads=64)


def _rare() -> Iterator[Any]:
    """One thing out of the ordinary at a time, or two."""
    kinds = (
        "float16", "fp8_e4m3", "fp8_e5m2", "fp8_ds_mla", "fp8_inc", "int8_per_token_head",
        "fp8_per_token_head", "nvfp4", "turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc",
        "turboquant_3bit_nc",
    )  # fmt: skip
    for kv, block_size, sink in itertools.product(kinds, (None, 8, 48), (False, True)):
        yield Config(128, kv_cache_dtype=kv, block_size=block_size, has_sink=sink)
    for kv, sparse in itertools.product(kinds, (False, True)):
        yield Config(576, kv_cache_dtype=kv, use_mla=True, use_sparse=sparse, num_heads=128)
    extras: list[dict[str, Any]] = [
        {"use_mm_prefix": True},
        {"use_per_head_quant_scales": True},
        {"use_non_causal": True},
        {"use_batch_invariant": True},
        {"use_batch_invariant": True, "has_sink": True},
        *({"attn_type": kind} for kind in ("encoder", "encoder_only", "encoder_decoder")),
    ]
    for more, dtype, kv in itertools.product(extras, ALL, ("auto", "fp8")):
        for head_size in (20, 64, 128):
            yield Config(head_size, dtype, kv, **more)
        yield Config(576, dtype, kv, use_mla=True, num_heads=128, **more)
    for (one, two), kv in itertools.product(itertools.combinations(extras, 2), ("auto", "fp8")):
        yield Config(128, kv_cache_dtype=kv, block_size=24, **(one | two))


def overrides() -> Iterator[tuple[Any, str]]:
    """Questions in which somebody asks for a backend."""
    for config in (
        Config(128),
        Config(128, kv_cache_dtype="fp8"),
        Config(64, has_sink=True),
        Config(96, "float32", block_size=8),
        Config(576, use_mla=True, num_heads=128),
        Config(576, kv_cache_dtype="fp8", block_size=16, use_mla=True, num_heads=128),
    ):
        for name in facts.BACKENDS:
            yield config, name


def questions() -> Iterator[tuple[str, Any, str | None]]:
    """A machine's name, a `Config` and an override or None: the cells of the matrix, in its order."""
    for name in MACHINES:
        for config in configs():
            if name in GENERATIONS or config.dtype == "bfloat16":
                yield name, config, None
        if name in GENERATIONS:
            yield from ((name, config, override) for config, override in overrides())


# -- Asking vLLM, and keeping what it says.


def ask_vllm() -> dict[str, Any]:
    """The whole matrix, from vLLM. What is said more than once is kept once."""
    ask, about = load_module(HERE / "asking.py", "lab_04_04_asking").asker(MACHINES)
    made = {"command": COMMAND, "date": datetime.date.today().isoformat(), **about.pop("made")}
    tables: dict[str, list[Any]] = {"orders": [], "reasons": [[]], "answers": []}
    rows: dict[str, dict[str, Any]] = {}
    for name, config, override in questions():
        told = {k: v for k, v in config._asdict().items() if v != Config._field_defaults.get(k)}
        row = rows.setdefault(json.dumps([told, override]), {"config": told, "answers": []})
        if override is not None:
            row["override"] = override
        packed = pack(ask(MACHINES[name], config, override), tables)
        row["answers"].append(place(packed, tables["answers"]))  # machines in their order
    machines = [{"name": name, **machine._asdict()} for name, machine in MACHINES.items()]
    return {"made": made, **about, "machines": machines, **tables, "rows": list(rows.values())}


def place(what: Any, table: list[Any]) -> int:
    """Where `what` stands in `table`; it is put there if it does not."""
    if what not in table:
        table.append(what)
    return table.index(what)


def pack(answer: dict[str, Any], tables: dict[str, list[Any]]) -> list[Any]:
    """An answer as it is kept: who is chosen, the candidates, reasons against each, who is precluded.

    The answer to an override has the first alone, or None and the reasons.
    """
    if "valid" not in answer:
        reasons = answer.get("reasons")
        return [answer["backend"]] if reasons is None else [None, place(reasons, tables["reasons"])]
    refused = answer["refused"]
    order = place(answer["order"], tables["orders"])
    against = [place(refused.get(name, []), tables["reasons"]) for name in answer["order"]]
    return [answer["backend"], order, against, answer["precluded"]]


def unpack(packed: list[Any], matrix: dict[str, Any]) -> dict[str, Any]:
    """The answer that `pack` was given."""
    if len(packed) == 1:
        return {"backend": packed[0]}
    if len(packed) == 2:
        return {"reasons": matrix["reasons"][packed[1]]}
    backend, order, against, precluded = packed
    names = matrix["orders"][order]
    reasons = {name: matrix["reasons"][i] for name, i in zip(names, against, strict=True)}
    return {
        "backend": backend,
        "valid": [name for name in names if not reasons[name]],
        "refused": {name: said for name, said in reasons.items() if said},
        "precluded": precluded,
    }


def save(matrix: dict[str, Any], path: Path) -> None:
    """One line for each machine, answer and row."""
    parts = []
    for key, value in matrix.items():
        text = json.dumps(value)
        if key in ("machines", "orders", "reasons", "answers", "rows"):
            lines = (json.dumps(one, separators=(",", ":")) for one in value)
            text = "[\n" + ",\n".join(lines) + "\n]"
        parts.append(f'"{key}": {text}')
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


# -- Reading and showing.


def read_matrix(path: Path = MATRIX) -> dict[str, Any]:
    """The committed matrix."""
    read: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return read


def cells(matrix: dict[str, Any]) -> Iterator[tuple[str, Any, str | None, dict[str, Any]]]:
    """A machine's name, a `Config`, an override or None, and vLLM's answer, for every cell."""
    answers = [unpack(packed, matrix) for packed in matrix["answers"]]
    for row in matrix["rows"]:
        config = Config(**row["config"])
        # Rows that the machines at the end were not asked are shorter.
        for machine, answer in zip(matrix["machines"], row["answers"], strict=False):
            yield machine["name"], config, row.get("override"), answers[answer]


def asked_for(texts: list[str]) -> dict[str, list[Any]]:
    """`NAME=VALUE,VALUE` as the values wanted of a field of `Config`; `NAME=` wants any, an empty list."""
    wanted: dict[str, list[Any]] = {}
    for text in texts:
        name, _, values = text.partition("=")
        if name not in Config._fields:
            raise SystemExit(f"{text!r}: {name!r} is none of {', '.join(Config._fields)}")
        wanted[name] = [_literal(value) for value in values.split(",") if value]
    return wanted


def _literal(text: str) -> Any:
    return ast.literal_eval(text) if text in ("None", "True", "False") or text.isdigit() else text


def label(config: Any, known: Collection[str]) -> str:
    """What is out of the ordinary in `config`, without the fields that are `known`."""
    always = ("head_size", "dtype", "kv_cache_dtype")
    told = {
        k: v for k, v in config._asdict().items() if k in always or v != Config._field_defaults[k]
    }
    return ", ".join(f"{k}={v}" for k, v in told.items() if k not in known) or "as asked"


def said(answer: dict[str, Any]) -> str:
    """One word for an answer."""
    return "refused" if "reasons" in answer else answer["backend"] or "none"


def why(answer: dict[str, Any]) -> Iterator[str]:
    """What vLLM says beside the name."""
    if "reasons" in answer:
        yield f"refused: {answer['reasons']}"
    for name, reasons in answer.get("refused", {}).items():
        yield f"{name}: {', '.join(reasons)}"
    if len(answer.get("valid", ())) > 1:
        yield f"would do as well: {', '.join(answer['valid'][1:])}"
    if answer.get("precluded"):
        yield f"warning: --block-size precluded {', '.join(answer['precluded'])}"


def predicted(lab: ModuleType, machine: Any, config: Any, override: str | None) -> dict[str, Any]:
    """What `lab.select` says, in the form of vLLM's answers."""
    try:
        choice = lab.select(config, machine, override)
    except lab.facts.InvalidOverrideError as error:
        return {"reasons": error.reasons}
    except lab.facts.NoBackendError as error:
        return {"backend": None, "valid": [], "refused": error.refused, "precluded": []}
    if override is not None:
        return {"backend": choice.backend}
    return {
        "backend": choice.backend,
        "valid": list(choice.valid),
        "refused": {name: list(reasons) for name, reasons in choice.refused.items()},
        "precluded": list(choice.precluded),
    }


def same(theirs: dict[str, Any], yours: dict[str, Any]) -> bool:
    """Whether two answers are equal, the order of the refused included."""
    order = [list(answer.get("refused", ())) for answer in (theirs, yours)]
    return theirs == yours and order[0] == order[1]


def show(rows: list[dict[str, Any]], on: list[str], reasons: bool) -> None:
    """A line for each row, and with `reasons` what is said beside it."""
    width = max(len(row["label"]) for row in rows)
    print(f"{'':{width}}  {'  '.join(f'{name:14}' for name in on)}".rstrip())
    for row in rows:
        words = (f"{said(row[name]) if name in row else '':{max(14, len(name))}}" for name in on)
        print(f"{row['label']:{width}}  {'  '.join(words)}".rstrip())
        for name in on if reasons else []:
            for line in why(row.get(name, {})):
                print(f"  {name}, {line}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("fields", nargs="*", metavar="NAME=VALUE", help="fields of Config")
    parser.add_argument("--usual", action="store_true", help="all other fields as they usually are")
    parser.add_argument(
        "--on", nargs="+", default=list(GENERATIONS), choices=MACHINES, metavar="MACHINE"
    )
    parser.add_argument("--override", help="somebody asks for this backend")
    parser.add_argument("--why", action="store_true", help="and why others were refused")
    parser.add_argument("--impl", help="lay this beside it: solution, starter or a file")
    parser.add_argument("--live", action="store_true", help="ask vLLM for one Config")
    parser.add_argument("--save", nargs="?", const=MATRIX, type=Path, help="ask vLLM for all")
    args = parser.parse_args()
    if args.save:
        save(ask_vllm(), args.save)
        return
    wanted = asked_for(args.fields)
    found: list[tuple[str, Any, dict[str, Any]]] = []
    if args.live:
        config = Config(**({"head_size": 128} | {k: v[0] for k, v in wanted.items() if v}))
        ask, _ = load_module(HERE / "asking.py", "lab_04_04_asking").asker(MACHINES)
        for name in args.on:
            answer = ask(MACHINES[name], config, args.override)
            answer.pop("order", None)  # of use to `pack` only
            found.append((name, config, answer))
    else:
        for name, config, override, answer in cells(read_matrix()):
            fits = all(not v or getattr(config, k) in v for k, v in wanted.items())
            usual = not args.usual or config == Config(
                **{"head_size": 128, **{k: getattr(config, k) for k in wanted}}
            )
            if fits and usual and override == args.override and name in args.on:
                found.append((name, config, answer))
    if not found:
        raise SystemExit("no row of the matrix is like that; --live asks vLLM itself")
    known = {k for k, v in wanted.items() if len(v) == 1}
    if args.usual:
        known |= set(Config._fields) - wanted.keys()
    rows: dict[Any, dict[str, Any]] = {}
    for name, config, answer in found:
        one = rows.setdefault(config, {"label": label(config, known)})
        one[name] = answer
    show(list(rows.values()), args.on, args.why)
    if args.impl:
        compare(args.impl, found, args.override)


def compare(impl: str, found: list[tuple[str, Any, dict[str, Any]]], override: str | None) -> None:
    """The cells in which `impl` says something else."""
    named = {"solution": HERE / "solution.py", "starter": HERE / "starter.py"}
    lab = load_module(named.get(impl, Path(impl)), "lab_04_04_compared")
    wrong = 0
    for name, config, answer in found:
        yours = predicted(lab, MACHINES[name], config, override)
        if not same(answer, yours):
            wrong += 1
            print(f"{name}, {label(config, ())}:")
            for key in {**answer, **yours}:
                if answer.get(key) != yours.get(key):
                    print(f"  {key}: vLLM {answer.get(key)}, you {yours.get(key)}")
    print(f"{len(found)} cells, {wrong} not the same")


if __name__ == "__main__":
    run_script(main)
