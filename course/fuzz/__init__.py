"""A fuzz for schedulers: does every read of the KV cache find what the reader thinks it finds?

    python -m course.fuzz --help

It drives vLLM's own `Scheduler` and `AsyncScheduler`, with their own KV cache manager, from the
reader's install, or `mini_vllm`'s. There is no model and no cache: `memory` stands for both. A slot
remembers the prefix that was written to it, so a wrong block, a stale one or one that nobody computed
shows at the first read. In reading order:

    world      a workload and its settings, as plain data
    draw       random worlds, and worlds aimed at what chance hardly hits
    memory     the worker: it writes, reads and samples as a plan tells it to
    engines    one interface over vLLM 0.20.0 to 0.33.0 (`engine_vllm`) and `mini_vllm`
    drive      a world from its first step to its last, and what is checked on the way
    causes     why a world goes wrong: a repair under which it does not
    shrink     the smallest world that goes wrong for the same cause
"""
