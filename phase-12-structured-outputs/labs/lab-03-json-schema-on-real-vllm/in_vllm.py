"""Given: the recording, and your functions beside real vLLM. Needs vLLM 0.22.1; `course grade` does not.

    python in_vllm.py [solution | starter]   what vLLM does now, and what your functions say
    python in_vllm.py --record               write recorded.json, which the tests read

Each of three engines is started in a process of its own, with the tiny Llama on the CPU.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from course.learner.labs import load_module, need_vllm

HERE = Path(__file__).resolve().parent
support = load_module(HERE / "support.py", "lab_12_03_support")

SETTINGS = {
    "auto": {"backend": "auto"},
    "xgrammar": {"backend": "xgrammar", "disable_any_whitespace": True},
    "guidance": {"backend": "guidance", "disable_any_whitespace": True},
}
END = 2
PROMPT = "The scheduler"
FAR = 10**6
CAP = 130
"""A document longer than this has no longest one: of those with one, none is."""


# ---- in the engine's process -----------------------------------------------------------------------


def start(setting: str) -> Any:
    """An engine in this process."""
    from vllm import LLM
    from vllm.utils import torch_utils
    from vllm.v1.executor import UniProcExecutor

    from mini_vllm.config.engine import DEFAULT_MODEL

    torch_utils.async_tensor_h2d.__defaults__ = (False,)  # else it pins memory, which takes a GPU
    return LLM(
        model=str(DEFAULT_MODEL), dtype="float32", enforce_eager=True, block_size=16, max_model_len=1024,
        max_num_seqs=8, async_scheduling=False, distributed_executor_backend=UniProcExecutor,
        structured_outputs_config=SETTINGS[setting],
    )  # fmt: skip


def manager_of(llm: Any) -> Any:
    return llm.llm_engine.engine_core.engine_core.structured_output_manager


def ask(llm: Any, asked: Any) -> dict[str, Any]:
    """One request, and by step how many tokens its row allowed."""
    import numpy as np
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    manager, counts = manager_of(llm), []
    own = manager.grammar_bitmask

    def noted(*args: Any) -> Any:
        rows = own(*args)
        counts.append(int(np.unpackbits(rows[0].view(np.uint8), bitorder="little")[:264].sum()))
        return rows

    manager.grammar_bitmask = noted
    rule = StructuredOutputsParams(json=support.SCHEMAS[asked.schema])
    params = SamplingParams(
        temperature=1.0, seed=asked.seed, max_tokens=asked.max_tokens, structured_outputs=rule,
        logit_bias={support.FIRST_BYTE + ord(asked.bias): 100.0} if asked.bias else None,
    )  # fmt: skip
    out = llm.generate([PROMPT], params, use_tqdm=False)[0].outputs[0]
    manager.grammar_bitmask = own
    return {
        "text": out.text,
        "finish_reason": out.finish_reason,
        "tokens": list(out.token_ids),
        "allowed": counts,
    }


def search(backend: Any, schema: Any) -> list[int | None]:
    """The shortest and the longest document of a schema, by all states of vLLM's own xgrammar grammar."""
    import numpy as np
    from vllm.v1.structured_output.backend_types import StructuredOutputOptions

    grammar = backend.compile_grammar(StructuredOutputOptions.JSON, json.dumps(schema))
    row = backend.allocate_token_bitmask(1)
    known: dict[str, tuple[int, int]] = {}

    def go(depth: int) -> tuple[int, int]:
        state = grammar.matcher._debug_print_internal_state()
        if state not in known:
            low, high = FAR, -FAR
            grammar.fill_bitmask(row, 0)
            bits = np.unpackbits(row[0].numpy().view(np.uint8), bitorder="little")[:264]
            for token in np.flatnonzero(bits).tolist():
                if token == END:
                    low, high = min(low, 0), max(high, 0)
                elif (
                    token >= 8 and depth < CAP
                ):  # a special token is its text, so never longer than bytes
                    assert grammar.accept_tokens("-", [token])
                    rest = go(depth + 1)
                    grammar.rollback(1)
                    low, high = min(low, rest[0] + 1), max(high, rest[1] + 1)
                elif depth == CAP:
                    high = FAR
            known[state] = low, high
        return known[state]

    low, high = go(0)
    return [low, high if high < FAR else None]


