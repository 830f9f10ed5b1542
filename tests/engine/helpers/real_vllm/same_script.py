"""One script for `vllm.LLM` and `mini_vllm.LLM`, and what came out of it as plain data.

As a program (`python -m tests.engine.helpers.real_vllm.same_script ENGINE JOB ANSWER`, see
`course.parity.tokens_run.run_worker`) it keeps real vLLM in a process of its own.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

Call = dict[str, Any]
"""One call of `generate`: `prompts`, and `params`, a dict of `SamplingParams` fields or a list."""


def play(engine: str, model: str, settings: dict[str, Any], calls: list[Call]) -> list[Any]:
    """Make every call on one `LLM` of `engine`, `vllm` or `mini_vllm`.

    The answer to a call is a list of plain `RequestOutput`s, or `{"error", "message"}`.
    """
    params_type: Any
    if engine == "vllm":
        import vllm
        from vllm.v1.executor import UniProcExecutor

        llm: Any = vllm.LLM(
            model=model, dtype="float32", enforce_eager=True, async_scheduling=False,
            distributed_executor_backend=UniProcExecutor,  # else a worker's process imports vLLM again
            **settings,
        )  # fmt: skip
        params_type = vllm.SamplingParams
    else:
        import mini_vllm

        llm = mini_vllm.LLM(model, **settings)
        params_type = mini_vllm.SamplingParams
    return [_call(llm, params_type, call) for call in calls]


def _call(llm: Any, params_type: Any, call: Call) -> Any:
    try:
        wanted = call["params"]
        if isinstance(wanted, dict):
            params = params_type(**_typed(wanted))
        else:
            params = [params_type(**_typed(one)) for one in wanted]
        outputs = llm.generate(call["prompts"], params, use_tqdm=False)
    except Exception as error:
        return {"error": type(error).__name__, "message": str(error)}
    return [_plain(output) for output in outputs]


def _typed(fields: dict[str, Any]) -> dict[str, Any]:
    """JSON has only strings for keys; token ids are integers."""
    bias = fields.get("logit_bias")
    if bias is None:
        return fields
    return fields | {"logit_bias": {int(token_id): value for token_id, value in bias.items()}}


def _plain(output: Any) -> dict[str, Any]:
    return {
        "request_id": output.request_id,
        "prompt": output.prompt,
        "prompt_token_ids": list(output.prompt_token_ids),
        "prompt_logprobs": _logprobs(output.prompt_logprobs),
        "finished": output.finished,
        "num_cached_tokens": output.num_cached_tokens,
        "outputs": [
            {
                "index": one.index,
                "text": one.text,
                "token_ids": list(one.token_ids),
                "cumulative_logprob": one.cumulative_logprob,
                "logprobs": _logprobs(one.logprobs),
                "finish_reason": one.finish_reason,
                "stop_reason": one.stop_reason,
            }
            for one in output.outputs
        ],
    }


def _logprobs(positions: Any) -> Any:
    """Per position a list of [token id, logprob, rank, text], in the order of the dict."""
    if positions is None:
        return None
    return [
        None
        if position is None
        else [[int(t), e.logprob, e.rank, e.decoded_token] for t, e in position.items()]
        for position in positions
    ]


def main(engine: str, job_path: str, answer_path: str) -> None:
    job = json.loads(Path(job_path).read_text(encoding="utf-8"))
    answer = play(engine, job["model"], job["settings"], job["calls"])
    Path(answer_path).write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
