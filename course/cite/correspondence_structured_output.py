"""The pairs of phase 12: rules and checks, compiling, grammars, a step's rows, logits, what is accepted.

`course.cite.correspondence` says how a pair is written.
"""

from __future__ import annotations

from course.cite.pair import Pair

_OURS, _THEIRS = "mini_vllm/structured_output", "vllm/v1/structured_output"
_PARAMS, _THEIR_PARAMS = "mini_vllm/utils/structured_params.py", "vllm/sampling_params.py"
_REQUEST, _THEIR_REQUEST = f"{_OURS}/request.py", f"{_THEIRS}/request.py"
_MANAGER, _THEIR_MANAGER = f"{_OURS}/manager.py", f"{_THEIRS}/__init__.py"
_STEP, _SCHEDULER = f"{_OURS}/scheduling.py", "vllm/v1/core/sched/scheduler.py"
_TYPES, _XGRAMMAR = f"{_OURS}/backend_types.py", f"{_OURS}/backend_xgrammar.py"
_GUIDANCE, _FEATURES = f"{_OURS}/backend_guidance.py", f"{_OURS}/features.py"
_UTILS, _THEIR_UTILS = f"{_OURS}/utils.py", f"{_THEIRS}/utils.py"
_QUEUE, _CORE = "mini_vllm/engine/batch_queue.py", "vllm/v1/engine/core.py"
_RUNNER, _THEIR_RUNNER = "mini_vllm/worker/model_runner.py", "vllm/v1/worker/gpu_model_runner.py"

