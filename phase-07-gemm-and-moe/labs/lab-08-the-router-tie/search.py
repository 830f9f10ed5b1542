"""Look for a near tie in a router that other requests turn, over the course's own pages, in float32.

    python search.py                 # a tenth of the pages: what is near, and what turns here
    python search.py --replay        # what was recorded; --only 2 shows the second that turned, alone
    python search.py --record        # all pages of phases 00 to 03 (two minutes): writes ties.json

The pages are cut into windows of 256 tokens, and one step of the numpy engine gives every layer's router
logits at each position. Where the second and the third expert are nearer than 1e-5, the window up to there
is put to the engine again, its last token as a decode: alone, beside one other request, and beside three,
these in two casts of equal length. Which ties turn depends on numpy's BLAS, and with it on the processor.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.append(str(ROOT))  # the repository, where it is not installed

from course.learner.labs import load_module  # noqa: E402
from course.learner.stubs import run_script  # noqa: E402
from mini_vllm.layers.fused_moe import layer as moe_layer  # noqa: E402
from mini_vllm.layers.fused_moe.router import fused_topk  # noqa: E402
from mini_vllm.model_loader import load_model  # noqa: E402
from mini_vllm.tokenizer import Tokenizer  # noqa: E402
from mini_vllm.utils.blas import blas_threads  # noqa: E402

Array = NDArray[Any]
MODEL = ROOT / "mini_vllm" / "checkpoints" / "tiny-mixtral"
RECORD = HERE / "ties.json"
COMMAND = f"python {Path(__file__).resolve().relative_to(ROOT)} --record"
WINDOW, SHORTEST, NEAR, GOES_ON = 256, 8, 1e-5, 48
LIMITS = (1.0, 0.1, 0.01, 1e-3, 1e-4, 1e-5, 1e-6)
STEP = 1e-3
"""To which router logits are rounded, to see whether that helps."""
LENGTH = 20
OTHERS = (  # cut to LENGTH tokens each
    "Who waits, and for what? Nobody knows.",
    "A block is freed here, and then another.",
    "the scheduler has a sum of tokens to give",
    "418 + 77 = 495\n12 + 3 = 15\n8 + 901 = 909",
    "QXZ 0x7f [[]] ;;; {}%%$# __ ~~ <<>> @@@@",
)
CASTS: dict[str, tuple[int, ...]] = {
    "alone": (), "beside one": (0,), "beside three": (0, 1, 2), "beside three others": (0, 3, 4),
}  # fmt: skip


class Kitchen:
    """The shipped Mixtral, its steps by hand, and what its routers said and chose in the last of them.

    Attributes:
        logits: float32 `[layers, rows, experts]`.
        chosen: int `[layers, rows, 2]`.
    """

    def __init__(self, folder: Path) -> None:
        [lab] = ROOT.glob("phase-04*/labs/lab-07*/support.py")
        self.steps = load_module(lab, "lab_04_07_support_for_08")
        self.model, self.tokenizer = load_model(folder), Tokenizer.from_folder(folder)
        self._log: list[tuple[Array, Array]] = []
        self._plain = fused_topk

    def __enter__(self) -> Kitchen:
        def tapped(logits: Array, top_k: int, renormalize: bool) -> tuple[Array, Array]:
            weights, ids = self._plain(logits, top_k, renormalize)
            self._log.append((logits.copy(), ids.copy()))
            return weights, ids

        setattr(moe_layer, "fused_topk", tapped)  # noqa: B010
        return self

    def __exit__(self, *_: object) -> None:
        setattr(moe_layer, "fused_topk", self._plain)  # noqa: B010

    @property
    def logits(self) -> Array:
        return np.stack([logits for logits, _ in self._log])

    @property
    def chosen(self) -> Array:
        return np.stack([ids for _, ids in self._log])

    def prefill(self, tokens: list[int]) -> None:
        """One step with all tokens of one request."""
        self._log.clear()
        desk = self.steps.Desk(self.model, -(-len(tokens) // 16))
        desk.step([desk.seat(tokens)])

    def decode(
        self, tokens: list[int], cast: tuple[int, ...], goes_on: int = GOES_ON, lost: bool = False
    ) -> dict[str, Any]:
        """The last token as a decode, beside others; then greedily on, the others too.

        With `lost` the keys and values of one token are gone from the caches, as if its slot had been given
        to somebody else.
        """
        encoded = [self.tokenizer.encode(OTHERS[i], True)[:LENGTH] for i in cast]
        desk = self.steps.Desk(self.model, 64)
        seats = [desk.seat(one, room=GOES_ON + 1) for one in (tokens, *encoded)]
        for seat in seats:  # the prefills one by one, so that only the decode has company
            last = seat.tokens.pop()
            desk.logits([seat])
            seat.tokens.append(last)
        if lost:
            for cache in desk.caches:
                cache[0, 5] = 0
        self._log.clear()
        logits = desk.logits(seats)
        ids = self.chosen
        run: dict[str, Any] = {
            "router": [plain(row[0]) for row in self.logits],
            "experts": ids[:, 0].tolist(),
            "logits": plain(logits[0]),
        }
        text = []
        for _ in range(goes_on):
            for seat, row in zip(seats, logits, strict=True):
                seat.tokens.append(int(row.argmax()))
            text.append(seats[0].tokens[-1])
            logits = desk.logits(seats)
        return run | {"text": self.tokenizer.decode(text)}


def plain(row: Array) -> list[float]:
    """float32 numbers as JSON writes them shortest; as float32 they are the same again."""
    return [float(str(x)) for x in row]


def windows(tokenizer: Tokenizer) -> Iterator[list[int]]:
    """The pages of phases 00 to 03, cut into windows that begin as a prompt does."""
    pages = sorted(ROOT.glob("phase-0[0-3]-*/**/*.md"))
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    bos, *ids = tokenizer.encode(text, True)
    for start in range(0, len(ids) - WINDOW, WINDOW - 1):
        yield [bos, *ids[start : start + WINDOW - 1]]


def gaps(logits: Array) -> Array:
    """How far the second largest is above the third, in the last axis."""
    best = np.sort(logits.astype(np.float64), axis=-1)
    return best[..., -2] - best[..., -3]


def turned(logits: Array, noise: Array) -> int:
    """For how many rows noise changes which two are the largest, lower index first where equal."""
    before, after = (
        np.sort(np.argsort(-x, axis=-1, kind="stable")[..., :2], axis=-1)
        for x in (logits, logits + noise)
    )
    return int((before != after).any(axis=-1).sum())


def survey(
    kitchen: Kitchen, share: float
) -> tuple[dict[str, Any], list[tuple[float, int, list[int]]]]:
    """Router logits of all positions: how near, and what rounding them would change."""
    below = dict.fromkeys(LIMITS, 0)
    near: list[tuple[float, int, list[int]]] = []
    positions, rows, plain, rounded = 0, 0, 0, 0
    rng = np.random.default_rng(0)
    every = list(windows(kitchen.tokenizer))
    for window in every[: round(share * len(every))]:
        kitchen.prefill(window)
        logits = kitchen.logits
        between = gaps(logits)
        positions, rows = positions + len(window), rows + between.size
        for limit in LIMITS:
            below[limit] += int(np.count_nonzero(between < limit))
        exact = logits.astype(np.float64)
        noise = rng.uniform(-NEAR, NEAR, exact.shape)
        plain += turned(exact, noise)
        on_grid = [np.rint(x / STEP) for x in (exact, exact + noise)]
        rounded += turned(on_grid[0], on_grid[1] - on_grid[0])
        for layer, at in np.argwhere(between < NEAR).tolist():
            if at >= SHORTEST:
                near.append((float(between[layer, at]), layer, window[: at + 1]))
    told = {
        "positions": positions, "rows": rows, "below": {str(k): v for k, v in below.items()},
        "turned_by_noise": {"plain": plain, "rounded": rounded},
    }  # fmt: skip
    return told, sorted(near, key=lambda one: one[0])


def search(kitchen: Kitchen, share: float) -> dict[str, Any]:
    """The survey, and what company does to the near ties."""
    told, near = survey(kitchen, share)
    flips: list[dict[str, Any]] = []
    quiet: list[float] = []
    router_noise: list[float] = []
    for gap, layer, tokens in near:
        runs = {name: kitchen.decode(tokens, cast) for name, cast in CASTS.items()}
        alone = runs["alone"]
        sets = {name: [sorted(row) for row in run["experts"]] for name, run in runs.items()}
        for name, run in runs.items():
            if sets[name] == sets["alone"]:
                quiet.append(float(np.abs(np.subtract(run["logits"], alone["logits"])).max()))
                moved = np.abs(np.subtract(run["router"], alone["router"]))
                router_noise.append(float(moved.max()))
        if any(one != sets["alone"] for one in sets.values()):
            text = kitchen.tokenizer.decode(tokens)
            flips.append(
                {"gap": gap, "layer": layer, "tokens": tokens, "prompt": text[-60:], "runs": runs}
            )
    return told | {
        "near": len(near), "nearest": [tokens for _, _, tokens in near[:16]],
        "quiet_logits_move": max(quiet, default=0.0),
        "quiet_router_moves": max(router_noise, default=0.0), "flips": flips,
    }  # fmt: skip


def bits_by_company(kitchen: Kitchen, dense: Path, prompts: int = 100) -> dict[str, int]:
    """Of how many prompts the bits of a decode change with the company, in steps of four rows each."""
    casts = [CASTS["beside three"], CASTS["beside three others"]]
    told = {"prompts": 0, "mixtral": 0, "dense": 0}
    llama = load_model(dense)
    for window in list(windows(kitchen.tokenizer))[:prompts]:
        told["prompts"] += 1
        for name, model in (("mixtral", kitchen.model), ("dense", llama)):
            seen = []
            for cast in casts:
                desk = kitchen.steps.Desk(model, 64)
                others = [kitchen.tokenizer.encode(OTHERS[i], True)[:LENGTH] for i in cast]
                seats = [desk.seat(one) for one in (window, *others)]
                for seat in seats:
                    last = seat.tokens.pop()
                    desk.logits([seat])
                    seat.tokens.append(last)
                seen.append(desk.logits(seats)[0].tobytes())
            told[name] += seen[0] != seen[1]
    return told


def show(found: dict[str, Any]) -> None:
    """What was looked at, and what turns."""
    rows, noise, company = found["rows"], found["turned_by_noise"], found["company"]
    print(
        f"{found['positions']:,} positions, {rows:,} choices. Second and third expert are nearer than"
    )
    for limit, count in found["below"].items():
        print(f"  {float(limit):<7g}{count:>10,}  {1e6 * count / rows:>9,.0f} of a million")
    print(
        f"noise of 1e-05 would turn {noise['plain']}; with logits rounded to 0.001, {noise['rounded']}"
    )
    print(
        f"always four rows, other company: the bits change for {company['mixtral']} prompts of "
        f"{company['prompts']}, in the dense model for {company['dense']}"
    )
    print(
        f"{found['near']} ties nearer than 1e-05, as decodes in company: {len(found['flips'])} turn. "
        f"Where none does,\nrouter logits move by up to {found['quiet_router_moves']:.0e}, the model's by "
        f"up to {found['quiet_logits_move']:.0e}"
    )
    for flip in found["flips"]:
        print()
        show_flip(flip)


def show_flip(flip: dict[str, Any]) -> None:
    """One tie that turned: experts, logits and text in each company."""
    alone = flip["runs"]["alone"]
    print(f"{flip['prompt'][-40:]!r}, layer {flip['layer']}, gap {flip['gap']:.0e}")
    for name, run in flip["runs"].items():
        pairs = list(zip(alone["experts"], run["experts"], strict=True))
        parts = [i for i, (a, b) in enumerate(pairs) if set(a) != set(b)]
        layer = parts[0] if parts else flip["layer"]
        moved = np.abs(np.subtract(run["logits"], alone["logits"])).max()
        print(
            f"  {name:20}layer {layer}: {sorted(run['experts'][layer])}  logits move {moved:5.0e}"
            f"  {run['text'][:28]!r}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--record", action="store_true", help="write ties.json")
    parser.add_argument("--replay", action="store_true", help="read ties.json, compute nothing")
    parser.add_argument(
        "--only", type=int, metavar="N", help="of what was recorded the N-th that turned"
    )
    args = parser.parse_args()
    if args.only:
        show_flip(json.loads(RECORD.read_text(encoding="utf-8"))["flips"][args.only - 1])
        return
    if args.replay:
        show(json.loads(RECORD.read_text(encoding="utf-8")))
        return
    with blas_threads(1), Kitchen(args.model) as kitchen:
        found = search(kitchen, 1.0 if args.record else 0.1)
        found["company"] = bits_by_company(kitchen, MODEL.parent / "tiny-llama")
        first = next(windows(kitchen.tokenizer))[:60]
        found["lost"] = [kitchen.decode(first, (), 0, lost) for lost in (False, True)]
    if args.record:
        [capture] = ROOT.glob("phase-04*/labs/lab-07*/capture.py")
        weights = hashlib.sha256((args.model / "model.safetensors").read_bytes()).hexdigest()
        made = {
            "command": COMMAND, "date": datetime.date.today().isoformat(), "weights": weights,
            "hardware": load_module(capture, "lab_04_07_capture_for_08").processor(),
            "versions": {"python": platform.python_version(), "numpy": np.__version__},
        }  # fmt: skip
        found = made | found
        RECORD.write_text(json.dumps(found) + "\n", encoding="utf-8")
    show(found)


if __name__ == "__main__":
    run_script(main)
