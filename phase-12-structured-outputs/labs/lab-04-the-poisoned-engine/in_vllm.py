"""Given: the recording, and your predictions beside real vLLM. Needs vLLM 0.22.1; `course grade` does not.

    python in_vllm.py [solution | starter] [FIRST SECOND]   some pairs under `auto`, or one; a minute or two
    python in_vllm.py --record                              write recorded.json: some minutes

An engine is started for each setting, and each pair has a copy of it, in a process of its own. After each
request a free one is sent. The engine counts as dead only if that is not answered.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from course.learner.labs import load_module, need_vllm

HERE = Path(__file__).resolve().parent
rules = load_module(HERE / "rules.py", "lab_12_04_rules")
SOME = (
    ("part", "name"),
    ("name", "part"),
    ("name", "not 7"),
    ("labels", "kind"),
    ("nothing", "part"),
)
ENVIRONMENT = {
    "VLLM_LOGGING_LEVEL": "CRITICAL",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "TORCH_COMPILE_DISABLE": "1",
    "OMP_NUM_THREADS": "1",
}


# ---- in the engines' processes ---------------------------------------------------------------------


def start(setting: str) -> Any:
    """An engine in this process, or beside it if VLLM_ENABLE_V1_MULTIPROCESSING is 1."""
    from vllm import LLM
    from vllm.utils import torch_utils
    from vllm.v1.executor import UniProcExecutor

    from mini_vllm.config.engine import DEFAULT_MODEL

    torch_utils.async_tensor_h2d.__defaults__ = (False,)  # else it pins memory, which takes a GPU
    return LLM(
        model=str(DEFAULT_MODEL), dtype="float32", enforce_eager=True, block_size=16, max_model_len=256,
        max_num_seqs=8, async_scheduling=False, distributed_executor_backend=UniProcExecutor,
        structured_outputs_config={"backend": setting},
    )  # fmt: skip


def ask(llm: Any, rule: dict[str, Any] | None) -> tuple[str, str]:
    """One request. Its text, and the error that came instead."""
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    bound = None if rule is None else StructuredOutputsParams(**rule)
    params = SamplingParams(temperature=0, max_tokens=24, structured_outputs=bound)
    try:
        return llm.generate(["The scheduler"], params, use_tqdm=False)[0].outputs[0].text, ""
    except BaseException as error:  # what a library written in Rust raises is no Exception
        told = re.sub(r"\[\d\d:\d\d:\d\d\] ", "", str(error))  # xgrammar's say when
        return "", f"{type(error).__name__}: {told}"


def play(llm: Any, names: Iterable[str]) -> dict[str, Any]:
    """An engine's requests, one after another: of each `served`, `empty`, `refused` or `dead`."""
    outcomes, texts, errors = [], [], []
    for name in names:
        text, error = ask(llm, rules.RULES[name])
        dead = bool(ask(llm, None)[1])
        outcomes.append("dead" if dead else "refused" if error else "served" if text else "empty")
        texts.append(text)
        errors.append(error.splitlines()[0][:120] if error else "")
    return {"outcomes": outcomes, "texts": texts, "errors": errors}


def in_fork(function: Callable[..., Any], *args: Any) -> Any:
    """What a function returns in a fork of this process, which is gone afterwards."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.close(read)
            with os.fdopen(write, "w") as pipe:
                json.dump(function(*args), pipe)
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        told = pipe.read()
    os.waitpid(pid, 0)
    assert told, f"no answer from {function.__name__}{args[-1:]}"
    return json.loads(told)


def play_all(setting: str, jobs: Sequence[Sequence[str]]) -> list[Any]:
    """An engine that has seen no rule, and a copy of it for each job."""
    llm = start(setting)
    ask(llm, None)
    return [in_fork(play, llm, names) for names in jobs]


def checks() -> dict[str, Any]:
    """Of each rule which backends' checks take it, and what each engine makes of what the check leaves."""
    import copy

    from vllm import SamplingParams
    from vllm.config import StructuredOutputsConfig
    from vllm.sampling_params import StructuredOutputsParams
    from vllm.v1.structured_output.request import get_structured_output_key

    llm = start("auto")
    manager = llm.llm_engine.engine_core.engine_core.structured_output_manager
    tokenizer = manager.tokenizer
    engines = {}
    for backend in rules.BACKENDS:
        manager.backend = None
        params = SamplingParams(structured_outputs=StructuredOutputsParams(regex="a"))
        params.structured_outputs._backend = backend
        request = type("Request", (), {})()
        request.sampling_params = params
        request.structured_output_request = type(
            "Rule", (), {"structured_output_key": ("-", "-")}
        )()
        manager.grammar_init(request)
        engines[backend] = manager.backend
    found: dict[str, Any] = {}
    for name, rule in rules.RULES.items():
        found[name] = {"checked": {}, "compiled": {}}
        for backend in rules.BACKENDS:
            params = SamplingParams(
                structured_outputs=StructuredOutputsParams(**copy.deepcopy(rule))
            )
            try:
                config = StructuredOutputsConfig(backend=backend)
                params._validate_structured_outputs(config, tokenizer)
            except BaseException as error:
                found[name]["checked"][backend] = False
                if not isinstance(error, ValueError):
                    found[name]["checked"][backend] = type(error).__name__
                continue
            found[name]["checked"][backend] = True
            found[name]["compiled"][backend] = {
                engine: compile_one(engines[engine], params, get_structured_output_key)
                for engine in rules.BACKENDS
            }
    return found


