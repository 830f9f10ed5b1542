"""One grid of questions about CUDA graphs, answered by `mini_vllm.cudagraph` and by vLLM's own code.

    python -m tests.engine.helpers.cudagraph_grid            asks vLLM, says where mini_vllm differs
    python -m tests.engine.helpers.cudagraph_grid --record   keeps it: tests/golden/cudagraph-0.22.1.json.gz

Three kinds of questions: a ladder of sizes, the mode that an attention backend leaves (with its ladder), and
a table, what a step of 1, 2, … 1,024 tokens runs as, uniform or not, with FULL allowed or not. An answer is
a text, the same for both sides; of an error only that there is one.

vLLM's side is `VllmConfig._set_cudagraph_sizes`, `CompilationConfig.resolve_cudagraph_mode_and_sizes` and
`CudagraphDispatcher`, unchanged. They look at a handful of fields, which a plain namespace gives them; that a
whole `VllmConfig` says the same, lab 05-03's test shows.
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import itertools
import json
import logging
import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from mini_vllm.cudagraph import (
    AttentionCGSupport,
    CudagraphDispatcher,
    CUDAGraphMode,
    adjust_cudagraph_sizes_for_spec_decode,
    cudagraph_capture_sizes,
    resolve_cudagraph_mode,
)

RECORD = Path(__file__).resolve().parents[2] / "golden" / "cudagraph-0.22.1.json.gz"
COMMAND = "python -m tests.engine.helpers.cudagraph_grid --record"
MODES = tuple(mode.name for mode in CUDAGraphMode)
SUPPORTS = tuple(support.name for support in AttentionCGSupport)
MOST_TOKENS = 1024
ROWS = tuple(itertools.product((False, True), ((), ("FULL",))))
"""The four rows of a table: uniform or not, and the modes that are forbidden."""
CELLS = len(ROWS) * MOST_TOKENS


class Ladder(NamedTuple):
    """What the sizes depend on."""

    max_num_seqs: int
    max_num_batched_tokens: int
    query_len: int = 1
    performance_mode: str = "balanced"
    maximum: int | None = None
    sizes: tuple[int, ...] | None = None


SEQS = (1, 2, 3, 4, 5, 7, 8, 10, 16, 17, 20, 21, 32, 33, 40, 48, 64, 100, 127, 128, 129, 136, 200, 250, 255,
        256, 257, 300, 500, 512, 513, 1000, 1024)  # fmt: skip
TOKENS = (1, 7, 40, 42, 100, 255, 256, 257, 300, 511, 512, 513, 1000, 2048, 8192, 16384)
QUERY_LENS = (1, 2, 3, 4, 5, 8)
MAXIMA = (
    1,
    2,
    3,
    5,
    7,
    8,
    9,
    31,
    32,
    40,
    42,
    100,
    255,
    256,
    257,
    264,
    272,
    500,
    512,
    520,
    1000,
    2048,
    9000,
)
CUSTOM = ((1,), (7,), (8, 4, 2, 1), (1, 2, 4, 42), (5, 5, 3), (6, 42, 1000), (3, 10, 600, 700), (9000,),
          (256, 20000), tuple(range(1, 65)), (4, 8, 12, 100))  # fmt: skip


def ladders() -> Iterator[Ladder]:
    """Every question about sizes."""
    for seqs, tokens, query_len, performance in itertools.product(
        SEQS, TOKENS, QUERY_LENS, ("balanced", "interactivity", "throughput")
    ):
        yield Ladder(seqs, tokens, query_len, performance)
    for seqs, tokens, performance, maximum in itertools.product(
        (1, 8, 33, 256, 1024),
        (1, 42, 256, 300, 2048, 8192),
        ("balanced", "interactivity"),
        MAXIMA,
    ):
        yield Ladder(seqs, tokens, 1, performance, maximum)
    for tokens, sizes in itertools.product((1, 42, 300, 8192), CUSTOM):
        for maximum in (None, 42, max(sizes), max(sizes) + 1, *MAXIMA[::5]):
            yield Ladder(256, tokens, 1, "balanced", maximum, sizes)


class Resolve(NamedTuple):
    """What the mode depends on."""

    ladder: Ladder
    mode: str
    support: str
    pieces: bool  # the model is split at attention


def resolves() -> Iterator[Resolve]:
    """Every question about the mode that is left."""
    some = [
        Ladder(256, 8192, query_len, "balanced", None, sizes)
        for query_len in QUERY_LENS
        for sizes in (None, *CUSTOM)
    ]
    some += [Ladder(seqs, 8192, query_len) for seqs in (1, 3, 33) for query_len in QUERY_LENS]
    for ladder, mode, support, pieces in itertools.product(some, MODES, SUPPORTS, (True, False)):
        yield Resolve(ladder, mode, support, pieces)


class Table(NamedTuple):
    """What the dispatch of all steps depends on, where attention bears everything."""

    ladder: Ladder
    mode: str


def tables() -> Iterator[Table]:
    """Every question about dispatch."""
    plain = itertools.product(SEQS, (42, 300, 2048, 8192), (1, 2, 4))
    some = [Ladder(*one) for one in plain]
    some += [Ladder(seqs, 8192, 1, "interactivity") for seqs in SEQS]
    some += [Ladder(256, 8192, 1, "balanced", None, sizes) for sizes in CUSTOM]
    for ladder, mode in itertools.product(some, MODES):
        yield Table(ladder, mode)


# -- Answers.


class Steps(NamedTuple):
    """One side: how it computes a ladder, a mode with its ladder, and a dispatcher's `dispatch`."""

    sizes: Callable[[Ladder], list[int]]
    resolve: Callable[[Resolve], tuple[str, list[int]]]
    dispatch: Callable[[Table], Callable[[int, bool, tuple[str, ...]], tuple[Any, Any]]]