def walk(backend: Any, schema: Any, count: int, seed: int = 0) -> list[str]:
    """Random documents of a schema, by the rows of vLLM's own guidance grammar. Long ones are preferred."""
    import numpy as np
    from vllm.v1.structured_output.backend_types import StructuredOutputOptions

    rng, found = random.Random(seed), []
    row = backend.allocate_token_bitmask(1)
    for _ in range(count):
        grammar = backend.compile_grammar(StructuredOutputOptions.JSON, json.dumps(schema))
        text = b""
        eager, few = rng.random() < 0.5, rng.random() < 0.3
        while len(text) <= CAP:
            grammar.fill_bitmask(row, 0)
            bits = np.unpackbits(row[0].numpy().view(np.uint8), bitorder="little")[:264]
            allowed = [t for t in np.flatnonzero(bits).tolist() if t == END or t >= 8]
            other = [t for t in allowed if t not in (END, 8 + ord('"'))]
            escapes = [t for t in allowed if t in (8 + ord("\\"), 8 + ord("u"))]
            if END in allowed and (few or allowed == [END] or rng.random() < 0.1):
                found.append(text.decode())
                break
            pick = escapes if eager and escapes else other if not few and other else allowed
            token = rng.choice(pick)
            if few and 8 + ord('"') in allowed:
                token = 8 + ord('"')
            assert grammar.accept_tokens("-", [token])
            text += bytes([token - 8])
    return found


def accepts(backend: Any, schema: Any, document: str) -> bool:
    """Whether a grammar of vLLM's takes the document, and then nothing but the end token."""
    import numpy as np
    from vllm.v1.structured_output.backend_types import StructuredOutputOptions

    grammar = backend.compile_grammar(StructuredOutputOptions.JSON, json.dumps(schema))
    tokens = [8 + byte for byte in document.encode()]
    if grammar.validate_tokens(tokens) != tokens or not grammar.accept_tokens("-", tokens):
        return False
    row = backend.allocate_token_bitmask(1)
    grammar.fill_bitmask(row, 0)
    bits = np.unpackbits(row[0].numpy().view(np.uint8), bitorder="little")[:264]
    return bool(bits[END])


def extremes(solution: Any, schema: Any) -> list[str]:
    """A shortest and, if there is one, a longest document in guidance's style."""
    documents = []
    low, high = solution.lengths(schema, solution.GUIDANCE)
    for pick, size in ((min, low), (max, high)):
        if size is None:
            continue
        text = ""
        for piece in solution.pieces(schema, solution.GUIDANCE):
            if isinstance(piece, str):
                text += piece
            elif (texts := solution.values(piece)) is not None:
                text += pick(texts, key=len)
            elif piece["type"] == "string":
                text += '"' + "\\u0001" * (piece["maxLength"] if pick is max else 0) + '"'
            else:
                text += "7"
        assert len(text) == size, (text, size)
        documents.append(text)
    return documents


def compile_keys(llm: Any) -> list[dict[str, Any]]:
    """KEYS, request after request: how often the backend was called, and by how much its cache grew."""
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    manager, found, calls = manager_of(llm), [], []
    for kind, text in support.KEYS:
        rule = StructuredOutputsParams(**{kind: text or True})
        if manager.backend is None:  # the first request makes it; its cache is empty then
            probe = StructuredOutputsParams(choice=["x"])
            llm.generate(
                [PROMPT], SamplingParams(max_tokens=1, structured_outputs=probe), use_tqdm=False
            )
        backend, own = manager.backend, manager.backend.compile_grammar

        def noted(*key: Any, own: Any = own) -> Any:
            calls.append(key)
            return own(*key)

        size = getattr(getattr(backend, "compiler", None), "get_cache_size_bytes", lambda: 0)
        before, calls[:] = size(), []
        backend.compile_grammar = noted
        llm.generate(
            [PROMPT], SamplingParams(max_tokens=1, structured_outputs=rule), use_tqdm=False
        )
        del backend.compile_grammar
        found.append({"calls": len(calls), "grew": size() - before})
    return found


