"""Equal logits count as a flip.

`argmax` takes the lowest id of equals. If that is the winner, an exact tie changes nothing.

Refused by `test_a_tie_goes_to_the_lower_id`.
"""

from course.learner.edited import edited

CHANGE = """
can_flip
- lowered = logits.astype(np.float64) + noise
- winner = int(np.argmax(logits))
- lowered[winner] -= 2 * noise
- return int(np.argmax(lowered)) != winner
+ return margin(logits) <= 2 * noise
"""

exec(edited(__file__, CHANGE))