def answer(side: Steps, question: Ladder | Resolve | Table) -> str:
    """The answer as a text."""
    try:
        if isinstance(question, Ladder):
            return " ".join(map(str, side.sizes(question)))
        if isinstance(question, Resolve):
            mode, sizes = side.resolve(question)
            return " ".join([mode, *map(str, sizes)])
        dispatch = side.dispatch(question)
    except (ValueError, AssertionError):
        return "error"
    return "; ".join(_row(dispatch, *row) for row in ROWS)


def _row(dispatch: Any, uniform: bool, invalid: tuple[str, ...]) -> str:
    """1,024 cells in one line: `<=4 FULL 4 tokens 1 requests` stands for all after the entry before."""
    runs: list[list[Any]] = []
    for num_tokens in range(1, MOST_TOKENS + 1):
        try:
            mode, key = dispatch(num_tokens, uniform, invalid)
        except (ValueError, AssertionError):
            said = "error"
        else:
            kind = " uniform" if key.uniform else ""
            shape = f"{key.num_tokens}/{key.num_reqs}{kind}"
            exact = shape == f"{num_tokens}/None"
            said = "NONE" if mode.name == "NONE" and exact else f"{mode.name} {shape}"
        if runs and runs[-1][1] == said:
            runs[-1][0] = num_tokens
        else:
            runs.append([num_tokens, said])
    return ", ".join(f"{end} {said}" for end, said in runs)


def mini() -> Steps:
    """`mini_vllm.cudagraph`."""

    def sizes(ladder: Ladder) -> list[int]:
        return cudagraph_capture_sizes(
            ladder.max_num_seqs,
            ladder.max_num_batched_tokens,
            max_cudagraph_capture_size=ladder.maximum,
            cudagraph_capture_sizes=ladder.sizes,
            uniform_decode_query_len=ladder.query_len,
            performance_mode=ladder.performance_mode,
        )

    def resolve(one: Resolve) -> tuple[str, list[int]]:
        mode = resolve_cudagraph_mode(
            CUDAGraphMode[one.mode],
            AttentionCGSupport[one.support],
            uniform_decode_query_len=one.ladder.query_len,
            is_attention_compiled_piecewise=one.pieces,
        )
        rungs = sizes(one.ladder)
        if mode.decode_mode() is CUDAGraphMode.FULL:
            rungs = adjust_cudagraph_sizes_for_spec_decode(rungs, one.ladder.query_len)
        return mode.name, rungs

    def dispatch(table: Table) -> Any:
        mode, rungs = resolve(Resolve(table.ladder, table.mode, "ALWAYS", True))
        made = CudagraphDispatcher(
            CUDAGraphMode[mode], rungs, table.ladder.max_num_seqs, table.ladder.query_len
        )
        forbidden = {row[1]: {CUDAGraphMode[name] for name in row[1]} for row in ROWS}
        return lambda num_tokens, uniform, invalid: made.dispatch(
            num_tokens, uniform, forbidden[invalid]
        )

    return Steps(sizes, resolve, dispatch)