def time_compiling(llm: Any) -> list[float]:
    """Medians of 21, in ms: a backend's first compilation of Bo's schema, and its second."""
    from vllm.v1.structured_output.backend_types import StructuredOutputOptions

    used, times = manager_of(llm).backend, []
    for _ in range(21):
        backend = type(used)(used.vllm_config, tokenizer=used.tokenizer, vocab_size=used.vocab_size)
        for _ in range(2):
            begin = time.perf_counter()
            backend.compile_grammar(StructuredOutputOptions.JSON, support.KEYS[0][1])
            times.append(1000 * (time.perf_counter() - begin))
    return [round(statistics.median(times[which::2]), 2) for which in (0, 1)]


MIXED = ((None, 20), ("bounded", 30), (None, 8), ("kind", 12), (None, 26), ("mail", 14), (None, 30))
"""A batch: of each request its schema, None for a free one, and max_tokens. The free ones come first."""


def run_batch(llm: Any) -> dict[str, Any]:
    """Some steps of a batch of free and bound requests, and the free ones' tokens, there and alone."""
    import vllm.v1.structured_output.utils as utils
    import vllm.v1.worker.gpu_model_runner as runner
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    steps: list[dict[str, Any]] = []
    own, apply = runner.apply_grammar_bitmask, utils.xgr.apply_token_bitmask_inplace

    def noted(scheduled: Any, grammar_output: Any, batch: Any, logits: Any) -> None:
        steps.append({
            "req_ids": [r.split("-")[0] for r in batch.req_ids],
            "bound": [r.split("-")[0] for r in grammar_output.structured_output_request_ids],
            "rows": grammar_output.grammar_bitmask.tolist(),
        })  # fmt: skip
        own(scheduled, grammar_output, batch, logits)

    def applied(logits: Any, rows: Any, indices: Any = None) -> None:
        steps[-1] |= {"placed": rows.tolist(), "indices": indices}
        apply(logits, rows, indices=indices)

    runner.apply_grammar_bitmask, utils.xgr.apply_token_bitmask_inplace = noted, applied
    params = [
        SamplingParams(
            temperature=0, max_tokens=count, ignore_eos=schema is None,
            structured_outputs=schema and StructuredOutputsParams(json=support.SCHEMAS[schema]),
        )
        for schema, count in MIXED
    ]  # fmt: skip
    prompts = [f"{PROMPT} {number}" for number in range(len(MIXED))]
    # Compiled while it is added, as for `external_launcher`, or chance says when a request joins the batch.
    manager_of(llm)._use_async_grammar_compilation = False
    engine, together = llm.llm_engine, {}
    free = [number for number, (schema, _) in enumerate(MIXED) if schema is None]
    for number in free:
        engine.add_request("abcdefg"[number], prompts[number], params[number])
    engine.step()
    for number in range(len(MIXED)):
        if number not in free:
            engine.add_request("abcdefg"[number], prompts[number], params[number])
    while engine.has_unfinished_requests():
        together |= {out.request_id: out for out in engine.step() if out.finished}
    runner.apply_grammar_bitmask, utils.xgr.apply_token_bitmask_inplace = own, apply
    alone = [llm.generate([prompts[n]], params[n], use_tqdm=False)[0] for n in free]
    orders = {tuple(step["req_ids"]): step for step in reversed(steps)}
    return {
        "steps": list(orders.values())[::-1],
        "free": [list(together["abcdefg"[n]].outputs[0].token_ids) for n in free],
        "alone": [list(out.outputs[0].token_ids) for out in alone],
    }


