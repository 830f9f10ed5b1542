"""An HTTP server for the engine, speaking OpenAI's API as vLLM's does: `mini-vllm serve`.

    mini-vllm serve --port 8000
    curl http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' \\
        -d '{"prompt": "The KV cache", "max_tokens": 16, "temperature": 0}'

Endpoints:

    GET  /v1/models             the model, under each of its names, and the adapters
    GET  /v1/models/NAME        one of them
    POST /v1/completions        continue a prompt: text, token ids, or a list of either
    POST /v1/chat/completions   answer messages, through the checkpoint's chat template
    POST /v1/load_lora_adapter, /v1/unload_lora_adapter
                                where VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 is set
    GET  /health, /ping         200 while the engine lives, 503 after it died or where a step hangs
    GET  /version               this package's version
    GET  /metrics               vLLM's metric names, in Prometheus' text format or in OpenMetrics
    GET  /openapi.json          the schema of all this

Both POST endpoints stream with `"stream": true` (server-sent events, `data: [DONE]` at the end; with
`"stream_options": {"include_usage": true}` a chunk with `usage` before it). Beside OpenAI's fields
they take vLLM's: `top_k`, `min_p`, `repetition_penalty`, `ignore_eos`, `min_tokens`,
`stop_token_ids`, `allowed_token_ids`, `prompt_logprobs`, `priority`, `cache_salt`,
`return_token_ids` and more (`protocol.py`). What vLLM has and the miniature has not is refused by
name, never ignored. Other unknown fields are ignored, as in vLLM.

`response_format` and `structured_outputs` take a rule that the output obeys (`rules.py`); what compiles it is
`--structured-outputs-config.backend`. A rule that cannot be read, compiled or obeyed is a 400 that names it.
It has at most 65,536 characters, 64 lists and objects in each other, and 10 seconds to be checked and 10 to
be compiled. A library cannot be stopped: past its time its thread is left to itself, and while there are two
of these no other rule is begun. vLLM has no such limits.

Errors are `{"error": {"message", "type", "param", "code"}}` with status 400, 401, 404, 405, 413 or 415; an
error in HTTP itself has 400, 408, 414, 431 or 503 and ends the connection. What a client may cost
before, while and after it sends a request is limited by `ServerSettings`, each with a flag of its name.
What one request may cost the others is limited too, because one thread of Python serves all: a body has at
most 1,048,576 values, 70,000 keys and 131,072 lists and objects, 16,384 messages, 128 stop strings, 1,024
`bad_words` of 1,024 characters, 1,024 `vllm_xargs`, 65,536 entries in any other list of parameters. The error
names the limit. Long bodies are read, checked and tokenized, and big answers put together, beside the event
loop. vLLM has no such limits.

Pages of other origins may use the server only where `--allowed-origins` names them.
A client that goes away aborts its request; one that has only said that it sends no more is answered.
SIGTERM and SIGINT stop accepting, let running requests finish for `--shutdown-timeout` seconds and
exit with status 0; a second signal ends at once.

Mirrors `vllm/entrypoints/openai/`. Left out: the Responses API, embeddings, reasoning, several
API server processes, SSL. Needs the extra `serve`: fastapi, uvicorn, prometheus-client,
prometheus-fastapi-instrumentator, jinja2.
"""
