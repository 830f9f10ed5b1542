"""What vLLM's own code says of rules, compiling, grammars, rows, drafts and reasoning.

    python phase-12-structured-outputs/vllm_grammars.py         all topics
    python phase-12-structured-outputs/vllm_grammars.py chosen  one

Needs vLLM 0.22.1; its CPU build will do. The topics are vLLM's functions, without a model. Sampled tokens
are made up, so that every step is the same wherever it is run.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from course.learner.labs import load_module

PHASES = Path(__file__).resolve().parents[1]
MODEL = PHASES / "mini_vllm/checkpoints/tiny-llama"
topics = load_module(PHASES / "phase-05-cuda-graphs/vllm_topics.py", "vllm_topics_for_phase_12")
Say = Callable[[str], None]

PART = "[A-Z]{2}-[0-9]{3,4}"
KINDS = ["repair", "return", "question"]
TICKET = {
    "type": "object", "required": ["item", "urgent", "days"], "additionalProperties": False,
    "properties": {
        "item": {"type": "string", "maxLength": 12}, "urgent": {"type": "boolean"},
        "days": {"type": "integer", "minimum": 1, "maximum": 30},
    },
}  # fmt: skip
ADAS = "[a-z]+"
LARK = "start: /[0-9]+/"
END = 2  # the tokenizer's end-of-sequence token


def get_tokenizer() -> Any:
    from vllm.tokenizers import get_tokenizer

    return get_tokenizer(str(MODEL))


def encode(text: str) -> list[int]:
    """A token for each byte: the shipped tokenizer's."""
    return list(get_tokenizer().encode(text, add_special_tokens=False))


def check_rule(backend: str = "auto", **rule: Any) -> Any:
    """The rule's `SamplingParams` after the front end's check, in which a backend is chosen."""
    from vllm import SamplingParams
    from vllm.config.structured_outputs import StructuredOutputsConfig
    from vllm.sampling_params import StructuredOutputsParams

    params = SamplingParams(structured_outputs=StructuredOutputsParams(**rule), max_tokens=32)
    params.update_from_generation_config({}, END)
    config: Any = StructuredOutputsConfig(backend=backend)  # type: ignore[arg-type]
    params._validate_structured_outputs(config, get_tokenizer())
    return params


def make_manager(max_num_seqs: int = 4, drafts: int = 0, reasoner: Any = None) -> Any:
    """vLLM's manager of grammars, for the shipped tokenizer."""
    from vllm.config.structured_outputs import StructuredOutputsConfig
    from vllm.v1.structured_output import StructuredOutputManager

    speculative = SimpleNamespace(num_speculative_tokens=drafts) if drafts else None
    config: Any = SimpleNamespace(
        parallel_config=SimpleNamespace(distributed_executor_backend="uni"),
        scheduler_config=SimpleNamespace(max_num_seqs=max_num_seqs),
        model_config=SimpleNamespace(skip_tokenizer_init=True, get_vocab_size=lambda: 264),
        structured_outputs_config=StructuredOutputsConfig(),
        speculative_config=speculative,
    )
    manager: Any = StructuredOutputManager(config)
    manager.tokenizer, manager.executor = get_tokenizer(), ThreadPoolExecutor(1)
    manager.reasoner_cls = reasoner
    return manager


def make_scheduler(
    manager: Any, budget: int = 64, drafts: int = 0, asynchronous: bool = False
) -> Any:
    """vLLM's scheduler with this manager, and what makes outputs for it."""
    from course.parity.record import vllm_parts

    config: Any = {
        "block_size": 16, "num_blocks": 40, "max_num_seqs": 4, "max_num_batched_tokens": budget,
        "long_prefill_token_threshold": 0, "enable_prefix_caching": False, "max_model_len": 256,
        "policy": "fcfs",
    }  # fmt: skip
    if drafts:
        config["speculative_config"] = {"method": "ngram", "num_speculative_tokens": drafts}
    parts = vllm_parts(config, async_scheduling=asynchronous)
    parts.scheduler.structured_output_manager = manager
    return parts


