"""The pairs of phase 08: drafts in the scheduler, in the runner, their judge, their makers, their counters.

`course.cite.correspondence` says how a pair is written.
"""

from __future__ import annotations

from course.cite.pair import Pair

_SCHED, _ASYNC = "mini_vllm/core/sched/drafts.py", "mini_vllm/core/sched/async_scheduler.py"
_CORE, _RUNNER = "mini_vllm/engine/core.py", "mini_vllm/worker/speculation.py"
_METADATA, _JUDGE = "mini_vllm/spec_decode/metadata.py", "mini_vllm/sample/rejection_sampler.py"
_NGRAM, _BASE = (
    "mini_vllm/spec_decode/ngram_proposer.py",
    "mini_vllm/spec_decode/llm_base_proposer.py",
)
_EAGLE, _MODELS = "mini_vllm/spec_decode/eagle.py", "mini_vllm/models"
_STATS = "mini_vllm/core/stats.py"
_THEIR_SCHED, _THEIR_ASYNC = (
    "vllm/v1/core/sched/scheduler.py",
    "vllm/v1/core/sched/async_scheduler.py",
)
_THEIR_RUNNER = "vllm/v1/worker/gpu_model_runner.py"
_THEIR_JUDGE, _THEIRS = "vllm/v1/sample/rejection_sampler.py", "vllm/v1/spec_decode"
_THEIR_BASE, _THEIR_MODELS = f"{_THEIRS}/llm_base_proposer.py", "vllm/model_executor/models"

# fmt: off
SPEC_DECODE: dict[str, tuple[Pair, ...]] = {
    "spec_scheduler": (
        Pair("which of the drafts have room", f"{_SCHED} DraftScheduling._schedule_drafts",
             f"`{_THEIR_SCHED}:503 in Scheduler.schedule`",
             "num_scheduled_spec_tokens = (", "num_scheduled_spec_tokens"),
        Pair("the others are forgotten", f"{_SCHED} DraftScheduling._schedule_drafts",
             f"`{_THEIR_SCHED}:512 in Scheduler.schedule`",
             "spec_token_ids = request.spec_token_ids[:", "spec_token_ids"),
        Pair("how many were rejected", f"{_SCHED} DraftScheduling._take_back_rejected",
             f"`{_THEIR_SCHED}:1374 in Scheduler.update_from_output`",
             "num_rejected = num_draft_tokens - num_accepted", "num_rejected"),
        Pair("taken back", f"{_SCHED} DraftScheduling._take_back_rejected",
             f"`{_THEIR_SCHED}:1381 in Scheduler.update_from_output`",
             "request.num_computed_tokens -= num_rejected", "num_computed_tokens"),
        Pair("drafts arrive", f"{_CORE} EngineCore._update_drafts"),
        Pair("not during a prompt", f"{_SCHED} DraftScheduling.update_draft_token_ids",
             code="request.spec_token_ids = [] if request.is_prefill_chunk"),
        Pair("placeholders, asynchronously", f"{_ASYNC} AsyncScheduler._leave_draft_placeholders",
             f"`{_THEIR_ASYNC}:35 in AsyncScheduler._update_after_schedule`",
             "request.spec_token_ids = self._spec_token_placeholders", "_spec_token_placeholders"),
    ),
    "spec_runner": (
        Pair("drafts behind the tokens", f"{_RUNNER} SpecDecode.write_drafts"),
        Pair("rows of logits", f"{_METADATA} SpecDecodeMetadata.build",
             f"`{_THEIR_RUNNER}:2739 in GPUModelRunner._calc_spec_decode_metadata`",
             "logits_indices = _ranges(cu_num_scheduled_tokens", "logits_indices"),
        Pair("which of them judge", f"{_METADATA} SpecDecodeMetadata.build",
             f"`{_THEIR_RUNNER}:2755 in GPUModelRunner._calc_spec_decode_metadata`",
             "target_logits_indices = _ranges(", "target_logits_indices"),
        Pair("the bonus row", f"{_METADATA} SpecDecodeMetadata.build",
             f"`{_THEIR_RUNNER}:2746 in GPUModelRunner._calc_spec_decode_metadata`",
             "bonus_logits_indices=cu_num_sampled_tokens - 1", "bonus_logits_indices"),
        Pair("sample", f"{_RUNNER} SpecDecode.sample"),
        Pair("what drafts were drawn from", f"{_RUNNER} SpecDecode._get_spec_decode_draft_probs"),
    ),
    "spec_judge": (
        Pair("the bonus token", f"{_JUDGE} RejectionSampler.__call__",
             f"`{_THEIR_JUDGE}:129 in RejectionSampler.forward`",
             "bonus_token_ids = self.sample_bonus_tokens(", "bonus_sampler_output"),
        Pair("temperature, top-k, top-p", f"{_JUDGE} apply_sampling_constraints"),
        Pair("uniform numbers", f"{_JUDGE} generate_uniform_probs"),
        Pair("greedy: equal or not", f"{_JUDGE} rejection_sample",
             f"`{_THEIR_JUDGE}:745 in rejection_greedy_sample_kernel`",
             "accepted = draft_token_ids == instead", "target_argmax_id"),
        Pair("accept", f"{_JUDGE} _accept", f"`{_THEIR_JUDGE}:810 in rejection_random_sample_kernel`",
             "accepted: npt.NDArray[np.bool_] = ratio >= uniform_probs", "uniform_prob"),
        Pair("what p has more", f"{_JUDGE} sample_recovered_tokens",
             f"`{_THEIR_JUDGE}:903 in sample_recovered_tokens_kernel`",
             "residual = np.maximum(", "maximum"),
        Pair("the placeholders, out", f"{_JUDGE} RejectionSampler.parse_output"),
    ),
    "spec_drafters": (
        Pair("n-gram lookup", f"{_NGRAM} NgramProposer.propose_for"),
        Pair("not past the end", f"{_NGRAM} NgramProposer.propose_for",
             f"`{_THEIRS}/ngram_proposer.py:218 in _find_longest_matched_ngram_and_propose_tokens`",
             "k = min(self.k, self.max_model_len - len(tokens))", "max_model_len"),
        Pair("the loop", f"{_BASE} SpecDecodeBaseProposer.propose",
             f"`{_THEIR_BASE}:570 in SpecDecodeBaseProposer.propose`",
             "for _ in range(self.num_speculative_tokens - 1)", "num_speculative_tokens"),
        Pair("one place on", f"{_EAGLE} EagleProposer.set_inputs_first_pass",
             f"`{_THEIR_BASE}:718 in SpecDecodeBaseProposer.set_inputs_first_pass`",
             "input_ids = np.roll(inputs.input_ids, -1)", "target_token_ids"),
        Pair("the newest comes last", f"{_EAGLE} EagleProposer.set_inputs_first_pass",
             f"`{_THEIR_BASE}:721 in SpecDecodeBaseProposer.set_inputs_first_pass`",
             "input_ids[inputs.last_indices] = next_token_ids", "next_token_ids"),
        Pair("greedy or drawn", f"{_BASE} SpecDecodeBaseProposer._sample_draft_tokens"),
        Pair("EAGLE: state and token, joined", f"{_MODELS}/llama_eagle.py EagleLlamaForCausalLM.forward",
             f"`{_THEIR_MODELS}/llama_eagle.py:107 in LlamaModel.forward`",
             "hidden_states = self.fc(", "fc"),
    ),
    "spec_meters": (
        Pair("one request's drafts of a step", f"{_STATS} SpecDecodingStats.observe_draft"),
    ),
}
# fmt: on
