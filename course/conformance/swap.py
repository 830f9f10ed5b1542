"""The pytest plugin of both runs: exchanges vLLM's names for ours, and notes what each test came to.

    python -m pytest -p course.conformance.swap --engine mini --record FILE tests/v1/core/test_scheduler.py

A test module has taken its names from vLLM when it was imported. So once all are collected, whatever they
hold is compared by identity with what `pairs` lists, and exchanged. The module that defines a name gets ours
too, for a test that imports inside a function; vLLM's other modules keep what they have.
"""

from __future__ import annotations

import dataclasses
import json
import random
import sys
from collections.abc import Generator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import mini_vllm
from course.conformance import missing
from course.conformance.table import Outcome

_HOME = str(Path(mini_vllm.__file__).parent)
_entered: set[str] = set()  # tests in which a line of mini_vllm ran
_failed: dict[str, str] = {}  # test: the error, of whichever phase
_outcomes: dict[str, str] = {}
_asked: dict[str, list[str]] = {}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("conformance")
    group.addoption("--engine", choices=("vllm", "mini"), default="mini")
    group.addoption("--record", type=Path, help="where the outcomes go, a line of JSON a test")


def pairs() -> list[tuple[Any, Any]]:
    """What of vLLM's is exchanged for what."""
    import vllm
    import vllm.distributed.kv_events as v_events
    import vllm.outputs as v_outputs
    import vllm.sampling_params as v_params
    import vllm.v1.core.block_pool as v_pool
    import vllm.v1.core.encoder_cache_manager as v_encoder
    import vllm.v1.core.kv_cache_manager as v_manager
    import vllm.v1.core.kv_cache_utils as v_utils
    import vllm.v1.core.sched.async_scheduler as v_async
    import vllm.v1.core.sched.request_queue as v_queue
    import vllm.v1.core.sched.scheduler as v_scheduler
    import vllm.v1.core.sched.utils as v_sched_utils
    import vllm.v1.core.single_type_kv_cache_manager as v_single
    import vllm.v1.cudagraph_dispatcher as v_dispatcher
    import vllm.v1.engine.logprobs as v_logprobs
    import vllm.v1.engine.output_processor as v_processor
    import vllm.v1.engine.parallel_sampling as v_parallel
    import vllm.v1.metrics.stats as v_stats
    import vllm.v1.request as v_request
    import vllm.v1.sample.sampler as v_sampler
    import vllm.v1.structured_output as v_grammars
    import vllm.v1.structured_output.backend_guidance as v_guidance
    import vllm.v1.structured_output.backend_types as v_backend_types
    import vllm.v1.structured_output.backend_xgrammar as v_xgrammar

    import mini_vllm.core.block_pool as m_pool
    import mini_vllm.core.kv_cache_manager as m_manager
    import mini_vllm.core.kv_cache_utils as m_utils
    import mini_vllm.core.request as m_request
    import mini_vllm.core.sched.request_queue as m_queue
    import mini_vllm.core.sched.utils as m_sched_utils
    import mini_vllm.core.stats as m_core_stats
    import mini_vllm.distributed.kv_events as m_events
    import mini_vllm.outputs as m_outputs
    import mini_vllm.sampling_params as m_params
    import mini_vllm.structured_output.backend_types as m_backend_types
    import mini_vllm.utils.structured_params as m_structured
    from course.conformance import core, front, grammars, groups, schedulers

    stub = front.raise_missing
    return [
        (vllm.LLM, front.LLM),
        (vllm.LLMEngine, mini_vllm.LLMEngine),
        (vllm.EngineArgs, front.EngineArgs),
        (v_request.Request, core.Request),
        (v_request.RequestStatus, m_request.RequestStatus),
        (v_params.SamplingParams, front.SamplingParams),
        (v_params.BeamSearchParams, m_params.BeamSearchParams),
        (v_params.RequestOutputKind, m_params.RequestOutputKind),
        (v_scheduler.Scheduler, schedulers.Scheduler),
        (v_async.AsyncScheduler, schedulers.AsyncScheduler),
        (v_queue.SchedulingPolicy, m_queue.SchedulingPolicy),
        (v_queue.create_request_queue, m_queue.create_request_queue),
        (v_sched_utils.check_stop, m_sched_utils.check_stop),
        (v_sched_utils.check_sequence_repetition, m_sched_utils.check_sequence_repetition),
        (v_params.RepetitionDetectionParams, m_params.RepetitionDetectionParams),
        (v_manager.KVCacheManager, core.KVCacheManager),
        (v_single.SlidingWindowManager, groups.SlidingWindowManager),
        (v_single.ChunkedLocalAttentionManager, groups.ChunkedLocalAttentionManager),
        (v_single.CrossAttentionManager, stub("encoder-decoder")),
        (v_encoder.EncoderCacheManager, stub("multi-modal inputs")),
        (v_encoder.EncoderDecoderCacheManager, stub("encoder-decoder")),
        (v_pool.BlockPool, core.BlockPool),
        (v_events.BlockStored, m_events.BlockStored),
        (v_events.BlockRemoved, m_events.BlockRemoved),
        (v_events.AllBlocksCleared, m_events.AllBlocksCleared),
        (v_manager.logger, m_manager.logger),
        (v_pool.BlockHashToBlockMap, m_pool.BlockHashToBlockMap),
        (v_utils.KVCacheBlock, m_utils.KVCacheBlock),
        (v_utils.FreeKVCacheBlockQueue, m_utils.FreeKVCacheBlockQueue),
        (v_utils.init_none_hash, core.init_none_hash),
        (v_utils.hash_block_tokens, core.hash_block_tokens),
        (v_utils.get_request_block_hasher, core.BlockHasher),
        (v_utils.generate_block_hash_extra_keys, core.generate_block_hash_extra_keys),
        (v_utils.make_block_hash_with_group_id, m_utils.make_block_hash_with_group_id),
        (v_utils.get_block_hash, core.get_block_hash),
        (v_utils.get_group_id, core.get_group_id),
        (v_stats.PrefixCacheStats, m_core_stats.PrefixCacheStats),
        (v_stats.CachingMetrics, m_core_stats.CachingMetrics),
        (v_stats.PromptTokenStats, front.PromptTokenStats),
        (v_stats.IterationStats, front.IterationStats),
        (v_stats.RequestStateStats, m_outputs.RequestStateStats),
        (v_outputs.CompletionOutput, m_outputs.CompletionOutput),
        (v_sampler.Sampler, front.Sampler),
        (v_logprobs.LogprobsProcessor, front.LogprobsProcessor),
        (v_parallel.ParentRequest, front.ParentRequest),
        (v_processor.OutputProcessor, front.OutputProcessor),
        (v_processor.RequestOutputCollector, stub("queues in the output processor")),
        (v_dispatcher.CudagraphDispatcher, front.CudagraphDispatcher),
        (v_params.StructuredOutputsParams, m_structured.StructuredOutputsParams),
        (v_grammars.StructuredOutputManager, grammars.StructuredOutputManager),
        (v_guidance.GuidanceBackend, grammars.GuidanceBackend),
        (v_backend_types.StructuredOutputOptions, m_backend_types.StructuredOutputOptions),
        (
            v_xgrammar.has_xgrammar_unsupported_json_features,
            grammars.has_xgrammar_unsupported_json_features,
        ),
    ]