def child(setting: str) -> dict[str, Any]:
    """All that is asked of one engine."""
    llm = start(setting)
    found: dict[str, Any] = {}
    if setting != "auto":
        found["compiled"] = compile_keys(llm)
        found["ms"] = time_compiling(llm)
    found["outputs"] = [ask(llm, asked) for asked in support.REQUESTS if asked.setting == setting]
    backend = manager_of(llm).backend
    if setting == "xgrammar":
        sys.setrecursionlimit(3000)
        found["lengths"] = {n: search(backend, schema) for n, schema in support.SCHEMAS.items()}
        found["batch"] = run_batch(llm)
    if setting == "guidance":
        solution = load_module(HERE / "solution.py", "lab_12_03_solution_child")
        found["lengths"] = {}
        for name, schema in support.SCHEMAS.items():
            low, high = solution.lengths(schema, solution.GUIDANCE)
            sizes = [len(text.encode()) for text in walk(backend, schema, 300)]
            assert high is None or max(sizes) <= high, (name, max(sizes), high)
            assert min(sizes) >= low, (name, min(sizes), low)
            for document in extremes(solution, schema):
                assert accepts(backend, schema, document), (name, document)
            found["lengths"][name] = [low, high]
    return found


def starts() -> list[str]:
    """The backends with which `disable_any_whitespace` is taken."""
    from vllm.config.structured_outputs import StructuredOutputsConfig

    found = []
    for backend in ("auto", "guidance", "lm-format-enforcer", "outlines", "xgrammar"):
        try:
            StructuredOutputsConfig(backend=backend, disable_any_whitespace=True)
        except ValueError:
            continue
        found.append(backend)
    return found


# ---- here ------------------------------------------------------------------------------------------


def run_child(setting: str) -> dict[str, Any]:
    print(f"{setting} ...", file=sys.stderr, flush=True)
    environment = os.environ | {
        "VLLM_LOGGING_LEVEL": "CRITICAL",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "TORCH_COMPILE_DISABLE": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, __file__, "--child", setting]
    run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return found


def measure() -> dict[str, Any]:
    """What recorded.json holds."""
    need_vllm()
    found = {setting: run_child(setting) for setting in SETTINGS}
    return {
        "vllm": "0.22.1",
        "starts": starts(),
        "lengths": {b: found[b]["lengths"] for b in ("xgrammar", "guidance")},
        "outputs": [one for setting in SETTINGS for one in found[setting]["outputs"]],
        "compiled": {b: found[b]["compiled"] for b in ("xgrammar", "guidance")},
        "ms": {b: found[b]["ms"] for b in ("xgrammar", "guidance")},
        "batch": found["xgrammar"]["batch"],
    }


def write(found: dict[str, Any]) -> str:
    """One line for each output and each step."""

    def pack(value: Any) -> str:
        return json.dumps(value, separators=(",", ":"))

    lists = {
        "outputs": found["outputs"],
        "steps": found["batch"]["steps"],
        "free": found["batch"]["free"],
        "alone": found["batch"]["alone"],
    }
    head = [f'"{n}":{pack(found[n])}' for n in ("vllm", "starts", "lengths", "compiled", "ms")]
    body = [f'"{n}":[\n' + ",\n".join(map(pack, rows)) + "\n]" for n, rows in lists.items()]
    return "{" + ",\n".join(head + body) + "}\n"


def main(which: str = "starter") -> None:
    found = measure()
    if which == "--record":
        support.RECORDED.write_text(write(found), "utf-8")
        return
    lab = load_module(HERE / f"{which}.py", f"lab_12_03_{which}")
    for name, schema in support.SCHEMAS.items():
        for backend, style in (("xgrammar", lab.XGRAMMAR), ("guidance", lab.GUIDANCE)):
            theirs, mine = found["lengths"][backend][name], list(lab.lengths(schema, style))
            print(
                f"{name:10} {backend:8} {theirs!s:12} yours {mine}{'' if mine == theirs else '  <--'}"
            )
    verdicts = Counter(lab.verdict(one["text"], one["finish_reason"]) for one in found["outputs"])
    print("outputs:", ", ".join(f"{count} {word}" for word, count in sorted(verdicts.items())))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(child(sys.argv[2])))
    else:
        main(*sys.argv[1:2])