def make_request(name: str, prompt: int, params: Any = None) -> Any:
    """A request with a prompt of so many tokens; without `params` it has no rule."""
    from vllm import SamplingParams
    from vllm.v1.request import Request

    if params is None:
        params = SamplingParams(max_tokens=32)
        params.update_from_generation_config({}, END)
    return Request(name, list(range(10, 10 + prompt)), params, None, arrival_time=0.0)


def count_allowed(row: Any) -> str:
    """How many tokens a row allows; or that it is free."""
    words = [int(word) & 0xFFFFFFFF for word in row]
    return str(sum(word.bit_count() for word in words)) if min(words) < 0xFFFFFFFF else "free"


def chosen(say: Say) -> None:
    """Which backend the front end's check gives a rule."""
    for name, rule in (
        ("regex   [A-Z]{2}-[0-9]{3,4}", {"regex": PART}),
        ("choice  repair, return, question", {"choice": KINDS}),
        ("json    the ticket", {"json": TICKET}),
        ("json    with multipleOf", {"json": {"type": "integer", "multipleOf": 7}}),
        ("json    with uniqueItems", {"json": {"type": "array", "uniqueItems": True}}),
        ("json    with patternProperties", {"json": {"type": "object", "patternProperties": {}}}),
        ("grammar start: /[0-9]+/", {"grammar": LARK}),
    ):
        try:
            params = check_rule(**rule).structured_outputs
            became = next(n for n in ("json", "regex", "choice", "grammar") if getattr(params, n))
            kind = next(iter(rule))
            note = f", as a {became}" if became != kind else ""
            say(f"{name:34}{params._backend}{note}")
        except ValueError as error:
            say(f"{name:34}refused: {str(error).splitlines()[0]}")
    params = check_rule("guidance", grammar=LARK)
    say(f"{'the same, checked by guidance':34}{params.structured_outputs._backend}")


class _HeldBackend:
    """xgrammar's backend, whose compilations wait until they are let go. A rule can be made to fail."""

    def __init__(self, backend: Any, fails: Iterable[str] = ()) -> None:
        self.backend = backend
        self.gates: dict[str, threading.Event] = {}
        self.fails = set(fails)

    def gate(self, spec: str) -> threading.Event:
        return self.gates.setdefault(spec, threading.Event())

    def compile_grammar(self, kind: Any, spec: str) -> Any:
        self.gate(spec).wait()
        if spec in self.fails:
            raise ValueError("this rule does not compile")
        return self.backend.compile_grammar(kind, spec)


def waiting(say: Say) -> None:
    """Bo's and Ada's rules compile while Gil, who has none, is served. Ada's fails."""
    manager = make_manager()
    parts = make_scheduler(manager)
    make_backend(manager)
    held = manager.backend = _HeldBackend(manager.backend, fails=[ADAS])
    manager.executor = ThreadPoolExecutor(2)
    requests = {
        "bo": make_request("bo", 6, check_rule(regex=PART)),
        "ada": make_request("ada", 5, check_rule(regex=ADAS)),
        "gil": make_request("gil", 4),
    }
    futures = {}
    for name, request in requests.items():
        manager.grammar_init(request)
        parts.scheduler.add_request(request)
        if request.structured_output_request:
            futures[name] = request.structured_output_request._grammar
    for step in range(1, 6):
        note = ""
        if step == 2:
            held.gate(PART).set()
            futures["bo"].result()
            note = "  bo's rule has compiled"
        if step == 4:
            held.gate(ADAS).set()
            with suppress(ValueError):
                futures["ada"].result()
            note = "  ada's has failed"
        try:
            plan = parts.scheduler.schedule()
        except ValueError as error:
            say(f"step {step}  schedule() raises ValueError: {error}{note}")
            continue
        statuses = ", ".join(
            f"{name} {request.status.name}"
            for name, request in requests.items()
            if request.status.name != "RUNNING"
        )
        say(f"step {step}  {plan.num_scheduled_tokens}{note}")
        if step == 1:
            say(f"        {statuses}")
        take(parts, plan, {"bo": encode("KX-1"[step - 2])})


