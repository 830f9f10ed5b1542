"""vLLM's own unit tests, run on `mini_vllm`: what passes, what asks for a feature that is not there.

The tests are vLLM's, from its source distribution; none of them stands in this repository. They are run
twice in an environment that has vLLM: as they are, and with vLLM's classes exchanged for ours (`swap`).
`expected.tsv` says what comes out for each test that vLLM itself passes on a CPU, and a run is compared with
it both ways.
"""
