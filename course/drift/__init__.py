"""What each release of vLLM decides otherwise than the pin, found by having it decide the same workloads.

`record` has a release's own scheduler decide all workloads, in an environment that has vLLM's dependencies;
`results/` keeps a digest of what each came to. `compare` finds offline where a release differs from the pin,
and which rules of `mini_vllm/core/sched/releases.py` account for it; `page` writes docs/RELEASES.md.
"""
