"""The pairs of phase 10: groups, sums, shards, stages, the executor, its workers, steps in flight, copies.

`course.cite.correspondence` says how a pair is written.
"""

from __future__ import annotations

from course.cite.pair import Pair

_OWN, _THEIRS = "mini_vllm/distributed", "vllm/distributed"
_STATE, _THEIR_STATE = f"{_OWN}/parallel_state.py", f"{_THEIRS}/parallel_state.py"
_COMM, _CPU = f"{_OWN}/communicator.py", f"{_THEIRS}/device_communicators/cpu_communicator.py"
_SHARDS, _STAGES = "mini_vllm/model_loader/shards.py", "mini_vllm/model_loader/stages.py"
_LAYERS, _MODELS = "vllm/model_executor/layers", "vllm/model_executor/models"
_EXECUTOR, _PROC = "mini_vllm/executor/multiproc_executor.py", "mini_vllm/executor/worker_proc.py"
_THEIR_EXECUTOR = "vllm/v1/executor/multiproc_executor.py"
_QUEUE, _CORE = "mini_vllm/engine/batch_queue.py", "vllm/v1/engine/core.py"
_ROUTER, _FLEET = "mini_vllm/sim/router.py", "mini_vllm/sim/fleet.py"
_CLIENT = "vllm/v1/engine/core_client.py"