def compile_one(backend: Any, params: Any, key_of: Any) -> str:
    """`grammar`, `raises`, or `end only`: a grammar that allows nothing but the end token."""
    import numpy as np

    try:
        grammar = backend.compile_grammar(*key_of(params.structured_outputs))
    except BaseException:
        return "raises"
    row = backend.allocate_token_bitmask(1)
    grammar.fill_bitmask(row, 0)
    bits = np.unpackbits(row[0].numpy().view(np.uint8), bitorder="little")[:264]
    return "end only" if np.flatnonzero(bits).tolist() == [2] else "grammar"


def child() -> None:
    """Jobs from standard input as JSON, the facts about the rules first; answers to standard output."""
    import vllm  # noqa: F401  # once for all forks
    from vllm.v1.structured_output import (  # noqa: F401
        backend_guidance,
        backend_lm_format_enforcer,
        backend_outlines,
    )

    jobs: list[list[str]] = json.load(sys.stdin)
    answers: dict[int, Any] = {}
    for setting in dict.fromkeys(job[0] for job in jobs):
        numbers = [n for n, job in enumerate(jobs) if job[0] == setting]
        if setting == "checks":
            found = [in_fork(checks)]
        else:
            found = in_fork(play_all, setting, [jobs[n][1:] for n in numbers])
        answers |= dict(zip(numbers, found, strict=True))
    print("ANSWER" + json.dumps([answers[n] for n in range(len(jobs))]), flush=True)


def beside() -> None:
    """One engine in a process beside this one, as a server has it. Jobs and answers as above."""
    [(setting, *names)] = json.load(sys.stdin)
    print("ANSWER" + json.dumps([play(start(setting), names)]), flush=True)


# ---- here ------------------------------------------------------------------------------------------


def run(jobs: Iterable[Any], how: str = "--child", **environment: str) -> list[Any]:
    """What comes of each job: a setting and its engine's requests, or `checks`."""
    need_vllm()
    done = subprocess.run(
        [sys.executable, __file__, how], input=json.dumps(list(jobs)), text=True, check=True,
        stdout=subprocess.PIPE, env=os.environ | ENVIRONMENT | environment,
    )  # fmt: skip
    found: list[Any] = json.loads(done.stdout.rpartition("ANSWER")[2])
    return found


def record() -> str:
    """What recorded.json holds."""
    auto = [("auto", a, b) for a in rules.PAIRED for b in rules.PAIRED]
    jobs = [*auto, *rules.NAMED, *rules.LONGER]
    facts, *answers = run([("checks",), *jobs])
    rows = [
        {"setting": job[0], "requests": job[1:]} | answer
        for job, answer in zip(jobs, answers, strict=True)
    ]

    def pack(value: Any) -> str:
        return json.dumps(value, separators=(",", ":"))

    head = ",\n".join(f'"{name}":{pack(fact)}' for name, fact in facts.items())
    return (
        '{"vllm":"0.22.1",\n"rules":{\n'
        + head
        + '},\n"runs":[\n'
        + ",\n".join(map(pack, rows))
        + "\n]}\n"
    )


def main(*words: str) -> None:
    if words[:1] == ("--record",):
        (HERE / "recorded.json").write_text(record(), "utf-8")
        return
    which, *pair = words or ("starter",)
    support = load_module(HERE / "support.py", "lab_12_04_support")
    lab = load_module(HERE / f"{which}.py", f"lab_12_04_{which}")
    pairs = [tuple(pair)] if pair else SOME
    for names, answer in zip(pairs, run([("auto", *names) for names in pairs]), strict=True):
        mine = list(lab.predict("auto", [support.rule_of(lab, name) for name in names]))
        apart = "" if mine == answer["outcomes"] else f"  <-- yours: {', '.join(mine)}"
        print(f"{names[0]}, then {names[1]}: {', '.join(answer['outcomes'])}{apart}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child()
    elif sys.argv[1:2] == ["--beside"]:
        beside()
    else:
        main(*sys.argv[1:])
