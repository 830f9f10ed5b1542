"""The pairs of phase 09: what a batch asks for, its stages, the draw, processors, n answers, beams.

`course.cite.correspondence` says how a pair is written.
"""

from __future__ import annotations

from course.cite.pair import Pair

_OWN, _THEIRS = "mini_vllm/sample", "vllm/v1/sample"
_SAMPLER, _THEIR_SAMPLER = f"{_OWN}/sampler.py", f"{_THEIRS}/sampler.py"
_TOPK = f"{_THEIRS}/ops/topk_topp_sampler.py"
_PROCESSOR, _BEAMS = f"{_OWN}/logits_processor", "mini_vllm/entrypoints/beam_search.py"
_BATCH = "vllm/v1/worker/gpu_input_batch.py"
_THEIR_BEAMS = "vllm/entrypoints/generate/beam_search"

# fmt: off
SAMPLING: dict[str, tuple[Pair, ...]] = {
    "sampling_batch": (
        Pair("a batch's wishes", f"{_OWN}/metadata.py SamplingMetadata"),
        Pair("collected", f"{_OWN}/metadata.py SamplingMetadata.build"),
        Pair("none asks for top-p: no column", f"{_OWN}/metadata.py SamplingMetadata.build",
             f"`{_BATCH}:918 in InputBatch._make_sampling_metadata`", "top_p=_column(", "top_p"),
        Pair("outputs, counted", f"{_OWN}/metadata.py PenaltyState.update_state"),
        Pair("a seed's generator", f"{_OWN}/metadata.py make_generator",
             "`vllm/v1/worker/gpu_model_runner.py:1199 in GPUModelRunner._update_states`",
             "return TorchGenerator(", "Generator"),
    ),
    "sampling_before": (
        Pair("in this order", f"{_SAMPLER} Sampler.apply_logits_processors"),
        Pair("allowed ids", f"{_SAMPLER} Sampler.apply_logits_processors",
             f"`{_THEIR_SAMPLER}:392 in Sampler.apply_logits_processors`",
             "logits = mask_logits(logits, metadata.allowed", "masked_fill_"),
        Pair("bad words", f"{_OWN}/ops.py apply_bad_words"),
        Pair("min_tokens", f"{_OWN}/ops.py apply_min_tokens"),
        Pair("logit_bias", f"{_OWN}/ops.py apply_logit_bias"),
        Pair("penalties", f"{_OWN}/ops.py apply_penalties"),
    ),
    "sampling_behind": (
        Pair("in this order", f"{_SAMPLER} Sampler.sample"),
        Pair("temperature", f"{_OWN}/ops.py apply_temperature"),
        Pair("greedy rows, by 1", f"{_OWN}/ops.py apply_temperature",
             f"`{_THEIR_SAMPLER}:231 in Sampler.apply_temperature`", "temp = np.where(", "where"),
        Pair("min_p", f"{_OWN}/ops.py apply_min_p"),
        Pair("top_k alone", f"{_OWN}/ops.py apply_top_k_only"),
        Pair("ties stay", f"{_OWN}/ops.py apply_top_k_only", f"`{_TOPK}:392 in apply_top_k_only`",
             "return mask_logits(logits, logits < kth)", "top_k_mask"),
        Pair("top_k and top_p", f"{_OWN}/ops.py apply_top_k_top_p"),
    ),
    "sampling_draw": (
        Pair("the race", f"{_OWN}/ops.py random_sample"),
        Pair("a seeded row's own noise", f"{_OWN}/ops.py random_sample", f"`{_TOPK}:415 in random_sample`",
             "draws[i] = generator.draw_53_bits(", "generator"),
        Pair("the largest p / noise", f"{_OWN}/ops.py race", f"`{_TOPK}:416 in random_sample`",
             "best = bounds.argmax(axis=-1)", "argmax"),
        Pair("V2: noise of a token", f"{_OWN}/gumbel.py gumbel_noise"),
        Pair("V2: one token a row", f"{_OWN}/gumbel.py gumbel_sample"),
        Pair("logprobs and ranks", f"{_OWN}/ops.py gather_logprobs"),
        Pair("of named tokens", f"{_OWN}/ops.py gather_specific_token_logprobs"),
    ),
    "sampling_processors": (
        Pair("the interface", f"{_PROCESSOR}/interface.py LogitsProcessor"),
        Pair("what it hears", f"{_PROCESSOR}/interface.py BatchUpdate"),
        Pair("two lists", f"{_PROCESSOR}/state.py LogitsProcessors"),
        Pair("made", "mini_vllm/sample/logitsprocs.py build_logitsprocs"),
        Pair("books by row", f"{_PROCESSOR}/adapter.py process_dict_updates"),
        Pair("one per request", f"{_PROCESSOR}/adapter.py AdapterLogitsProcessor"),
    ),
    "sampling_answers": (
        Pair("n requests", "mini_vllm/engine/llm_engine.py LLMEngine.add_core_request",
             "`vllm/v1/engine/llm_engine.py:273 in LLMEngine.add_request`",
             "children = [parent.get_child_info(", "get_child_info"),
        Pair("seed + index", "mini_vllm/engine/parallel_sampling.py ParentRequest.get_child_info",
             "`vllm/v1/engine/parallel_sampling.py:79 in ParentRequest._get_child_sampling_params`",
             "params.seed += index", "seed"),
        Pair("beams", "mini_vllm/entrypoints/llm.py LLM.beam_search"),
        Pair("a request for one token", f"{_BEAMS} one_token_params",
             f"`{_THEIR_BEAMS}/offline.py:76 in BeamSearchOfflineMixin.beam_search`",
             "logprobs=2 * params.beam_width", "beam_width"),
        Pair("their score", f"{_BEAMS} get_beam_search_score"),
    ),
}
# fmt: on
