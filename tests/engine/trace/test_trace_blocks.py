"""What a trace says of text and blocks, as changes from step to step, against the engine itself."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from mini_vllm import LLMEngine
from mini_vllm.config.engine import DEFAULT_MODEL, EngineConfig
from mini_vllm.core.block_pool import BlockPool
from mini_vllm.core.kv_cache_utils import FreeKVCacheBlockQueue
from mini_vllm.engine.parts import DEFAULT_PARTS
from mini_vllm.trace import TraceRecorder, to_chrome_trace
from mini_vllm.trace.data import TraceDataError, dumps, from_data, to_data
from mini_vllm.trace.scenario import read_scenario, run_scenario
from tests.engine.helpers.engine.engine_helpers import make_engine
from tests.engine.helpers.engine.text_helpers import greedy
from tests.engine.helpers.engine.trace_helpers import PROMPTS, Replay, record


def steps_of(engine: LLMEngine) -> Iterator[int]:
    number = 0
    while engine.has_unfinished_requests():
        engine.step()
        yield (number := number + 1)


@pytest.mark.parametrize("begin", [0, 6])
def test_queue_hashes_and_references_follow_from_the_trace(begin: int) -> None:
    """With preemption, shared blocks, an abort and requests that came before the recording."""
    engine = make_engine(num_gpu_blocks=18, block_size=4, max_num_batched_tokens=12, max_num_seqs=4)
    for request_id, prompt in PROMPTS.items():
        engine.add_request(request_id, prompt, greedy(18, ignore_eos=True))
    for _ in range(begin):
        engine.step()
    recorder = TraceRecorder(engine)
    replay = Replay(recorder.trace)
    pool = engine.engine_core.kv_cache_manager.block_pool
    replay.check(pool)
    preempted = freed = 0
    for number in steps_of(engine):
        replay.play(recorder.steps[-1])
        replay.check(pool)
        if number == 5:
            engine.add_request("d", PROMPTS["a"], greedy(6, ignore_eos=True))
        if number == 8:
            engine.abort_request("b")
            engine.add_request("e", PROMPTS["b"], greedy(9, ignore_eos=True))
        preempted += len(recorder.steps[-1].preempted)
        freed += len(recorder.steps[-1].freed)
    assert preempted
    assert freed > 20
    assert from_data(json.loads(dumps(to_data(recorder.trace)))) == recorder.trace


def test_the_text_after_each_step_is_the_engines() -> None:
    engine = LLMEngine(DEFAULT_MODEL, EngineConfig(num_gpu_blocks=64))
    recorder = TraceRecorder(engine)
    for request_id, prompt in (("0", "The KV cache"), ("1", "A block table")):
        engine.add_request(request_id, prompt, greedy(24))
    said: list[dict[str, str]] = []
    while engine.has_unfinished_requests():
        said.append({output.request_id: output.outputs[0].text for output in engine.step()})
    trace = recorder.trace
    texts = {r.request_id: r.texts or [] for r in trace.requests}
    count: Counter[str] = Counter()
    for step, outputs in zip(trace.steps, said, strict=True):
        for part in step.scheduled:
            count[part.request_id] += len(part.new_token_ids)
        for request_id, text in outputs.items():
            assert "".join(texts[request_id][: count[request_id]]) == text
    assert "".join(texts["0"]).startswith(" stores the")
    assert all(len(r.texts or []) == len(r.output_token_ids) for r in trace.requests)


class SealedQueue(FreeKVCacheBlockQueue):
    """One that nobody can read."""

    get_all_free_blocks = None  # type: ignore[assignment]


class Sealed(BlockPool):
    def __init__(self, num_gpu_blocks: int, enable_caching: bool = True) -> None:
        super().__init__(num_gpu_blocks, enable_caching)
        self.free_block_queue = SealedQueue(self.blocks[1:])


def test_a_pool_of_ones_own_may_have_no_queue_to_read() -> None:
    engine = make_engine(parts=replace(DEFAULT_PARTS, block_pool=Sealed), num_gpu_blocks=18)
    recorder = TraceRecorder(engine)
    engine.add_request("a", [5] * 20, greedy(3, ignore_eos=True))
    for _ in steps_of(engine):
        assert recorder.steps[-1].freed == []
    assert recorder.trace.free_at_start is None
    assert from_data(to_data(recorder.trace)) == recorder.trace


def test_a_scenario_has_the_same_hashes_each_time() -> None:
    scenario = read_scenario(
        {
            "scenario": 1,
            "config": {"num_gpu_blocks": 9},
            "requests": [{"id": "A", "prompt": 40, "max_tokens": 2}],
        }
    )
    one, other = (run_scenario(scenario) for _ in range(2))
    hashes = [h for step in one.steps for h in step.hashes]
    assert hashes == [h for step in other.steps for h in step.hashes]
    # Each hash covers the one before it; before the first stands that of the seed 0.
    prompt, parent = one.requests[0].prompt_token_ids, hashlib.sha256(b"0").digest()
    for first, seen in zip((0, 16), hashes, strict=True):
        content = b"".join(token.to_bytes(8, "little") for token in prompt[first : first + 16])
        parent = hashlib.sha256(parent + content).digest()
        assert parent.hex().startswith(seen)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"free_at_start": [[1, 18]]}, "free_at_start"),
        ({"free_at_start": [[0, 3]]}, "free_at_start"),
        ({"free_at_start": [[1, 17], [3, 4]]}, "stands in it twice"),
        ({"hashes_at_start": ["00000000"]}, "as many as cached_at_start"),
    ],
)
def test_a_start_that_cannot_be_is_refused(change: dict[str, Any], says: str) -> None:
    data = to_data(record().trace)
    with pytest.raises(TraceDataError, match=says):
        from_data(data | change)


def test_texts_hashes_and_freed_that_cannot_be_are_refused() -> None:
    text = dumps(to_data(record().trace))

    def refused(says: str, change: Any) -> None:
        data = json.loads(text)
        change(data)
        with pytest.raises(TraceDataError, match=says):
            from_data(data)

    refused("texts must be", lambda d: d["requests"][0].update(texts=["a"]))
    refused("blocks_before", lambda d: d["requests"][0].update(blocks_before=[18]))
    refused("hashes must be", lambda d: d["steps"][0].update(hashes=["a"] * 99))
    refused("there is no block 18", lambda d: d["steps"][0].update(freed=[18]))


def test_every_event_for_perfetto_has_a_category() -> None:
    events = to_chrome_trace(record().steps)["traceEvents"]
    by_kind = {(e["ph"], e["cat"]) for e in events}
    assert by_kind == {
        ("M", "__metadata"), ("X", "engine"), ("X", "request"), ("X", "wait"), ("i", "event"),
        ("C", "counter"),
    }  # fmt: skip
