"""The pairs of phase 11: requests and files, the gate, the two caches, slots in the layers, rows, keys.

`course.cite.correspondence` says how a pair is written.
"""

from __future__ import annotations

from course.cite.pair import Pair

_LORA, _THEIRS = "mini_vllm/lora", "vllm/lora"
_REQUEST, _REGISTRY = f"{_LORA}/request.py", f"{_LORA}/registry.py"
_PEFT, _THEIR_PEFT = f"{_LORA}/peft_helper.py", f"{_THEIRS}/peft_helper.py"
_MODEL, _THEIR_MODEL = f"{_LORA}/lora_model.py", f"{_THEIRS}/lora_model.py"
_GATE, _SCHEDULER = f"{_LORA}/admission.py", "vllm/v1/core/sched/scheduler.py"
_CACHES, _WORKER = f"{_LORA}/worker_manager.py", f"{_THEIRS}/worker_manager.py"
_MANAGER, _LAYERS = f"{_THEIRS}/model_manager.py", f"{_LORA}/layers.py"
_THEIR_BASE = f"{_THEIRS}/layers/base_linear.py"
_STEP, _OPS = f"{_LORA}/component.py", f"{_LORA}/ops.py"
_META = f"{_THEIRS}/ops/triton_ops/lora_kernel_metadata.py"
_PUNICA = f"{_THEIRS}/punica_wrapper/punica_gpu.py"
_KEYS, _THEIR_KEYS = "mini_vllm/core/kv_cache_utils.py", "vllm/v1/core/kv_cache_utils.py"

