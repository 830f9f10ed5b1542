"""The same decisions and the same tokens as vLLM: recorded, replayed, compared.

python -m course.parity FILE...     replay recorded decisions through `mini_vllm.Scheduler`
python -m course.parity.record      record new ones from vLLM's own scheduler
python -m course.parity.tokens      the same prompts through both engines

The names below load on first use: Ctrl-C while the command loads is then `course.door`'s.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from course.parity.decisions import FIELDS, explain, mini_parts, replay

__all__ = ["FIELDS", "explain", "mini_parts", "replay"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'course.parity' has no attribute {name!r}")
    from course.parity import decisions

    return getattr(decisions, name)
