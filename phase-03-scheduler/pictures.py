"""Draw the pictures of this phase's pages from runs of the engine, as SVG.

    python phase-03-scheduler/pictures.py        # writes phase-03-scheduler/pictures/*.svg

`queues` shows vLLM, because `mini_vllm` lacks the second waiting queue: it is drawn from the output in the
deep dive, which a test compares with what vLLM prints. All are drawn with `course/docs/drawing.py`.
"""

from __future__ import annotations

import re
from pathlib import Path

from both_schedulers import CONFIG, World
from noon import BLOCKS, COMES, PROMPTS, got, noon, prompt_ids

from course.docs.drawing import Drawing, write_all
from course.docs.pages import read_page
from course.parity.decisions import mini_parts

COLOUR = {"eve": "A", "fay": "B", "gil": "C", "hal": "D"}
SAID = {name: name.capitalize() for name in PROMPTS}


def legend(d: Drawing, x: float, y: float) -> float:
    """A square and a name for each; returns where the line may go on."""
    for name, css in COLOUR.items():
        d.box(x, y - 11, 12, 12, css)
        d.text(x + 17, y, SAID[name], "m")
        x += 34 + 8 * len(SAID[name])
    return x


def draw_beside_eve(last: int = 10) -> Drawing:
    """The steps that yield Eve's first tokens, as high as they have tokens, under two budgets."""
    left, wide, unit = 44, 56, 3.2
    d = Drawing("What is computed in the steps that yield Eve's tokens, with two budgets", 404)
    for budget, base in ((64, 220), (16, 350)):
        d.text(left, base - 188 if budget == 64 else base - 84, f"a budget of {budget} tokens")
        for step in noon(max_num_batched_tokens=budget)[:last]:
            x: float = left + (step.index - 1) * wide
            y = float(base)
            for name in PROMPTS:
                tokens = got(step, name)
                y -= tokens * unit
                if tokens:
                    d.box(x, y, wide - 8, tokens * unit, COLOUR[name], 0)
            total = sum(got(step, name) for name in PROMPTS)
            d.text(x + wide / 2 - 4, y - 5, total, "m", "middle")
            d.text(x + wide / 2 - 4, base + 17, step.index, "s", "middle")
    x = legend(d, left, 391)
    d.text(x, 391, "height: tokens in the step; below: step number", "m")
    return d


def draw_noon() -> Drawing:
    """Who waits and who is computed in all of noon's steps, and the free blocks."""
    left, cell, row, top, high = 46, 23.4, 46, 16, 60
    steps = noon()
    d = Drawing("Eve, Fay, Gil and Hal in 25 steps, and the blocks that are free", 338)
    for number, name in enumerate(PROMPTS):
        y = top + number * row
        d.text(left - 8, y + 20, SAID[name], "m", "end")
        ends = max(step.index for step in steps if got(step, name))
        for step in steps:
            x, tokens = left + (step.index - 1) * cell, got(step, name)
            if tokens:
                d.box(x, y, cell - 2, 30, COLOUR[name])
                d.text(x + cell / 2 - 1, y + 20, tokens, "on m", "middle")
            elif COMES[name] <= step.index < ends:
                d.box(x, y + 12, cell - 2, 6, COLOUR[name])
            if name in step.preempted:
                d.path([(x + cell / 2 - 1, y + 20), (x + cell / 2 - 1, y + 43)], "bold", 2)
                d.text(x + cell / 2 + 4, y + 42, "loses his blocks", "s")
    base = top + 4 * row + high + 26
    d.text(left, base - high - 10, f"free blocks, of {BLOCKS}", "m")
    for step in steps:
        x = left + (step.index - 1) * cell
        free = BLOCKS - step.blocks_in_use
        d.box(
            x, base - free * high / BLOCKS, cell - 2, max(free * high / BLOCKS, 1), "none edge", 0
        )
        d.text(x + cell / 2 - 1, base + 17, step.index, "s", "middle")
    d.text(left, base + 40, "thick: computed, with the number of tokens; thin: waiting", "m")
    return d


def draw_lanes(device: float = 8.0, schedule: float = 2.6, update: float = 1.0) -> Drawing:
    """Six steps, one after the other and one ahead; lengths in ms."""
    left, unit, high = 86, 7.6, 30
    d = Drawing("Scheduler and device, in turn and at the same time", 300)

    def lane(y: float, name: str) -> None:
        d.text(left - 10, y + 20, name, "m", "end")

    def bar(y: float, start: float, long: float, css: str, words: object = "") -> None:
        d.box(left + start * unit, y, long * unit - 1.5, high, css)
        d.text(left + (start + long / 2) * unit, y + 20, words, "on m", "middle")

    d.text(left, 24, "synchronous: schedule, compute, update")
    lane(36, "scheduler")
    lane(72, "device")
    now = 0.0
    for step in range(1, 7):
        bar(36, now, schedule, "A", step)
        bar(72, now + schedule, device, "C", step)
        bar(36, now + schedule + device, update, "D")
        now += schedule + device + update
    d.text(left, 142, "asynchronous: step 2 is scheduled while step 1 is computed")
    lane(154, "scheduler")
    lane(190, "device")
    bar(154, 0, schedule, "A", 1)
    host, free = schedule, schedule  # when the scheduler and the device are free again
    for step in range(1, 7):
        bar(190, free, device, "C", step)
        ends = free + device
        if step < 6:
            bar(154, host, schedule, "A", step + 1)
            host += schedule
        bar(154, max(host, ends), update, "D")
        free, host = max(ends, host), max(host, ends) + update
    y = 254
    x = float(left)
    for css, words in (("A", "schedule"), ("C", "compute"), ("D", "update")):
        d.box(x, y - 11, 12, 12, css)
        d.text(x + 17, y, words, "m")
        x += 40 + 8 * len(words)
    d.text(
        left,
        y + 26,
        f"to scale, for {device:g} ms on the device and {schedule + update:.1f} ms on the CPU",
        "m",
    )
    return d


