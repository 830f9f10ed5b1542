"""Every place that holds the same token in both.

Behind the first difference the two go on from different texts, so what is equal there is chance.

Refused by `test_what_comes_behind_a_difference_does_not_count`.
"""

from course.learner.edited import edited

CHANGE = """
tokens_in_common
  if one != other:
-     break
+     continue
"""

exec(edited(__file__, CHANGE))
