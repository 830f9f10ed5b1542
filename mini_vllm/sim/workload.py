"""The requests of a simulated run, made one at a time.

There is no text. A token is a number that stands for some content, and only equality counts: two
prompts share a block where their numbers agree from the start. So a request's own part is one number,
repeated, that no other request has; a shared prefix is a number that its group has in common.

Files are those that vLLM's benchmarks read (`CustomDataset`, `BurstGPTDataset`), and a table of lengths.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mini_vllm.sim.lengths import CHUNK, MOST_TOKENS, Lengths
from mini_vllm.utils.untrusted import decode, parse_json, read_bytes, shorten_repr

_PREFIX, _OWN = 1_000, 1_000_000
"""Numbers from which shared prefixes, and requests, are counted."""
MOST_PREFIXES = _OWN - _PREFIX


@dataclass(slots=True)
class SimRequest:
    """A request to come: at `arrival` seconds, with `prompt` token numbers, for `max_tokens` tokens."""

    request_id: str
    arrival: float
    prompt: list[int]
    max_tokens: int
    priority: int = 0


@dataclass(frozen=True)
class Row:
    """A line of a dataset file; `arrival` in seconds from the first line's, None if it has no time."""

    prompt_len: int
    output_len: int
    arrival: float | None = None
    prompt: tuple[int, ...] | None = None


def random_requests(
    arrivals: Iterator[float],
    input_len: Lengths,
    output_len: Lengths,
    prefix_len: int = 0,
    num_prefixes: int = 1,
    seed: int = 0,
) -> Iterator[SimRequest]:
    """Requests with random lengths, one for each arrival.

    Args:
        prefix_len: tokens in front of each prompt that it shares with others, beyond `input_len`, as
            in vLLM's random dataset (`vllm/benchmarks/datasets/datasets.py:532 RandomDataset`).
        num_prefixes: how many such prefixes; each request draws its own evenly.

    Raises ValueError for a negative length, or a number of prefixes that is not 1 to `MOST_PREFIXES`.
    """
    if not 0 <= prefix_len <= MOST_TOKENS:
        raise ValueError(
            f"prefix_len must be from 0 to {MOST_TOKENS}, got {shorten_repr(prefix_len)}"
        )
    if not 1 <= num_prefixes <= MOST_PREFIXES:
        raise ValueError(
            f"num_prefixes must be 1 to {MOST_PREFIXES}, got {shorten_repr(num_prefixes)}"
        )

    def make() -> Iterator[SimRequest]:
        rng = np.random.default_rng([seed, 2])
        prompts: list[int] = []
        for index, arrival in enumerate(arrivals):
            at = index % CHUNK
            if at == 0:
                prompts = input_len.draw(rng, CHUNK)
                outputs = output_len.draw(rng, CHUNK)
                groups = rng.integers(num_prefixes, size=CHUNK).tolist()
            own = [_OWN + index] * prompts[at]
            prompt = [_PREFIX + groups[at]] * prefix_len + own if prefix_len else own
            yield SimRequest(str(index), arrival, prompt, outputs[at])

    return make()


def dataset_requests(
    rows: Sequence[Row], num_prompts: int, arrivals: Iterator[float] | None = None, seed: int = 0
) -> Iterator[SimRequest]:
    """`num_prompts` requests from a file's rows.

    With `arrivals` the rows come shuffled, and shuffled anew whenever all have been used, as a load
    test wants them. Without, they come in the file's order at the file's times.

    Raises ValueError if there are no rows, or, without `arrivals`, too few of them or no times.
    """
    if not rows:
        raise ValueError("the dataset has no rows")
    if arrivals is None:
        if num_prompts > len(rows):
            raise ValueError(f"num_prompts is {num_prompts}, but the file has {len(rows)} rows")
        if any(row.arrival is None for row in rows):
            raise ValueError("the file has no times; give a request rate")

    def order() -> Iterator[tuple[Row, float]]:
        if arrivals is None:
            for row in sorted(rows[:num_prompts], key=lambda row: row.arrival or 0.0):
                yield row, row.arrival or 0.0
            return
        rng = np.random.default_rng([seed, 3])
        shuffled: list[int] = []
        for arrival in arrivals:
            if not shuffled:
                shuffled = rng.permutation(len(rows)).tolist()
            yield rows[shuffled.pop()], arrival

    def make() -> Iterator[SimRequest]:
        for index, (row, arrival) in enumerate(order()):
            own = [_OWN + index] * row.prompt_len
            prompt = list(row.prompt) if row.prompt is not None else own
            yield SimRequest(str(index), arrival, prompt, row.output_len)

    return make()


