"""A maximum beside sizes drops those above it.

vLLM refuses: two wishes that contradict each other are an error, and only a step drops sizes.

Refused by `test_what_vllm_refuses`.
"""

from course.learner.edited import edited

CHANGE = """
capture_sizes
- sizes = {size for size in cudagraph_capture_sizes if size <= max_num_batched_tokens}
+ sizes = {size for size in cudagraph_capture_sizes if size <= max(top, 40)}
+ max_cudagraph_capture_size = None
"""

exec(edited(__file__, CHANGE))
