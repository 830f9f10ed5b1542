"""GPTQ's words run along the outputs.

That is AWQ. GPTQ transposes the weight as well, and packs along the inputs, its first axis.

Refused by `test_files_are_bit_for_bit_those_that_vllm_reads`.
"""

from course.learner.edited import edited

CHANGE = """
write_layer
- "qweight": pack(codes.T, axis=0),
+ "qweight": pack(codes.T, axis=1),
"""

exec(edited(__file__, CHANGE))