def read_dataset(path: Path, encode: Callable[[str], list[int]] | None = None) -> list[Row]:
    """The rows of a file that vLLM's benchmarks read, or of a table of lengths. By its ending:

    * `.jsonl`, `{"prompt": text, "output_tokens": N}` a line
      (`vllm/benchmarks/datasets/datasets.py:2186 CustomDataset`). The text is tokenized, without a
      chat template, so prompts that begin alike share blocks.
    * `.csv` with the columns `Request tokens` and `Response tokens`, BurstGPT's
      (`vllm/benchmarks/datasets/datasets.py:2636 BurstGPTDataset`): as at the pin only GPT-4 rows with
      an answer count. Its `Timestamp`, which vLLM does not read, becomes the arrival.
    * `.csv` with the columns `prompt` and `output`: tokens, nothing else.

    Args:
        encode: text to token ids, for `.jsonl`.

    Raises ValueError naming file, line and rule; OSError.
    """
    try:
        text = decode(read_bytes(path))
        if path.suffix == ".jsonl":
            return _read_jsonl(text, encode)
        if path.suffix == ".csv":
            return _read_csv(text)
        raise ValueError("a dataset ends in .jsonl or .csv")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _read_jsonl(text: str, encode: Callable[[str], list[int]] | None) -> list[Row]:
    if encode is None:
        raise ValueError("prompts of text need a tokenizer, and none was given")
    rows = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            item = parse_json(line)
            if not isinstance(item, dict):
                raise ValueError(f"must be an object, got {shorten_repr(item)}")
            for key in ("prompt", "output_tokens"):
                if key not in item:
                    raise ValueError(f"has no {key!r}")
            if not isinstance(item["prompt"], str):
                raise ValueError(f"'prompt' must be a text, got {shorten_repr(item['prompt'])}")
            output_len = _length("output_tokens", item["output_tokens"])
            tokens = tuple(encode(item["prompt"]))
            rows.append(Row(_length("prompt", len(tokens)), output_len, prompt=tokens))
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error
    return rows


_BURST_GPT = ("Request tokens", "Response tokens")
_TABLE = ("prompt", "output")


def _read_csv(text: str) -> list[Row]:
    reader = csv.DictReader(io.StringIO(text))
    try:
        names = set(reader.fieldnames or ())
        if set(_BURST_GPT) <= names:
            columns = _BURST_GPT
        elif set(_TABLE) <= names:
            columns = _TABLE
        else:
            wanted = " or ".join(" and ".join(map(repr, c)) for c in (_TABLE, _BURST_GPT))
            raise ValueError(f"the first line must name the columns {wanted}")
        rows: list[Row] = []
        begin: float | None = None
        for line in reader:
            try:
                if columns == _BURST_GPT and (
                    line.get("Model", "GPT-4") != "GPT-4" or line["Response tokens"] == "0"
                ):
                    continue
                lengths = [_length(name, line[name]) for name in columns]
                time = _time(line["Timestamp"]) if "Timestamp" in names else None
                begin = time if begin is None else begin
                arrival = None if time is None or begin is None else time - begin
                if arrival is not None and arrival < 0:
                    raise ValueError(f"Timestamp {time} is before the first row's, {begin}")
                rows.append(Row(lengths[0], lengths[1], arrival))
            except ValueError as error:
                raise ValueError(f"line {reader.line_num}: {error}") from error
    except csv.Error as error:
        raise ValueError(f"after line {reader.line_num}: not CSV: {error}") from error
    return rows


def _length(name: str, value: object) -> int:
    try:
        length = int(value) if isinstance(value, str) else value
    except ValueError:
        length = None
    if type(length) is not int or not 1 <= length <= MOST_TOKENS:
        raise ValueError(
            f"{name!r} must be a whole number of at least 1, got {shorten_repr(value)}"
        )
    return length


def _time(value: object) -> float:
    try:
        time = float(str(value))
    except ValueError:
        time = float("nan")
    if not abs(time) < 1e15:  # so that nan is refused too
        raise ValueError(f"'Timestamp' must be a number of seconds, got {shorten_repr(value)}")
    return time