def take(parts: Any, plan: Any, sampled: dict[str, Sequence[int]]) -> Any:
    """Give the scheduler a step's tokens: those named, and an `a` for every other request."""
    names = list(plan.num_scheduled_tokens)
    tokens = [list(sampled[name]) if name in sampled else encode("a") for name in names]
    return parts.scheduler.update_from_output(plan, parts.make_output(names, tokens))


def make_backend(manager: Any, backend: str = "xgrammar") -> None:
    """Make the manager's one backend, as its first request with a rule does."""
    if manager.backend is None:
        params = check_rule(backend, regex="a")
        compile_rule(manager, make_request("first", 1, params))


def compile_rule(manager: Any, request: Any) -> Any:
    """The request's grammar, once it is compiled."""
    manager.grammar_init(request)
    return request.structured_output_request._grammar.result()


def ends(say: Say) -> None:
    """The part number, to its end and past it, by two backends."""
    for backend in ("xgrammar", "guidance"):
        manager = make_manager()
        make_backend(manager, backend)
        grammar = compile_rule(manager, make_request("bo", 4, check_rule(backend, regex=PART)))
        rows = manager.backend.allocate_token_bitmask(1)
        say(backend)
        for text, more in (
            ("KX-119", encode("KX-119")),
            ("KX-1190", encode("0")),
            ("end token", [END]),
        ):
            grammar.accept_tokens("bo", more)
            say(
                f"  {text:12}terminated {grammar.is_terminated()!s:7}allowed: {fill(grammar, rows)}"
            )
        say(f"  {'an a':12}accepted {grammar.accept_tokens('bo', encode('a'))}")
        grammar.reset()
        accepted = grammar.accept_tokens("bo", encode("K"))
        say(f"  {'reset':12}terminated {grammar.is_terminated()!s:7}a K is accepted: {accepted}")


def fill(grammar: Any, rows: Any) -> str:
    """How many tokens the grammar's row allows, or the error."""
    try:
        grammar.fill_bitmask(rows.fill_(0), 0)
    except RuntimeError as error:
        return type(error).__name__
    allowed = count_allowed(rows[0])
    return f"{allowed}, the end token" if allowed == "1" and allows(rows[0], END) else allowed


