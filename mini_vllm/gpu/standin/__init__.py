"""The parts of `mini_vllm/gpu/graph_standin.py`, in the order of reading.

rules.py      what a GPU asks, and the error that names the rule
pool.py       memory that is handed out again, and says whether it may be read
capture.py    every operation written down, none run
graph.py      `CUDAGraph` and `graph`: hold a recording, run it
watch.py      reads of what is not there
"""
