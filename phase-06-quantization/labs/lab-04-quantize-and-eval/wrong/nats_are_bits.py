"""Two to the power of nats.

The logarithms are natural ones, so their base is e.

Refused by `test_a_guess_among_n_has_perplexity_n`.
"""

from course.learner.edited import edited

CHANGE = """
perplexity
- return math.exp(sum(nats) / sum(tokens))
+ return 2 ** (sum(nats) / sum(tokens))
"""

exec(edited(__file__, CHANGE))
