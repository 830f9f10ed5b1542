"""acc is rescaled, and the two l are added as they are.

l and acc are sums over the same weights. If only one of them is brought to the new maximum, their quotient
is no mean any more.

Refused by `test_merge_by_hand`.
"""

from course.learner.edited import edited

CHANGE = """
merge
- return State(m, a.l * of_a + b.l * of_b, acc)
+ return State(m, a.l + b.l, acc)
"""

exec(edited(__file__, CHANGE))