# fmt: off
PARALLEL: dict[str, tuple[Pair, ...]] = {
    "parallel_groups": (
        Pair("what a rank is part of", f"{_STATE} RankGroups", f"{_THEIR_STATE} GroupCoordinator"),
        Pair("who sits where", f"{_STATE} get_place",
             f"`{_THEIR_STATE}:1581 in initialize_model_parallel`",
             "return divmod(rank, tensor_parallel_size)", "all_ranks"),
        Pair("layers of a stage", f"{_STATE} get_pp_indices"),
        Pair("what does not come out even", f"{_STATE} get_pp_indices",
             f"`{_THEIRS}/utils.py:129 in get_pp_indices`", "counts[-2 - i] += 1", "partitions"),
    ),
    "parallel_communicators": (
        Pair("the sum", f"{_COMM} Communicator.all_reduce"),
        Pair("a rank alone says nothing", f"{_COMM} Communicator.all_reduce",
             f"`{_THEIR_STATE}:530 in GroupCoordinator.all_reduce`",
             "if self.world_size == 1:", "world_size"),
        Pair("side by side", f"{_COMM} Communicator.all_gather"),
        Pair("memory of one machine", f"{_OWN}/shm_communicator.py SharedMemoryCommunicator",
             f"{_CPU} _CPUSHMDistributed"),
        Pair("torch's sum", "mini_vllm/gpu/torch_communicator.py TorchCommunicator.all_reduce",
             f"{_THEIRS}/device_communicators/base_device_communicator.py "
             "DeviceCommunicatorBase.all_reduce"),
    ),
    "parallel_shards": (
        Pair("heads of a rank", f"{_SHARDS} get_rank_config",
             f"`{_LAYERS}/linear.py:1028 in QKVParallelLinear.__init__`",
             "num_attention_heads=config.num_attention_heads // size", "num_heads"),
        Pair("one KV head at least", f"{_SHARDS} get_rank_config",
             f"`{_LAYERS}/linear.py:1030 in QKVParallelLinear.__init__`",
             "num_key_value_heads=max(1,", "num_kv_heads"),
        Pair("which KV head", f"{_SHARDS} ShardedWeights._cut_rows",
             "`vllm/model_executor/parameter.py:194 in _ColumnvLLMParameter.load_qkv_weight`",
             "place = self._rank * (part // rows)", "num_heads"),
        Pair("columns of a row-parallel layer", f"{_SHARDS} ShardedWeights.__getitem__",
             "vllm/model_executor/parameter.py RowvLLMParameter.load_row_parallel_weight",
             "columns = mine[1]"),
        Pair("its bias, on one rank", f"{_SHARDS} ShardedWeights.__getitem__",
             f"`{_LAYERS}/linear.py:1555 in RowParallelLinear.forward`",
             "return weight if self._rank == 0", "tp_rank"),
        Pair("its sum", f"{_SHARDS} AllReduced.__call__",
             f"`{_LAYERS}/linear.py:1559 in RowParallelLinear.forward`",
             "return self.communicator.all_reduce(self.part(x))", "tensor_model_parallel_all_reduce"),
        Pair("the vocabulary, padded", f"{_SHARDS} padded_vocab_size"),
        Pair("the embedding", f"{_SHARDS} VocabParallelEmbedding"),
        Pair("its sum", f"{_SHARDS} VocabParallelEmbedding.__getitem__",
             f"`{_LAYERS}/vocab_parallel_embedding.py:489 in VocabParallelEmbedding.forward`",
             "return self.communicator.all_reduce(found)", "tensor_model_parallel_all_reduce"),
        Pair("the logits", f"{_SHARDS} GatheredHead"),
        Pair("padding cut off", f"{_SHARDS} GatheredHead.__call__",
             f"`{_LAYERS}/logits_processor.py:103 in LogitsProcessor._get_logits`",
             "all_gather(self.head(hidden_states))[:, : self.vocab_size]", "org_vocab_size"),
        Pair("experts of a rank", f"{_SHARDS} get_experts_of_rank"),
    ),
    "parallel_stages": (
        Pair("a stage's layers", f"{_STAGES} WeightsOfStage", f"{_MODELS}/utils.py make_layers"),
        Pair("its input", f"{_STAGES} ReceivedHiddenStates.__getitem__",
             f"`{_MODELS}/llama.py:411 in LlamaModel.forward`",
             "hidden_states = self.pipeline.receive(shape)", "intermediate_tensors"),
        Pair("what it hands on", f"{_STAGES} SentHiddenStates.__call__",
             f"`{_MODELS}/llama.py:426 in LlamaModel.forward`",
             "self.pipeline.send(", "IntermediateTensors"),
        Pair("sent without waiting", f"{_STATE} Pipeline.send",
             f"{_THEIR_STATE} GroupCoordinator.isend_tensor_dict"),
        Pair("a share from each rank", f"{_STATE} Pipeline.send",
             f"`{_THEIR_STATE}:916 in GroupCoordinator.isend_tensor_dict`",
             "share = array.reshape(", "reshape"),
        Pair("put together again", f"{_STATE} Pipeline.receive",
             f"`{_THEIR_STATE}:1034 in GroupCoordinator.irecv_tensor_dict`",
             "share = self._tensor.all_gather(share, 0)", "all_gather"),
    ),
    "parallel_executor": (
        Pair("the executor", f"{_EXECUTOR} MultiprocExecutor"),
        Pair("one call is a call on every rank", f"{_EXECUTOR} MultiprocExecutor.collective_rpc",
             f"{_THEIR_EXECUTOR} MultiprocExecutor.collective_rpc"),
        Pair("the rank that answers", f"{_EXECUTOR} MultiprocExecutor.__init__",
             f"{_THEIR_EXECUTOR} MultiprocExecutor._get_output_rank",
             "self.output_rank = tensor_parallel_size"),
        Pair("run the step", f"{_EXECUTOR} MultiprocExecutor.execute_model",
             f"{_THEIR_EXECUTOR} MultiprocExecutor.execute_model"),
        Pair("sample its tokens", f"{_EXECUTOR} MultiprocExecutor.sample_tokens",
             f"{_THEIR_EXECUTOR} MultiprocExecutor.sample_tokens"),
        Pair("a rank ends: tell the core", f"{_EXECUTOR} _Ranks._fail",
             f"`{_THEIR_EXECUTOR}:290 in MultiprocExecutor.start_worker_monitor`",
             "callback(self.error)", "callback"),
        Pair("as many blocks as the poorest rank", "mini_vllm/engine/ranks.py agree_on_blocks",
             "`vllm/v1/core/kv_cache_utils.py:2061 in get_kv_cache_configs`",
             "num_gpu_blocks=int(min(blocks))", "min_num_blocks"),
    ),
    "parallel_worker": (
        Pair("a rank's process", f"{_PROC} run_worker", f"{_THEIR_EXECUTOR} WorkerProc.worker_main"),
        Pair("the next call", f"{_PROC} run_worker",
             f"`{_THEIR_EXECUTOR}:948 in WorkerProc.worker_busy_loop`",
             "call = pipe.recv()", "rpc_broadcast_mq"),
        Pair("carry it out", f"{_PROC} run_worker",
             f"`{_THEIR_EXECUTOR}:957 in WorkerProc.worker_busy_loop`",
             "result = getattr(worker, method)(*args)", "func"),
        Pair("answer, if asked", f"{_PROC} run_worker",
             f"`{_THEIR_EXECUTOR}:969 in WorkerProc.worker_busy_loop`",
             "if wants_answer:", "output_rank"),
        Pair("the worker", "mini_vllm/worker/worker.py Worker", "vllm/v1/worker/gpu_worker.py Worker"),
        Pair("a step", "mini_vllm/worker/worker.py Worker.execute_model",
             "vllm/v1/worker/gpu_worker.py Worker.execute_model"),
        Pair("what the last stage sampled", "mini_vllm/worker/worker.py Worker.execute_model",
             "`vllm/v1/core/sched/scheduler.py:1059 in Scheduler._make_cached_request_data`",
             "self._append(req_id, token_ids)", "use_pp"),
    ),
    "parallel_queue": (
        Pair("the loop's body", f"{_QUEUE} BatchQueue.step"),
        Pair("how deep", f"{_QUEUE} BatchQueue.__init__",
             f"{_THEIR_EXECUTOR} MultiprocExecutor.max_concurrent_batches",
             "self.size = executor.max_concurrent_batches"),
        Pair("schedule another", f"{_QUEUE} BatchQueue.step",
             f"`{_CORE}:497 in EngineCore.step_with_batch_queue`",
             "scheduler_output = self.scheduler.schedule()", "schedule"),
        Pair("room for one more: do not wait", f"{_QUEUE} BatchQueue.step",
             f"`{_CORE}:528 in EngineCore.step_with_batch_queue`",
             "and len(self.batches) < self.size", "batch_queue_size"),
        Pair("wait for the oldest", f"{_QUEUE} BatchQueue.step",
             f"`{_CORE}:542 in EngineCore.step_with_batch_queue`",
             "batch = self.batches.pop()", "pop"),
        Pair("take it in", f"{_QUEUE} BatchQueue.step",
             f"`{_CORE}:557 in EngineCore.step_with_batch_queue`",
             "outputs = self.scheduler.update_from_output(", "update_from_output"),
    ),
    "parallel_fleet": (
        Pair("the least loaded engine", f"{_ROUTER} LeastLoaded"),
        Pair("waiting weighs four", f"{_ROUTER} WAITING_WEIGHT",
             f"`{_CLIENT}:1399 in DPLBAsyncMPClient.get_core_engine_for_request`", None, "score"),
        Pair("the choice counts at once", f"{_ROUTER} LeastLoaded._count",
             f"`{_CLIENT}:1405 in DPLBAsyncMPClient.get_core_engine_for_request`",
             "self.scores[chosen] += WAITING_WEIGHT", "current_counts"),
        Pair("an engine's counts", f"{_FLEET} Fleet._go_on",
             f"{_CORE} DPEngineCoreProc._maybe_publish_request_counts",
             "self._scores[index] = WAITING_WEIGHT"),
        Pair("published, each tenth of a second", f"{_FLEET} Fleet._publish",
             "`vllm/v1/engine/coordinator.py:259 in DPCoordinatorProc.process_input_socket`",
             "self.router.refresh(self._scores)", "stats_update_interval_ms"),
    ),
}