def seed_everything() -> None:
    """Both runs draw the same numbers."""
    import numpy as np
    import torch

    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - tests draw from it
    torch.manual_seed(0)


def exchange(table: list[tuple[Any, Any]], tests: Path) -> None:
    """Put ours where modules below `tests`, and the modules that define them, hold vLLM's."""
    ours = {id(theirs): mine for theirs, mine in table}  # `table` keeps the ids taken
    homes = {theirs.__module__ for theirs, _ in table}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name in homes or (file and Path(file).is_relative_to(tests)):
            for key, value in list(vars(module).items()):
                if id(value) in ours:
                    setattr(module, key, ours[id(value)])


def compute_in_this_process() -> None:
    """vLLM's CPU build would start a process for each model, which takes longer than most tests."""
    from vllm.v1.executor.abstract import Executor
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    Executor.get_class = staticmethod(lambda vllm_config: UniProcExecutor)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    if session.config.getoption("--engine") == "vllm":
        compute_in_this_process()
    else:
        session.config.conformance = table = pairs()  # type: ignore[attr-defined]
        exchange(table, session.config.rootpath / "tests")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    missing.asked.clear()
    result = yield
    _asked[item.nodeid] = list(missing.asked)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    seed_everything()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    def watch(frame: FrameType, event: str, arg: object) -> None:
        if frame.f_code.co_filename.startswith(_HOME):
            _entered.add(item.nodeid)
            sys.setprofile(None)

    if item.config.getoption("--engine") == "mini":
        sys.setprofile(watch)
    try:
        return (yield)
    finally:
        sys.setprofile(None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call" or report.outcome != "passed":
        _outcomes.setdefault(item.nodeid, report.outcome)
    if report.outcome == "failed" and call.excinfo is not None:
        _outcomes[item.nodeid] = "failed"
        error = f"{call.excinfo.typename}: {call.excinfo.value}"
        _failed.setdefault(item.nodeid, " ".join(error.split())[:300])
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    path: Path | None = session.config.getoption("--record")
    if path is None:
        return
    lines = []
    for test, outcome in _outcomes.items():
        features = _asked.get(test, [])
        error = _failed.get(test, "")
        one = Outcome(
            test.removeprefix("tests/").removeprefix("v1/"),
            outcome,
            test in _entered,
            features[0] if features else missing.feature_named_in(error),
            error,
        )
        lines.append(json.dumps(dataclasses.asdict(one)))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
