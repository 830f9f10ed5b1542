"""It waits before the kernel that is named, not after it.

The `.item()` stands behind the kernel, because it asks for what that one computes. Its launch was still ahead
of the card.

Refused by `test_waiting_in_the_middle`.
"""

from course.learner.edited import edited

CHANGE = """
finish_time
- host += launch_s
- device = max(device, host) + seconds
- if i in waits_after:
-     host = device
+ if i in waits_after:
+     host = max(host, device)
+ host += launch_s
+ device = max(device, host) + seconds
"""

exec(edited(__file__, CHANGE))