def allows(row: Any, token: int) -> bool:
    return bool((int(row[token // 32]) >> (token % 32)) & 1)


def rows(say: Say) -> None:
    """Bo's prompt takes two steps; Gil has no rule. The rows of each step."""
    manager = make_manager()
    parts = make_scheduler(manager)
    bo = make_request("bo", 100, check_rule(regex=PART))
    compile_rule(manager, bo)
    for request in (make_request("gil", 4), bo):
        parts.scheduler.add_request(request)
    answer = [*encode("KX-1190"), END]
    for step in range(1, 11):
        plan = parts.scheduler.schedule()
        output = parts.scheduler.get_grammar_bitmask(plan)
        told = "no rows"
        if output is not None:
            [row], [name] = output.grammar_bitmask, output.structured_output_request_ids
            then = "the end token" if step == 9 else "KX-1190"[step - 2]
            told = f"{name}: {count_allowed(row)} allowed, sampled {then}"
        say(f"step {step:2}  {plan.num_scheduled_tokens!s:22}{told}")
        sampled = (
            answer[step - 2 : step - 1] if step > 1 else []
        )  # a chunk of a prompt yields no token
        take(parts, plan, {"bo": sampled})


def applied(say: Say) -> None:
    """Rows in the scheduler's order, logits in the batch's: what both runners bar."""
    import torch
    from vllm.v1.core.sched.output import GrammarOutput
    from vllm.v1.structured_output.utils import apply_grammar_bitmask
    from vllm.v1.worker.gpu import structured_outputs

    manager = make_manager()
    make_backend(manager)
    bitmask = manager.backend.allocate_token_bitmask(2)
    for row, rule in enumerate((check_rule(choice=KINDS), check_rule(regex=PART))):
        compile_rule(manager, make_request("any", 4, rule)).fill_bitmask(bitmask, row)
    mask_order, batch = ["ada", "bo"], ["gil", "bo", "ada"]
    say(f"rows are for {mask_order}, the batch is {batch}")
    for dtype in (torch.float32, torch.bfloat16):
        logits = torch.zeros(3, 264, dtype=dtype)
        apply_grammar_bitmask(
            SimpleNamespace(scheduled_spec_decode_tokens={}),  # type: ignore[arg-type]
            GrammarOutput(mask_order, bitmask.numpy()),
            SimpleNamespace(req_ids=batch),  # type: ignore[arg-type]
            logits,
        )
        say(f"V1, on CPU, {str(dtype)[6:]:10}{left_open(logits, batch)}")
    logits = torch.zeros(3, 264)
    indices = torch.tensor([batch.index(name) for name in mask_order], dtype=torch.int32)
    structured_outputs._apply_grammar_bitmask_kernel[(2, 1)](
        logits, logits.stride(0), indices, bitmask, bitmask.stride(0), 264, BLOCK_SIZE=8192
    )
    say(f"V2's kernel, interpreted {left_open(logits, batch)}")


def left_open(logits: Any, batch: Sequence[str]) -> dict[str, str]:
    """By request, the tokens that are not barred, where they are few."""
    open_: dict[str, str] = {}
    for name, row in zip(batch, logits, strict=True):
        ids = [i for i, logit in enumerate(row.tolist()) if logit != float("-inf")]
        open_[name] = get_tokenizer().decode(ids) if len(ids) < 30 else f"all {len(ids)}"
    return open_


def drafts(say: Say) -> None:
    """Bo's answer begins with a K; three tokens are drafted, and the third is barred."""
    from vllm.v1.outputs import DraftTokenIds

    drafted = encode("X-q")
    for asynchronous in (False, True):
        manager = make_manager(drafts=3)
        parts = make_scheduler(manager, drafts=3, asynchronous=asynchronous)
        bo = make_request("bo", 4, check_rule(regex=PART))
        grammar = compile_rule(manager, bo)
        scheduler = parts.scheduler
        scheduler.add_request(bo)
        say("asynchronous scheduling" if asynchronous else "synchronous scheduling")
        first = scheduler.schedule()
        scheduler.get_grammar_bitmask(first)
        if asynchronous:
            plan = scheduler.schedule()  # before the first step's token is known
            say(
                f"  scheduled        {show(plan)}, sampling deferred: {plan.pending_structured_output_tokens}"
            )
            take(parts, first, {"bo": encode("K")})
            scheduler.update_draft_token_ids_in_output(DraftTokenIds(["bo"], [list(drafted)]), plan)
            say(f"  K is there       {show(plan)}, counted invalid: {plan.num_invalid_spec_tokens}")
        else:
            take(parts, first, {"bo": encode("K")})
            scheduler.update_draft_token_ids(DraftTokenIds(["bo"], [list(drafted)]))
            plan = scheduler.schedule()
            say(f"  scheduled        {show(plan)}")
        calls: list[str] = []
        count_calls(grammar, calls)
        output = scheduler.get_grammar_bitmask(plan)
        say(f"  rows allow       {', '.join(count_allowed(row) for row in output.grammar_bitmask)}")
        say(f"  grammar's calls  {' '.join(calls)}")


def show(plan: Any) -> str:
    """The draft tokens of a schedule, as text; a place that is not known yet is -1."""
    ids = plan.scheduled_spec_decode_tokens["bo"]
    return "drafts " + " ".join("-1" if i < 0 else get_tokenizer().decode([i]) for i in ids)


def count_calls(grammar: Any, calls: list[str]) -> None:
    """Note each call of the grammar's methods that change or read its state."""
    short = {"fill_bitmask": "fill", "accept_tokens": "accept", "rollback": "rollback"}
    for name, told in short.items():
        method = getattr(grammar, name)

        def call(*args: Any, method: Any = method, told: str = told) -> Any:
            calls.append(f"{told}({args[0]})" if told == "rollback" else told)
            return method(*args)

        setattr(grammar, name, call)


def thinking(say: Say) -> None:
    """A model that thinks first; the shipped tokenizer's two role tokens stand for the marks around it."""
    from vllm.reasoning.basic_parsers import BaseThinkingReasoningParser

    class Thinks(BaseThinkingReasoningParser):
        start_token = "<|user|>"
        end_token = "<|assistant|>"

    mark = get_tokenizer().get_vocab()[Thinks.end_token]
    for drafts, what, steps in (
        (0, "no drafts", ["|", "K", "X"]),
        (1, "one draft; the mark is the token after it", ["h|", "K", "X"]),
        (1, "one draft; the mark is the draft", ["|h", "K", "X"]),
    ):
        manager = make_manager(drafts=drafts, reasoner=Thinks)
        parts = make_scheduler(manager, drafts=drafts)
        bo = make_request("bo", 4, check_rule(regex=PART))
        grammar = compile_rule(manager, bo)
        parts.scheduler.add_request(bo)
        say(what)
        for at, text in enumerate(["m", *steps]):
            ids = [mark if c == "|" else encode(c)[0] for c in text]
            bo.spec_token_ids = ids[:-1]
            plan = parts.scheduler.schedule()
            output = parts.scheduler.get_grammar_bitmask(plan)
            allowed = ", ".join(count_allowed(row) for row in output.grammar_bitmask)
            take(parts, plan, {"bo": ids})
            told = " ".join("</think>" if c == "|" else c for c in text)
            if at:
                taken = grammar.num_processed_tokens
                say(f"  rows {allowed:12}sampled {told:12}accepted {taken}")


def collides(say: Say) -> None:
    """The part number with settings that bar what the rule allows: the whole engine on the shipped model."""
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "TORCH_COMPILE_DISABLE": "1",
                   "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "CRITICAL"}  # fmt: skip
    from vllm.utils import torch_utils

    torch_utils.async_tensor_h2d.__defaults__ = (False,)  # else it pins memory, which takes a GPU
    from vllm import LLM, SamplingParams
    from vllm.sampling_params import StructuredOutputsParams
    from vllm.v1.executor import UniProcExecutor

    llm = LLM(
        str(MODEL), dtype="float32", enforce_eager=True, max_model_len=256, block_size=16,
        distributed_executor_backend=UniProcExecutor,
    )  # fmt: skip
    settings: tuple[dict[str, Any], ...] = (
        {}, {"stop": ["-"]}, {"min_tokens": 12}, {"bad_words": ["-"]}, {"ignore_eos": True},
        {"allowed_token_ids": encode("abc")}, {},
    )  # fmt: skip
    for more in settings:
        rule = StructuredOutputsParams(regex=PART)
        params = SamplingParams(temperature=0, max_tokens=16, structured_outputs=rule, **more)
        [answer] = llm.generate(["A part "], params, use_tqdm=False)[0].outputs
        told = ", ".join(f"{key} {value}" for key, value in more.items()) or "nothing more"
        say(f"{told:36}{answer.text!r:12}{answer.finish_reason}")


TOPICS = {
    topic.__name__: topic
    for topic in (chosen, waiting, ends, rows, applied, drafts, collides, thinking)
}

if __name__ == "__main__":
    os.environ |= {name: os.environ.get(name, value) for name, value in topics.ON_PAPER.items()}
    names = topics.wanted(TOPICS)
    several = len(names) > 1
    topics.each_apart(__file__, names) if several else topics.tell(names[0], TOPICS[names[0]])
