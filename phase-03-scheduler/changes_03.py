"""What the exercise that changes the engine measures: run it before the change, and after it.

    python phase-03-scheduler/changes_03.py

No model runs; a step takes what an A100 needs for it at its best (`crowd.py`).
"""

from __future__ import annotations

from crowd import Ask, serve


def storms() -> None:
    """Sixty requests at once, of three kinds, in 1,000 blocks of 16: what it costs that the pool runs out."""
    for prompt, wants in ((1000, 200), (200, 1000), (15_300, 100)):
        asks = [Ask(f"r {number}", 0, prompt, wants) for number in range(60)]
        served = serve(asks, num_gpu_blocks=1001, limit=20_000)
        result = (
            f"{served.preemptions:3} preemptions, {served.seconds:4.1f} s"
            if served.ended
            else "never ends"
        )
        gap = f", longest gap {served.gap('r', 100):6,.0f} ms" if served.ended else ""
        print(f"{prompt:6,} + {wants:5,}: {result}{gap}")


if __name__ == "__main__":
    storms()