def draw_counters(first: int = 6, last: int = 21) -> Drawing:
    """Gil's two counters after each of noon's steps: his document as one tall box, every token behind it as a
    box of its own, filled if it counts as computed."""
    left, wide, base, document, tall, high = 20, 38, 214, 44, 50, 14
    d = Drawing("How many of Gil's tokens count as computed, after each step from 6 to 21", 298)
    world = World(mini_parts(CONFIG))
    world.steps_before(first)
    before = 0
    for number in range(first, last + 1):
        preempted = world.step().preempted_req_ids
        gil = world.requests["gil"]
        computed, there = gil.num_computed_tokens, gil.num_tokens
        x = left + (number - first) * wide
        d.box(x, base - tall, wide - 8, tall - 2, "C" if computed else "none edge", 0)
        top = float(base - tall)
        for token in range(document, there):
            top -= high
            d.box(x, top, wide - 8, high - 2, "C" if token < computed else "none edge", 0)
        d.text(x + wide / 2 - 4, top - 6, there, "m", "middle")
        css = "on m" if computed else "m"
        d.text(x + wide / 2 - 4, base - 10, computed, css, "middle")
        d.text(x + wide / 2 - 4, base + 18, number, "s", "middle")
        event = "preempted" if preempted else "admitted" if computed and not before else ""
        d.text(x + wide / 2 - 4, base + 36, event, "m", "middle")
        before = computed
    x = float(left)
    for css, words in (("C", "computed"), ("none edge", "not computed")):
        d.box(x, 273, 12, 12, css)
        d.text(x + 18, 284, words, "m")
        x += 40 + 8 * len(words)
    d.text(x, 284, f"tall box: the first {document} tokens; each small one: 1 token", "m")
    return d


def draw_subtraction(first: int = 4, last: int = 8) -> Drawing:
    """Fay's two counters before some of noon's steps, and how much of the difference each step makes up."""
    left, unit, row, high = 64, 10, 40, 26
    d = Drawing(
        "Fay's tokens before steps 4 to 8: computed, computed in this step, still lacking", 252
    )
    there = len(prompt_ids("fay"))
    for step in noon()[:last]:
        [part] = [one for one in step.scheduled if one.request_id == "fay"] or [None]
        if part is None or step.index < first:
            continue
        computed, gets = part.num_computed_tokens, part.num_scheduled_tokens
        y = 12 + (step.index - first) * row
        d.text(left - 10, y + 18, f"step {step.index}", "s", "end")
        d.box(left, y, there * unit, high, "none edge", 0)
        d.box(left, y, computed * unit, high, "B", 0)
        d.box(left + computed * unit, y, gets * unit, high, "C", 0)
        if computed:
            d.text(left + computed * unit / 2, y + 18, computed, "on m", "middle")
        if gets > 4:
            d.text(left + (computed + gets / 2) * unit, y + 18, f"+{gets}", "on m", "middle")
        d.text(
            left + there * unit + 8,
            y + 18,
            f"of {there}" if gets > 4 else f"+{gets}, of {there}",
            "m",
        )
        there += len(part.new_token_ids)
    x = left
    for css, words in (("B", "computed before"), ("C", "this step"), ("none edge", "later")):
        d.box(x, 224, 12, 12, css)
        d.text(x + 18, 235, words, "m")
        x += 40 + 8 * len(words)
    return d


def skipped_runs() -> list[tuple[str, list[tuple[int, list[list[str]]]]]]:
    """What the deep dive shows of vLLM's two queues: each run's title and its steps, with who runs, waits
    and is skipped."""
    page = read_page(Path(__file__).with_name("01-deep-dive.md"))
    [block] = [b for b in page.outputs if "vllm_alone.py skipped" in b.head]
    runs: list[tuple[str, list[tuple[int, list[list[str]]]]]] = []
    for line in block.body:
        if step := re.match(r"  step (\d+): (.*); waiting (.*); skipped (.*)", line):
            queues = [re.findall("|".join(PROMPTS), part) for part in step.groups()[1:]]
            runs[-1][1].append((int(step[1]), queues))
        elif line.startswith("  "):
            runs.append((line.strip(), []))
    return runs


def draw_queues() -> Drawing:
    """Requests that run, wait and are set aside in vLLM while a grammar compiles, in two runs."""
    left, wide, row, box = 84, 136, 30, 43
    d = Drawing("The running list and both waiting queues, step by step, in two runs", 334)
    for run, (title, steps) in enumerate(skipped_runs()):
        top = 44 + run * 166
        d.text(16, top - 16, title, "m")
        for line, name in enumerate(("running", "waiting", "skipped")):
            d.text(left - 10, top + line * row + 18, name, "m", "end")
        for column, (number, queues) in enumerate(steps):
            x = left + column * wide
            d.box(x, top - 4, wide - 6, 3 * row + 2, "none", 2)
            for line, who in enumerate(queues):
                for place, name in enumerate(who):
                    y = top + line * row
                    d.box(x + 1 + place * box, y, box - 2, 24, COLOUR[name])
                    d.text(x + place * box + box / 2, y + 17, SAID[name], "on m", "middle")
            d.text(x + wide / 2 - 3, top + 3 * row + 16, f"step {number}", "s", "middle")
    return d


PICTURES = {
    "beside-eve": draw_beside_eve,
    "subtraction": draw_subtraction,
    "noon": draw_noon,
    "lanes": draw_lanes,
    "counters": draw_counters,
    "queues": draw_queues,
}


if __name__ == "__main__":
    write_all(__file__, PICTURES)
