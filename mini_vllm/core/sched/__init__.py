"""Which requests run in the next step, and with how many tokens. Mirrors `vllm/v1/core/sched/`."""
