"""How many bytes cross between vLLM's front end and its engine core, for our 13-token prompt.

Packs the real structures with the real encoder. Needs vLLM; no model is loaded.

    python phase-01-architecture/crossing.py
"""

from __future__ import annotations

from vllm import SamplingParams
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest
from vllm.v1.serial_utils import MsgpackEncoder

from mini_vllm.engine import DEFAULT_MODEL
from mini_vllm.tokenizer import Tokenizer


def size(message: object) -> int:
    """Bytes of a message, all its frames together."""
    return sum(len(bytes(frame)) for frame in MsgpackEncoder().encode(message))


def news(num_requests: int) -> EngineCoreOutputs:
    """A step's message: one new token for each request."""
    each = [EngineCoreOutput(f"{i}-0123abcd", [112]) for i in range(num_requests)]
    return EngineCoreOutputs(outputs=each)


def main() -> None:
    prompt = Tokenizer.from_folder(DEFAULT_MODEL).encode("The KV cache")
    for token_ids in (prompt, prompt * 100):
        request = EngineCoreRequest(
            request_id="0-0123abcd",
            prompt_token_ids=token_ids,
            mm_features=None,
            sampling_params=SamplingParams(temperature=0, max_tokens=5),
            pooling_params=None,
            arrival_time=0.5,
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
        )
        print(f"in:  a request of {len(token_ids):4} tokens   {size(request):6} bytes")
    for num_requests in (1, 64):
        print(
            f"out: one token for {num_requests:2} requests   {size(news(num_requests)):6} bytes a step"
        )


if __name__ == "__main__":
    main()