# fmt: off
LORA: dict[str, tuple[Pair, ...]] = {
    "lora_requests": (
        Pair("an adapter, asked for", f"{_REQUEST} LoRARequest"),
        Pair("numbers begin at 1", f"{_REQUEST} LoRARequest.__post_init__",
             f"`{_THEIRS}/request.py:40 in LoRARequest.__post_init__`",
             "if number < 1:", "lora_int_id"),
        Pair("the name is who it is", f"{_REQUEST} LoRARequest.__eq__",
             f"{_THEIRS}/request.py LoRARequest.__eq__"),
        Pair("are adapters on?", "mini_vllm/engine/input_processor.py InputProcessor._load_lora"),
        Pair("read the folder", f"{_REGISTRY} LoRARegistry.load",
             f"{_WORKER} WorkerLoRAManager._load_adapter"),
        Pair("the engine's limits", "mini_vllm/config/lora.py check_lora"),
        Pair("memory as large as the slots", "mini_vllm/config/engine.py EngineConfig.num_cpu_loras",
             "`vllm/config/lora.py:111 in LoRAConfig._validate_lora_config`", None, "max_cpu_loras"),
    ),
    "lora_files": (
        Pair("the settings", f"{_PEFT} PEFTHelper"),
        Pair("alpha over r, or over its root", f"{_PEFT} PEFTHelper.scaling"),
        Pair("what is refused", f"{_PEFT} PEFTHelper.from_dict",
             f"{_THEIR_PEFT} PEFTHelper.validate_legal"),
        Pair("the rank's limit", f"{_MODEL} LoRAModel.from_local_checkpoint",
             f"`{_THEIR_PEFT}:120 in PEFTHelper.validate_legal`",
             "if peft_helper.r > max_lora_rank:", "max_lora_rank"),
        Pair("the weights", f"{_MODEL} LoRAModel"),
        Pair("from a folder", f"{_MODEL} LoRAModel.from_local_checkpoint"),
        Pair("a layer that the model has not", f"{_MODEL} LoRAModel.from_local_checkpoint",
             f"`{_THEIR_MODEL}:237 in LoRAModel.from_local_checkpoint`",
             "if name not in modules:", "ValueError"),
        Pair("A or B, and of which layer", f"{_MODEL} pair_up"),
        Pair("two factors", f"{_MODEL} LoRALayerWeights"),
        Pair("the scale goes into B", f"{_MODEL} LoRAModel._read",
             f"`{_THEIRS}/lora_weights.py:40 in LoRALayerWeights.optimize`",
             "b = b * scaling", "scaling"),
    ),
    "lora_gate": (
        Pair("the rule", f"{_GATE} LoRAAdmission",
             f"`{_SCHEDULER}:574 in Scheduler.schedule`", None, "lora_config"),
        Pair("adapters of the running", f"{_GATE} LoRAAdmission.start_step",
             f"`{_SCHEDULER}:537 in Scheduler.schedule`", "self.scheduled_loras = {",
             "scheduled_loras"),
        Pair("never more than slots", f"{_GATE} LoRAAdmission.start_step",
             f"`{_SCHEDULER}:542 in Scheduler.schedule`",
             "assert len(self.scheduled_loras) <= self.max_loras", "max_loras"),
        Pair("all slots taken?", f"{_GATE} LoRAAdmission.check",
             f"`{_SCHEDULER}:577 in Scheduler.schedule`",
             "full = len(self.scheduled_loras) == self.max_loras", "max_loras"),
        Pair("skip", f"{_GATE} LoRAAdmission.check",
             f"`{_SCHEDULER}:583 in Scheduler.schedule`",
             "return Admission.SKIP", "step_skipped_waiting"),
        Pair("one more adapter", f"{_GATE} LoRAAdmission.admit",
             f"`{_SCHEDULER}:797 in Scheduler.schedule`",
             "self.scheduled_loras.add(", "scheduled_loras"),
    ),
    "lora_caches": (
        Pair("both caches", f"{_CACHES} LRUCacheWorkerLoRAManager",
             f"{_WORKER} LRUCacheWorkerLoRAManager"),
        Pair("bring a step's adapters in", f"{_STEP} LoRAComponent.set_active_loras"),
        Pair("more than slots: an error", f"{_CACHES} LRUCacheWorkerLoRAManager.set_active_adapters",
             f"`{_WORKER}:265 in LRUCacheWorkerLoRAManager._apply_adapters`",
             "raise RuntimeError(", "RuntimeError"),
        Pair("one after the other", f"{_CACHES} LRUCacheWorkerLoRAManager.set_active_adapters",
             f"`{_WORKER}:271 in LRUCacheWorkerLoRAManager._apply_adapters`",
             "self._add_adapter(key, request)", "add_adapter"),
        Pair("load first", f"{_CACHES} LRUCacheWorkerLoRAManager._add_adapter",
             f"`{_WORKER}:287 in LRUCacheWorkerLoRAManager.add_adapter`",
             "adapter = self._load(request)", "_load_adapter"),
        Pair("then evict the oldest", f"{_CACHES} LRUCacheWorkerLoRAManager._add_adapter",
             f"`{_WORKER}:297 in LRUCacheWorkerLoRAManager.add_adapter`",
             "oldest, _ = self._registered.popitem(last=False)", "remove_oldest_adapter"),
        Pair("then a slot", f"{_CACHES} LRUCacheWorkerLoRAManager._add_adapter",
             f"`{_WORKER}:306 in LRUCacheWorkerLoRAManager.add_adapter`",
             "self._activate(key)", "activate_adapter"),
        Pair("free the oldest slot", f"{_CACHES} LRUCacheWorkerLoRAManager._activate",
             f"`{_MANAGER}:1216 in LRUCacheLoRAModelManager.activate_adapter`",
             "self._deactivate(next(iter(self._active)))", "remove_oldest"),
        Pair("the first free one", f"{_CACHES} LRUCacheWorkerLoRAManager._activate",
             f"`{_MANAGER}:292 in LoRAModelManager.activate_adapter`",
             "index = self.lora_index_to_id.index(None)", "first_free_slot"),
        Pair("fill it", f"{_STEP} LoRAComponent._set_slot",
             f"`{_MANAGER}:309 in LoRAModelManager.activate_adapter`",
             "for layer in self.layers:", "modules"),
    ),
    "lora_layers": (
        Pair("wrap the model's layers", f"{_LAYERS} add_lora_layers"),
        Pair("which can be adapted", f"{_LAYERS} get_lora_modules",
             f"{_THEIRS}/utils.py get_supported_lora_modules"),
        Pair("a wrapper", f"{_LAYERS} LinearWithLoRA", f"{_THEIR_BASE} BaseLinearLayerWithLoRA"),
        Pair("fill a slot", f"{_LAYERS} LinearWithLoRA.set_lora"),
        Pair("q, k, v side by side", f"{_LAYERS} LinearWithLoRA.set_lora",
             f"`{_THEIRS}/layers/column_parallel_linear.py:318 "
             "in MergedColumnParallelLinearWithLoRA.set_lora`",
             "for name, size in zip(", "n_slices"),
        Pair("the base first", f"{_LAYERS} LinearWithLoRA.__call__",
             f"`{_THEIR_BASE}:198 in BaseLinearLayerWithLoRA._apply_sync`",
             "y = self.base_layer(x)", "base_layer"),
        Pair("then the delta, in place", f"{_LAYERS} LinearWithLoRA.__call__",
             f"`{_THEIR_BASE}:218 in BaseLinearLayerWithLoRA._apply_lora_to_output`",
             "self.add_lora(y, x, self.mapping, self.slots)", "add_lora_linear"),
    ),
    "lora_rows": (
        Pair("a row's slot", f"{_STEP} LoRAComponent.set_active_loras",
             f"{_THEIRS}/punica_wrapper/utils.py convert_mapping",
             "slots = [index[lora.slot_key] if lora else None for lora in of_requests]"),
        Pair("as many rows as tokens", f"{_OPS} LoRAMapping.set_rows",
             "vllm/v1/worker/gpu_input_batch.py InputBatch.make_lora_inputs"),
        Pair("rows of one slot together", f"{_OPS} LoRAMapping.set_runs",
             f"{_META} LoRAKernelMeta.prepare_tensors"),
        Pair("none has an adapter", f"{_LAYERS} LinearWithLoRA.__call__",
             f"`{_META}:124 in LoRAKernelMeta.prepare_tensors`",
             "if self.mapping.runs:", "no_lora"),
        Pair("neighbours as one run", f"{_OPS} LoRAMapping.set_rows",
             f"`{_THEIRS}/punica_wrapper/utils.py:27 in compute_meta`",
             "if runs and runs[-1].slot == slot", "unique_consecutive"),
        Pair("the product", f"{_OPS} add_lora_grouped", f"{_PUNICA} PunicaWrapperGPU.add_lora_linear"),
        Pair("shrink", f"{_OPS} add_lora_by_run",
             f"{_PUNICA} PunicaWrapperGPU.add_shrink", "shrunk = rows @ piece.lora_a.T"),
        Pair("expand, and add", f"{_OPS} add_lora_by_run",
             f"{_PUNICA} PunicaWrapperGPU.add_expand", "+= shrunk @ piece.lora_b.T"),
    ),
    "lora_keys": (
        Pair("beside the tokens", f"{_KEYS} generate_block_hash_extra_keys"),
        Pair("the adapter", f"{_REQUEST} LoadedLoRARequest.hash_key"),
        Pair("in every block", f"{_KEYS} generate_block_hash_extra_keys",
             f"`{_THEIR_KEYS}:523 in generate_block_hash_extra_keys`",
             "return request.lora_request.hash_key, *salt", "lora_extra_keys"),
        Pair("the salt, in the first", f"{_KEYS} generate_block_hash_extra_keys",
             f"`{_THEIR_KEYS}:525 in generate_block_hash_extra_keys`",
             "salt = (request.cache_salt,)", "cache_salt"),
    ),
}
