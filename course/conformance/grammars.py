"""vLLM's signatures over `mini_vllm`'s grammars: a request's rule, the manager, a backend; see `core`."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import mini_vllm.structured_output.backend_guidance as m_guidance
import mini_vllm.structured_output.features as m_features
import mini_vllm.structured_output.manager as m_manager
import mini_vllm.structured_output.request as m_request
from mini_vllm.structured_output.backend_types import BackendConfig
from mini_vllm.tokenizer import Tokenizer


class StructuredOutputRequest(m_request.StructuredOutputRequest):
    """The engine's, with the question that vLLM's scheduler asks."""

    def _check_grammar_completion(self) -> bool:
        return self.is_grammar_ready


def backend_config(vllm_config: Any) -> BackendConfig:
    """The settings that the engine's backends read."""
    theirs, drafter = vllm_config.structured_outputs_config, vllm_config.speculative_config
    return BackendConfig(
        theirs.disable_any_whitespace,
        theirs.disable_additional_properties,
        drafter.num_speculative_tokens if drafter is not None else 0,
    )


class StructuredOutputManager:
    """The engine's manager, made when it is first asked for something: few schedulers' managers are."""

    def __init__(self, vllm_config: Any) -> None:
        self.vllm_config = vllm_config

    @functools.cached_property
    def ours(self) -> m_manager.StructuredOutputManager:
        model = self.vllm_config.model_config
        return m_manager.StructuredOutputManager(
            Tokenizer.from_folder(model.tokenizer),
            model.get_vocab_size(),
            self.vllm_config.scheduler_config.max_num_seqs,
            backend_config(self.vllm_config),
            in_background=(
                self.vllm_config.parallel_config.distributed_executor_backend != "external_launcher"
            ),
        )

    def grammar_init(self, request: Any) -> None:
        self.ours.grammar_init(request.structured_output_request)

    def grammar_bitmask(
        self,
        requests: Mapping[str, Any],
        structured_output_request_ids: Mapping[str, int],
        scheduled_spec_decode_tokens: Mapping[str, Sequence[int]],
    ) -> Any:
        structured = {name: request.structured_output_request for name, request in requests.items()}
        ids = list(structured_output_request_ids)
        return self.ours.grammar_bitmask(structured, ids, scheduled_spec_decode_tokens)


def GuidanceBackend(
    vllm_config: Any, tokenizer: Any, vocab_size: int
) -> m_guidance.GuidanceBackend:
    """The engine's, which reads the tokenizer that a test has loaded from the same folder."""
    ours = Tokenizer.from_folder(tokenizer.name_or_path)
    return m_guidance.GuidanceBackend(ours, vocab_size, backend_config(vllm_config))


def has_xgrammar_unsupported_json_features(schema: dict[str, Any]) -> bool:
    return bool(m_features.unsupported_by_xgrammar(schema))