# fmt: off
STRUCTURED_OUTPUT: dict[str, tuple[Pair, ...]] = {
    "grammar_rules": (
        Pair("a rule", f"{_PARAMS} StructuredOutputsParams"),
        Pair("exactly one of six", f"{_PARAMS} StructuredOutputsParams.__post_init__",
             f"`{_THEIR_PARAMS}:71 in StructuredOutputsParams.__post_init__`",
             "if len(given) != 1:", "count"),
        Pair("settings", "mini_vllm/config/structured_outputs.py StructuredOutputsConfig",
             "vllm/config/structured_outputs.py StructuredOutputsConfig"),
        Pair("check, and choose a backend", f"{_MANAGER} choose_backend"),
        Pair("auto: xgrammar first", f"{_MANAGER} _choose",
             f"`{_THEIR_PARAMS}:893 in SamplingParams._validate_structured_outputs`",
             '_validate("xgrammar", key)', "validate_xgrammar_grammar"),
        Pair("then guidance", f"{_MANAGER} _choose",
             f"`{_THEIR_PARAMS}:918 in SamplingParams._validate_structured_outputs`",
             '_validate("guidance", key)', "validate_guidance_grammar"),
        Pair("xgrammar's check", f"{_XGRAMMAR} validate_xgrammar_grammar"),
        Pair("features not sent to xgrammar", f"{_FEATURES} unsupported_by_xgrammar"),
        Pair("features not sent to guidance", f"{_FEATURES} unsupported_by_guidance"),
        Pair("a choice as EBNF", f"{_UTILS} choice_as_grammar"),
        Pair("Lark as EBNF", f"{_OURS}/lark.py convert_lark_to_ebnf"),
    ),
    "grammar_compile": (
        Pair("kind and text", f"{_REQUEST} get_structured_output_key"),
        Pair("begin", f"{_MANAGER} StructuredOutputManager.grammar_init",
             f"{_THEIR_MANAGER} StructuredOutputManager.grammar_init"),
        Pair("in a thread", f"{_MANAGER} StructuredOutputManager.grammar_init",
             f"`{_THEIR_MANAGER}:168 in StructuredOutputManager.grammar_init`",
             "future = self._compilers.submit(", "submit"),
        Pair("half of the processors", f"{_MANAGER} StructuredOutputManager.__init__",
             f"`{_THEIR_MANAGER}:77 in StructuredOutputManager.__init__`",
             "self._compilers = TimedCalls(", "max_workers"),
        Pair("compile", f"{_MANAGER} StructuredOutputManager._compile",
             f"{_THEIR_MANAGER} StructuredOutputManager._create_grammar"),
        Pair("a status of its own", f"{_STEP} GrammarScheduling.init",
             "`vllm/v1/request.py:112 in Request.__init__`",
             "request.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR", "status"),
        Pair("is it there?", f"{_REQUEST} StructuredOutputRequest._poll",
             f"{_THEIR_REQUEST} StructuredOutputRequest._check_grammar_completion"),
        Pair("promotion", f"{_OURS}/admission.py GrammarAdmission",
             f"`{_SCHEDULER}:2120 in Scheduler._try_promote_blocked_waiting_request`", None, "status"),
    ),
    "grammar_backends": (
        Pair("a grammar", f"{_TYPES} StructuredOutputGrammar"),
        Pair("a backend", f"{_TYPES} StructuredOutputBackend"),
        Pair("xgrammar compiles", f"{_XGRAMMAR} XgrammarBackend.compile_grammar"),
        Pair("xgrammar's grammar", f"{_XGRAMMAR} XgrammarGrammar"),
        Pair("terminated: asked after accepting", f"{_XGRAMMAR} XgrammarGrammar.accept_tokens",
             f"`{_THEIRS}/backend_xgrammar.py:166 in XgrammarGrammar.accept_tokens`",
             "self._is_terminated = self.matcher.is_terminated()", "is_terminated"),
        Pair("guidance compiles", f"{_GUIDANCE} GuidanceBackend.compile_grammar"),
        Pair("guidance's grammar", f"{_GUIDANCE} GuidanceGrammar"),
        Pair("its end token, counted apart", f"{_GUIDANCE} GuidanceGrammar.accept_tokens",
             f"`{_THEIRS}/backend_guidance.py:162 in GuidanceGrammar.accept_tokens`",
             "self._lag = 1", "rollback_lag"),
    ),
    "grammar_rows": (
        Pair("who has a row", f"{_STEP} GrammarScheduling.get_grammar_bitmask"),
        Pair("not while its prompt is cut", f"{_STEP} GrammarScheduling._get_bound",
             f"`{_SCHEDULER}:1271 in Scheduler.get_grammar_bitmask`",
             "and not request.is_prefill_chunk", "is_prefill_chunk"),
        Pair("start the model, do not wait", f"{_STEP} GrammarScheduling.execute_model",
             f"`{_CORE}:440 in EngineCore.step`",
             "future = execute_model(scheduler_output, non_block=True)", "execute_model"),
        Pair("fill meanwhile", f"{_STEP} GrammarScheduling.execute_model",
             f"`{_CORE}:441 in EngineCore.step`",
             "grammar_output = self.get_grammar_bitmask(scheduler_output)", "get_grammar_bitmask"),
        Pair("a step's rows", f"{_MANAGER} StructuredOutputManager.grammar_bitmask"),
        Pair("fill, or −1", f"{_MANAGER} StructuredOutputManager._fill",
             f"{_THEIR_MANAGER} StructuredOutputManager._fill_bitmasks"),
        Pair("in groups of 16", f"{_MANAGER} StructuredOutputManager.grammar_bitmask",
             f"`{_THEIR_MANAGER}:256 in StructuredOutputManager.grammar_bitmask`",
             "self._fillers.submit(self._fill, g)", "_async_submit_fill_bitmask"),
        Pair("the drafts' rows", f"{_MANAGER} StructuredOutputManager._fill_with_drafts",
             f"`{_THEIR_MANAGER}:280 in StructuredOutputManager.grammar_bitmask`",
             "for token in itertools.chain(drafts, (-1,)):", "itertools"),
        Pair("roll back", f"{_MANAGER} StructuredOutputManager._fill_with_drafts",
             f"`{_THEIR_MANAGER}:291 in StructuredOutputManager.grammar_bitmask`",
             "grammar.rollback(advanced)", "rollback"),
    ),
    "grammar_logits": (
        Pair("with the sampler's call", f"{_RUNNER} ModelRunner._sample",
             f"`{_THEIR_RUNNER}:4359 in GPUModelRunner.sample_tokens`",
             "logits = grammar_output.apply(", "apply_grammar_bitmask"),
        Pair("apply", f"{_UTILS} apply_grammar_bitmask"),
        Pair("a request's first logits", f"{_UTILS} apply_grammar_bitmask",
             f"`{_THEIR_UTILS}:79 in apply_grammar_bitmask`",
             "first_row[req_id] = row", "struct_out_req_batch_indices"),
        Pair("rows in the batch's order", f"{_UTILS} apply_grammar_bitmask",
             f"`{_THEIR_UTILS}:96 in apply_grammar_bitmask`",
             "targets += range(start, start + count)", "out_indices"),
        Pair("−∞", f"{_UTILS} apply_grammar_bitmask",
             f"`{_THEIR_UTILS}:121 in apply_grammar_bitmask`",
             "logits[target, : len(barred)][barred] = -np.inf", "apply_token_bitmask_inplace"),
    ),
    "grammar_after": (
        Pair("the grammar moves on, or an error", f"{_STEP} GrammarScheduling.rejects",
             f"`{_SCHEDULER}:1420 in Scheduler.update_from_output`", None, "accept_tokens"),
        Pair("it ends by an error", f"{_STEP} GrammarScheduling.rejects",
             f"`{_SCHEDULER}:1429 in Scheduler.update_from_output`",
             "request.status = RequestStatus.FINISHED_ERROR", "FINISHED_ERROR"),
        Pair("drafts are cut", f"{_STEP} GrammarScheduling.keep_allowed",
             f"`{_SCHEDULER}:1710 in Scheduler.update_draft_token_ids`", None, "validate_tokens"),
        Pair("does a plan wait for tokens?", f"{_STEP} GrammarScheduling.is_pending",
             "`vllm/v1/core/sched/async_scheduler.py:26 in AsyncScheduler._update_after_schedule`",
             None, "pending_structured_output_tokens"),
        Pair("then its sampling is deferred", f"{_QUEUE} BatchQueue.step",
             f"`{_CORE}:521 in EngineCore.step_with_batch_queue`",
             "deferred = planned", "deferred_scheduler_output"),
    ),
}
