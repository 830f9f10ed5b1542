"""Rows of `odd_inputs/*.jsonl`, made into files and arguments.

A row is one JSON object on one line. The file that it stands in says what is odd:

    config, generation_config, tokenizer, tokenizer_config, index    a JSON file of a checkpoint
    safetensors          its weights
    files                any file of a checkpoint, in the file system's ways
    engine               settings, as Python gives them: `settings` of `EngineConfig` (with `model`:
                         of `LLM`), or `params` of `SamplingParams`
    argv                 the command line
    prompts              a file of prompts
    scenario, trace      what `mini-vllm trace` reads
    simulate             what `mini-vllm simulate` is told, and reads: a table, texts, a cost
    quantize             what `mini-vllm quantize` is told, and its file of texts

Keys of a row: `name`; what is done (below); `says`, words that the error must hold, or `runs`: true;
`status` of the command (2; 0 where it runs); `lines` of errors (1); `argv`, in place of the usual;
`needs` and `lacks`, packages; `python`: only Python reads that, not the command; `answers`, the prompts
that are answered all the same; `process`: run it as a process of its own, with little memory, `stdin`
(hex), `stdout` (a path, or "closed") and `env`.

What is done to the good file, in this order, any of:

    text, hex            the whole content; `text` may be a list of pieces, `[piece, times]` repeated
    set                  [[path, value], ...] with `/` between keys; {"$json": text} is that very JSON,
                         {"$text": pieces} a long text, {"$list": [list, times]} a long list
    drop                 [path, ...]
    encode, bom          another encoding; a byte order mark in front
    cut                  keep so many bytes
    gzip                 compress it; a number: so many members of a MiB of zeros each instead
    be                   missing, empty, folder, loop, dangling, unreadable, endless, or a size in
                         bytes, all of them a hole
    file                 which file; for a trace `base` says what is good: scenario, data, page, golden
"""

from __future__ import annotations

import gzip
import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent / "odd_inputs"
GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "scheduler-0.22.1.jsonl.gz"
SCENARIO: dict[str, Any] = {
    "scenario": 1,
    "title": "A long prompt",
    "config": {"num_gpu_blocks": 24, "max_num_batched_tokens": 32, "max_num_seqs": 4},
    "requests": [
        {"id": "A", "prompt": "The KV cache", "max_tokens": 2},
        {"id": "B", "prompt": 40, "step": 2, "max_tokens": 2},
        {"id": "C", "prompt": 20, "shared": 16, "step": 2, "max_tokens": 6, "abort": 4},
    ],
}


def rows(door: str) -> list[Any]:
    """The rows of one file, as parameters of a test."""
    found = []
    for line in (HERE / f"{door}.jsonl").read_text(encoding="utf-8").split("\n"):
        if line.strip():
            row = json.loads(line)
            found.append(pytest.param(row | {"door": door}, id=f"{door}: {row['name']}"))
    return found


def joined(pieces: Any) -> str:
    if isinstance(pieces, str):
        return pieces
    return "".join(p if isinstance(p, str) else p[0] * p[1] for p in pieces)


def value_of(given: Any) -> Any:
    """A row's value, with `$text` and `$list` made long."""
    if isinstance(given, dict) and "$text" in given:
        return joined(given["$text"])
    if isinstance(given, dict) and "$list" in given:
        return given["$list"][0] * given["$list"][1]
    if isinstance(given, dict):
        return {key: value_of(value) for key, value in given.items()}
    return [value_of(item) for item in given] if isinstance(given, list) else given


class _Literal:
    """JSON that Python's own `dumps` would not write."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def hide(self, given: Any) -> Any:
        if isinstance(given, dict) and "$json" in given:
            name = f"literal-{len(self.texts)}"
            self.texts[f'"{name}"'] = joined(given["$json"])
            return name
        return value_of(given)

    def dumps(self, value: Any) -> str:
        text = json.dumps(value)
        for name, literal in self.texts.items():
            text = text.replace(name, literal)
        return text


def _walk(value: Any, path: str) -> tuple[Any, Any]:
    *way, last = [int(p) if p.isdigit() else p for p in path.split("/")]
    for key in way:
        value = value[key]
    return value, last


def content(row: dict[str, Any], good: bytes) -> bytes:
    """The bytes of the odd file."""
    if isinstance(row.get("gzip"), int) and not isinstance(row["gzip"], bool):
        return gzip.compress(bytes(1024**2)) * row["gzip"]
    data = good
    if "text" in row:
        data = joined(row["text"]).encode("utf-8", "surrogatepass")
    if "hex" in row:
        data = bytes.fromhex(row["hex"])
    if "set" in row or "drop" in row:
        value, literal = json.loads(data), _Literal()
        for path, new in row.get("set", ()):
            holder, key = _walk(value, path)
            holder[key] = literal.hide(new)
        for path in row.get("drop", ()):
            holder, key = _walk(value, path)
            del holder[key]
        data = literal.dumps(value).encode()
    if "encode" in row:
        data = data.decode().encode(row["encode"])
    if row.get("bom"):
        data = b"\xef\xbb\xbf" + data
    if row.get("gzip") is True:
        data = gzip.compress(data)
    return data[: row["cut"]] if "cut" in row else data


def put(row: dict[str, Any], path: Path, good: bytes) -> None:
    """Make the odd file at `path`, or skip where this machine cannot have one like it."""
    be = row.get("be")
    path.unlink(missing_ok=True)
    if be is None:
        path.write_bytes(content(row, good))
    elif be == "empty":
        path.write_bytes(b"")
    elif be == "folder":
        path.mkdir()
    elif be in ("loop", "dangling", "endless"):
        target = {"loop": path.name, "dangling": "nowhere", "endless": "/dev/zero"}[be]
        path.symlink_to(target)
    elif be == "fifo":
        os.mkfifo(path)
    elif be == "unreadable":
        path.write_bytes(good)
        path.chmod(0)
        if os.access(path, os.R_OK):
            pytest.skip("nothing is unreadable for root")
    elif isinstance(be, int):
        path.touch()
        os.truncate(path, be)
    else:
        assert be == "missing", f"{row['name']}: be {be!r}?"


@cache
def good_trace(base: str) -> tuple[str, bytes]:
    """Name and content of a good file for `mini-vllm trace`."""
    from mini_vllm.trace.data import to_data
    from mini_vllm.trace.page import to_html
    from mini_vllm.trace.scenario import read_scenario, run_scenario

    if base == "scenario":
        return "scenario.json", json.dumps(SCENARIO).encode()
    if base == "golden":
        with gzip.open(GOLDEN) as file:
            return "golden.jsonl", file.readline()
    trace = run_scenario(read_scenario(SCENARIO), timed=False)
    if base == "page":
        return "page.html", to_html(trace).encode()
    return "run.trace.json", json.dumps(to_data(trace)).encode()