def vllm() -> Steps:
    """vLLM's own methods, on a namespace with the fields that they read."""
    from types import SimpleNamespace

    from vllm.config import CompilationConfig, VllmConfig
    from vllm.config import CUDAGraphMode as Theirs
    from vllm.config.compilation import CompilationMode
    from vllm.v1.attention.backend import AttentionCGSupport as TheirSupport
    from vllm.v1.cudagraph_dispatcher import CudagraphDispatcher as TheirDispatcher

    def configure(ladder: Ladder, mode: str = "FULL_AND_PIECEWISE") -> Any:
        drafts = ladder.query_len - 1
        named: dict[str, Any] = {"max_cudagraph_capture_size": ladder.maximum}
        if ladder.sizes is not None:
            named["cudagraph_capture_sizes"] = list(ladder.sizes)
        compilation = CompilationConfig(
            mode=CompilationMode(3),  # the default on a GPU: split at attention
            cudagraph_mode=Theirs[mode],
            **{name: value for name, value in named.items() if value is not None},
        )
        compilation.set_splitting_ops_for_v1(all2all_backend="naive")
        config = SimpleNamespace(
            model_config=SimpleNamespace(enforce_eager=False),
            compilation_config=compilation,
            speculative_config=SimpleNamespace(num_speculative_tokens=drafts) if drafts else None,
            lora_config=None,
            performance_mode=ladder.performance_mode,
            parallel_config=SimpleNamespace(tensor_parallel_size=1),
            scheduler_config=SimpleNamespace(
                max_num_seqs=ladder.max_num_seqs,
                max_num_batched_tokens=ladder.max_num_batched_tokens,
            ),
        )
        VllmConfig._set_cudagraph_sizes(config)
        return config

    def resolve(one: Resolve) -> tuple[str, list[int]]:
        compilation = configure(one.ladder).compilation_config
        # what an earlier stage would do to the mode, without pieces, is not asked about here
        compilation.cudagraph_mode = Theirs[one.mode]
        if not one.pieces:
            compilation.splitting_ops = []
        mode = compilation.resolve_cudagraph_mode_and_sizes(
            TheirSupport[one.support], "ANY", one.ladder.query_len
        )
        return mode.name, list(compilation.cudagraph_capture_sizes)

    def dispatch(table: Table) -> Any:
        config = configure(table.ladder, table.mode)
        compilation = config.compilation_config
        if table.mode == "NONE":  # then no sizes are computed
            assert compilation.cudagraph_capture_sizes == []
        made = TheirDispatcher(config)
        mode = compilation.resolve_cudagraph_mode_and_sizes(
            TheirSupport.ALWAYS, None, table.ladder.query_len
        )
        made.initialize_cudagraph_keys(mode, table.ladder.query_len)
        forbidden = {row[1]: {Theirs[name] for name in row[1]} for row in ROWS}
        return lambda num_tokens, uniform, invalid: made.dispatch(
            num_tokens, uniform, invalid_modes=forbidden[invalid]
        )

    return Steps(
        lambda ladder: list(configure(ladder).compilation_config.cudagraph_capture_sizes),
        resolve,
        dispatch,
    )


def questions() -> dict[str, list[Any]]:
    """All of them, by kind."""
    return {"ladders": list(ladders()), "resolves": list(resolves()), "tables": list(tables())}


def count(asked: dict[str, list[Any]]) -> int:
    """Cells: a ladder is one, a mode with its ladder is one, a table has 4,096."""
    return len(asked["ladders"]) + len(asked["resolves"]) + CELLS * len(asked["tables"])


def differences(asked: dict[str, list[Any]], theirs: dict[str, list[str]]) -> list[str]:
    """Where `mini_vllm` says something else, as lines to read."""
    side, found = mini(), []
    for kind, some in asked.items():
        for question, wanted in zip(some, theirs[kind], strict=True):
            ours = answer(side, question)
            if ours != wanted:
                found.append(f"{question}\n  vLLM      {wanted}\n  mini_vllm {ours}")
    return found


# -- The record.


def save(theirs: dict[str, list[str]], path: Path = RECORD) -> None:
    """Each answer once, and for every question which it is; the questions are code."""
    import vllm

    texts = list(dict.fromkeys(text for some in theirs.values() for text in some))
    place = {text: i for i, text in enumerate(texts)}
    made = {
        "command": COMMAND,
        "date": datetime.date.today().isoformat(),
        "versions": {"vllm": vllm.__version__.split("+")[0], "python": platform.python_version()},
    }
    kept = {"made": made, "texts": texts}
    data = json.dumps(kept | {kind: [place[text] for text in theirs[kind]] for kind in theirs})
    path.write_bytes(gzip.compress(data.encode(), mtime=0))


def load(path: Path = RECORD) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """How it was made, and vLLM's answers by kind."""
    kept = json.loads(gzip.decompress(path.read_bytes()))
    made, texts = kept.pop("made"), kept.pop("texts")
    return made, {kind: [texts[i] for i in places] for kind, places in kept.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", action="store_true", help=f"write {RECORD.name}")
    parser.add_argument("--every", type=int, default=1, help="ask this table, and skip as many")
    args = parser.parse_args()
    logging.disable(logging.WARNING)  # thousands of modes are lowered
    side, asked = vllm(), questions()
    asked["tables"] = asked["tables"][:: 1 if args.record else args.every]
    theirs = {kind: [answer(side, one) for one in some] for kind, some in asked.items()}
    if args.record:
        save(theirs)
    _, kept = load()
    kept["tables"] = kept["tables"][:: 1 if args.record else args.every]
    changed = sum(a != b for kind in kept for a, b in zip(kept[kind], theirs[kind], strict=True))
    found = differences(asked, theirs)
    print("\n".join(found[:10]))
    print(
        f"{count(asked):,} cells ({', '.join(f'{len(some):,} {kind}' for kind, some in asked.items())}): "
        f"{len(found)} answers differ from mini_vllm's, {changed} from the record"
    )


if __name__ == "__main__":
    main()
