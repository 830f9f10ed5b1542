"""The fixtures of vLLM's tests that these runs take from its conftest.py; see `command.start`."""

from tests.conftest import example_prompts, hf_runner, vllm_runner  # type: ignore  # vLLM's, not ours

__all__ = ["example_prompts", "hf_runner", "vllm_runner"]
