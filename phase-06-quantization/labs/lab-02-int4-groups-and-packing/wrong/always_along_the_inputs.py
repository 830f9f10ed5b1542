"""The axis is ignored.

GPTQ packs down the columns, because it has transposed the weight.

Refused by `test_words_lose_nothing`.
"""

from course.learner.edited import edited

CHANGE = """
pack
- return np.moveaxis(words.view(np.int32), -1, axis)
+ return words.view(np.int32)
"""

exec(edited(__file__, CHANGE))
