"""The recorded decisions of vLLM's own scheduler, as a trace to look at.

A recorded workload (`python -m course.parity.record`, or `tests/golden/scheduler-0.22.1.jsonl.gz`) has what
each step scheduled, preempted and held, which requests ran after it and how many blocks were free. What it
leaves out follows from that by counting, and is worked out here: the queue, from arrivals, victims
and admissions; prefix hits, from the length of a table; what the prefix cache holds, from the token
ids in each full block. Such a recording has no times.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mini_vllm.trace.reasons import Explainer
from mini_vllm.trace.types import RequestInfo, RequestStep, StepTrace, Trace
from mini_vllm.trace.words import Reason
from mini_vllm.utils.untrusted import decode, gunzip, parse_json, read_bytes, shorten_repr

_KEYS = ("seed", "config", "requests", "steps", "outputs")
_REASONS = {
    "FINISHED_STOPPED": "stop",
    "FINISHED_LENGTH_CAPPED": "length",
    "FINISHED_ABORTED": "abort",
}


class GoldenError(ValueError):
    """A file that holds no such recording, or not the one asked for."""


def read_lines(path: Path) -> list[str]:
    """The lines of a `.jsonl` or `.jsonl.gz` file. Raises GoldenError if it cannot be read as one."""
    try:
        raw = read_bytes(path)
        if raw[:2] == b"\x1f\x8b":
            raw = gunzip(raw)
        return [line for line in decode(raw).split("\n") if line.strip()]
    except ValueError as error:
        raise GoldenError(f"{path}: not JSON lines: {error}") from error


def is_golden(value: Any) -> bool:
    return isinstance(value, dict) and all(key in value for key in _KEYS)


def pick(path: Path, lines: list[str], index: int | None, seed: int | None) -> Any:
    """The recording with this place in the file (from 0) or this seed; the first if both are None."""
    if seed is not None:
        for at in range(len(lines)):
            recording = _recording(path, lines, at)
            if is_golden(recording) and recording["seed"] == seed:
                return recording
        raise GoldenError(f"{path}: no recording has the seed {seed}")
    at = index or 0
    if not lines:
        raise GoldenError(f"{path}: it holds no recording")
    if not 0 <= at < len(lines):
        raise GoldenError(f"{path}: --index {at}, but it holds {len(lines)}: 0 to {len(lines) - 1}")
    return _recording(path, lines, at)


def _recording(path: Path, lines: list[str], at: int) -> Any:
    try:
        return parse_json(lines[at])
    except ValueError as error:
        raise GoldenError(f"{path}: recording {at}: {error}") from error


class _Contents:
    """What the prefix cache holds, by content: names of token ids in place of hashes."""

    def __init__(self, block_size: int, enabled: bool, use_eagle: bool = False) -> None:
        self.block_size, self.enabled, self.use_eagle = block_size, enabled, use_eagle
        self._names: dict[tuple[int, tuple[int, ...]], int] = {}  # (before, tokens) -> content
        self._chains: dict[str, list[int]] = {}  # request id -> the contents of its full blocks
        self._of: dict[int, int] = {}  # block -> content
        self._where: dict[int, list[int]] = {}  # content -> blocks, first published first

    def _chain(self, request_id: str, token_ids: list[int]) -> list[int]:
        chain, size = self._chains.setdefault(request_id, []), self.block_size
        for i in range(len(chain), len(token_ids) // size):
            key = chain[-1] if chain else 0, tuple(token_ids[i * size : (i + 1) * size])
            chain.append(self._names.setdefault(key, len(self._names) + 1))
        return chain

    def take(self, blocks: list[int]) -> list[int]:
        """Give blocks to a request; those whose content is dropped by that."""
        dropped = [block for block in blocks if block in self._of]
        for block in dropped:
            content = self._of.pop(block)
            self._where[content].remove(block)
            if not self._where[content]:
                del self._where[content]
        return dropped

    def publish(
        self, request_id: str, token_ids: list[int], table: list[int], first: int, full: int
    ) -> list[int]:
        """Say what the blocks `table[first:full]` hold, now that they are full; which those are."""
        if not self.enabled or first >= full:
            return []
        contents = self._chain(request_id, token_ids)[first:full]
        for block, content in zip(table[first:full], contents, strict=True):
            self._of[block] = content
            self._where.setdefault(content, []).append(block)
        return table[first:full]

    def hits(self, request_id: str, token_ids: list[int]) -> list[int]:
        if not self.enabled:
            return []
        found = []
        for content in self._chain(request_id, token_ids)[
            : (len(token_ids) - 1) // self.block_size
        ]:
            if content not in self._where:
                break
            found.append(self._where[content][0])
        return found[:-1] if self.use_eagle else found

    def clear(self) -> None:
        self._of.clear()
        self._where.clear()

    def forget(self, request_id: str) -> None:
        self._chains.pop(request_id, None)


def from_golden(recording: Any, name: str = "") -> Trace:
    """The trace of one recording.

    Args:
        recording: an object with `seed`, `config`, `requests`, `steps`, `outputs`.
        name: of the file, for the heading.

    Raises GoldenError if it is none.
    """
    if not is_golden(recording):
        raise GoldenError(f"not a recorded workload: it needs the keys {', '.join(_KEYS)}")
    if any(isinstance(step, dict) and "call" in step for step in recording["steps"][:1]):
        raise GoldenError(
            "a recording of asynchronous scheduling, whose calls are not steps that could be drawn one "
            "after the other: python -m course.parity replays it"
        )
    try:
        return Recording(recording).read(name)
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        raise GoldenError(f"a broken recording: {type(error).__name__}: {error}") from error


def _check(recording: Any) -> None:
    """What the reader would take without complaint and draw wrong. Raises ValueError."""
    config = recording["config"]
    for key in ("block_size", "num_blocks"):
        if type(config[key]) is not int or config[key] < 1:
            raise ValueError(f"config.{key} is {shorten_repr(config[key])}")
    for i, request in enumerate(recording["requests"]):
        for key in ("max_tokens", "priority"):
            if type(request[key]) is not int:
                raise ValueError(f"requests[{i}].{key} is {shorten_repr(request[key])}")
    if config["policy"] not in ("fcfs", "priority"):
        raise ValueError(f"config.policy is {shorten_repr(config['policy'])}")


class Recording:
    """A recording, read step by step: `begin` and then `step` for each.

    Attributes:
        explainer: what vLLM's scheduler knew after the last `begin` or `step`.
        reasons: why the last step came out as it did, by request id.
    """

    def __init__(self, recording: Any) -> None:
        _check(recording)
        self.recording = recording
        given = dict(recording["config"])
        self.config: dict[str, Any] = {
            "num_gpu_blocks": given.pop("num_blocks"),
            "scheduling_policy": given.pop("policy"),
            "enable_chunked_prefill": True,
            "scheduler_reserve_full_isl": True,
            **given,
        }
        self.size: int = self.config["block_size"]
        self.explainer = Explainer(self.config)
        self.spec: dict[str, Any] = self.config.get("speculative_config") or {}
        use_eagle = self.spec.get("method") == "eagle"
        self.contents = _Contents(self.size, self.config["enable_prefix_caching"], use_eagle)
        self.infos: dict[str, RequestInfo] = {}
        self.tokens: dict[str, list[int]] = {}  # prompt and output
        self.computed: dict[str, int] = {}
        self.tables: dict[str, list[int]] = {}
        self.published: dict[str, int] = {}  # full blocks of the table that are published
        self.running: list[str] = []
        self.waiting: list[str] = []
        order = enumerate(recording["requests"])
        self.pending = sorted(order, key=lambda pair: (pair[1]["step"], pair[1]["id"]))[::-1]
        self.requests: list[RequestInfo] = []
        self.reasons: dict[str, Reason] = {}

    def read(self, name: str) -> Trace:
        seed, engine = self.recording["seed"], self.recording.get("engine", "vLLM 0.22.1")
        steps = [
            self.step(at, step, *self.begin(at)) for at, step in enumerate(self.recording["steps"])
        ]
        return Trace(
            config=self.config,
            requests=self.requests,
            steps=steps,
            source=f"{engine}, its own scheduler, recorded",
            title=f"Recorded decisions of {engine}, seed {seed}" + (f" ({name})" if name else ""),
            about="Steps count from 0, as in the recording. The queue and the prefix cache are "
            "worked out from it; the model's tokens are made up.",
            aborted_at_end=[r for r in self.infos if r not in {*self.running, *self.waiting}],
        )

    def _publish(self, request_id: str, num_tokens: int) -> list[int]:
        """Publish the full blocks of the first `num_tokens` tokens; those that are new."""
        known_tokens, first = self.tokens[request_id], self.published[request_id]
        full = min(num_tokens, len(known_tokens)) // self.size
        self.published[request_id] = max(first, full)
        table = self.tables[request_id]
        return self.contents.publish(request_id, known_tokens, table, first, full)

    def _outcome(self, request_id: str, step: Any) -> tuple[list[int], str | None]:
        """The tokens that a request of this step samples, and how it ends, if it does."""
        info, new = self.infos[request_id], list[int]()
        if self.computed[request_id] >= info.num_prompt_tokens + len(info.output_token_ids):
            done = len(info.output_token_ids)
            num_sampled = step["sampled"][request_id] if self.spec else 1
            new = self.recording["outputs"][request_id][done : done + num_sampled]
        return new, _REASONS.get(step["finished"].get(request_id, ""))

    def _arrive(self, at: int) -> list[str]:
        came = []
        while self.pending and self.pending[-1][1]["step"] <= at:
            place, q = self.pending.pop()
            info = RequestInfo(
                q["id"], len(q["prompt"]), q["max_tokens"], q["priority"], float(place),
                prompt_token_ids=list(q["prompt"]),
            )  # fmt: skip
            self.infos[q["id"]] = info
            self.tokens[q["id"]] = list(q["prompt"])
            self.computed[q["id"]], self.tables[q["id"]] = 0, []
            self.requests.append(info)
            self.waiting.append(q["id"])
            self.explainer.arrived(info)
            came.append(q["id"])
        return came

    def _abort(self, at: int) -> list[str]:
        gone = [
            q["id"]
            for q in self.recording["requests"]
            if q["abort"] == at and q["id"] in self.infos
        ]
        for request_id in gone:
            (self.running if request_id in self.running else self.waiting).remove(request_id)
            self._leave(request_id)
        return gone

    def _leave(self, request_id: str, explainer_too: bool = True) -> None:
        del self.infos[request_id], self.tokens[request_id]
        self.contents.forget(request_id)
        if explainer_too:
            self.explainer.left(request_id)

    def begin(self, at: int) -> tuple[list[str], list[str]]:
        """The requests that arrive before the step, and those that are aborted."""
        arrived, aborted = self._arrive(at), self._abort(at)
        if at in self.recording.get("resets", ()):
            for request_id in self.running:
                self.computed[request_id], self.tables[request_id] = 0, []
            self.waiting, self.running = self.running + self.waiting, []
            self.contents.clear()
            self.explainer.reset_running()
        unseen = set(arrived).intersection(aborted)  # came and left between two steps
        self.requests = [info for info in self.requests if info.request_id not in unseen]
        return [r for r in arrived if r not in unseen], [r for r in aborted if r not in unseen]

    def step(self, at: int, step: Any, arrived: list[str], aborted: list[str]) -> StepTrace:
        """What the step decided, with the reasons."""
        preempted = set(step["preempted"])
        victims = [r for r in self.running if r in preempted]
        for request_id in victims:
            self.computed[request_id], self.tables[request_id] = 0, []
        self.running = [r for r in self.running if r not in preempted]
        self.waiting = victims + self.waiting

        evicted, published, scheduled = [], [], []
        for request_id, tokens in step["scheduled"].items():
            table, before = step["blocks"][request_id], self.tables[request_id]
            hit = 0
            if request_id not in self.running:
                hit = len(table) - -(tokens // -self.size)
                self.waiting.remove(request_id)
                self.running.append(request_id)
                self.computed[request_id] = hit * self.size
                self.published[request_id] = hit
            known, num_computed = len(before) or hit, self.computed[request_id]
            evicted += self.contents.take(table[known:])
            self.computed[request_id] = num_computed + tokens
            self.tables[request_id] = table if table != before else before
            published += self._publish(request_id, num_computed + tokens)
            new, reason = self._outcome(request_id, step)
            drafts = step.get("drafts", {}).get(request_id, ())
            accepted = step["sampled"][request_id] - 1 if drafts and "sampled" in step else 0
            scheduled.append(
                RequestStep(
                    request_id,
                    num_computed,
                    tokens,
                    hit * self.size,
                    self.tables[request_id],
                    new,
                    reason,
                    draft_token_ids=list(drafts),
                    num_accepted_tokens=accepted,
                )
            )
        self.running = list(step["running"])
        if self.config["scheduling_policy"] == "priority":
            infos = self.infos
            self.waiting.sort(key=lambda r: (infos[r].priority, infos[r].arrival_time, r))
        free, usable = step["free"], self.config["num_gpu_blocks"] - 1
        made = StepTrace(
            index=at, start=0.0, schedule_time=0.0, execute_time=0.0, update_time=0.0,
            scheduled=scheduled, preempted=sorted(preempted), running=list(self.running),
            waiting=list(self.waiting), free_blocks=free,
            kv_usage=1.0 - free / usable if usable else 0.0, arrived=arrived,
            aborted=aborted, evicted=sorted(evicted),
            published=sorted(published),
        )  # fmt: skip
        self.reasons = self.explainer.explain(made, lambda r: self.contents.hits(r, self.tokens[r]))
        for part in scheduled:
            self.infos[part.request_id].output_token_ids.extend(part.new_token_ids)
            self.tokens[part.request_id].extend(part.new_token_ids)
            if part.finish_reason is not None:
                self._leave(part.request_id, explainer_too=False)
            elif self.spec:
                states = self.explainer.states
                self.computed[part.request_id] = states[part.request_id].num_computed_tokens
        for request_id, num_drafts in step.get("proposed", {}).items():
            # A request in mid-prompt has none, whatever was drafted for it.
            if request_id in self.infos and step["sampled"][request_id]:
                self.explainer.drafted(request_id, num_drafts)
        return made
