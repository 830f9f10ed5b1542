"""A layer is its largest tensor.

Scales, zero points and indices lie in the file, too, and on the card.

Refused by `test_a_layer_is_all_its_tensors`.
"""

from course.learner.edited import edited

CHANGE = """
bytes_by_layer
- found[layer] = found.get(layer, 0) + BYTES[dtype] * math.prod(shape)
+ found[layer] = max(found.get(layer, 0), BYTES[dtype] * math.prod(shape))
"""

exec(edited(__file__, CHANGE))
