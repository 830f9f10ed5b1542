"""The same decisions and the same tokens as vLLM: recorded, replayed, compared.

python -m course.parity FILE...     replay recorded decisions through `mini_vllm.Scheduler`
python -m course.parity.record      record new ones from vLLM's own scheduler
python -m course.parity.tokens      the same prompts through both engines
"""

from course.parity.decisions import FIELDS, explain, mini_parts, replay

__all__ = ["FIELDS", "explain", "mini_parts", "replay"]
