"""Draw the pictures of this phase's guide from a run of the engine and from `waste.py`, as SVG.

    python phase-02-paged-attention/pictures.py        # writes phase-02-paged-attention/pictures/*.svg

What they are drawn with is in `course/docs/drawing.py`.
"""

from __future__ import annotations

from pool import BLOCK_SIZE, BLOCKS, PROMPTS, After, story
from waste import FIGURE_2, GONE, STRIP, blocks

from course.docs.drawing import Drawing, write_all

COLOUR = {"ada": "A", "bo": "B", "cy": "C", "again": "D"}
SAID = {"ada": "Ada", "bo": "Bo", "cy": "Cy", "again": "Ada again"}
EMPTY = "none thin"


def legend(d: Drawing, x: float, y: float, *names: str) -> float:
    """A square and a name for each; returns where the line may go on."""
    for name in names:
        d.box(x, y - 11, 12, 12, COLOUR[name])
        d.text(x + 17, y, SAID[name], "m")
        x += 30 + 8 * len(SAID[name])
    return x


def draw_waste() -> Drawing:
    """The paper's figure 2: what the memory of the KV cache held."""
    left, wide, row, top = 108, 5.0, 46, 50
    d = Drawing("How four systems used the memory of their KV cache, on average", 254)
    d.text(12, 26, "percent of the memory for keys and values, on average")
    css = {"tokens": "C", "reserved": "A", "internal": "B", "external": "D"}
    for number, (name, parts) in enumerate(FIGURE_2.items()):
        x, y = float(left), top + number * row
        d.text(left - 8, y + 21, name, "m", "end")
        d.box(left, y, 100 * wide, row - 14, EMPTY)
        for part, percent in parts.items():
            d.box(x, y, max(percent * wide - 1, 0), row - 14, css[part])
            if percent:
                d.text(x + percent * wide / 2, y + 21, percent, "on m", "middle")
            x += percent * wide
    x = left
    said = {
        "tokens": "tokens",
        "reserved": "reserved for later tokens",
        "internal": "never used",
        "external": "gaps and other",
    }
    for part, words in said.items():
        d.box(x, top + 4 * row - 1, 12, 12, css[part])
        d.text(x + 17, top + 4 * row + 10, words, "m")
        x += 34 + 6.9 * len(words)
    return d


def draw_strip(need: int = 18) -> Drawing:
    """Two gaps too small for 18 places, and the same free places as blocks."""
    left, unit, high = 20, 16.6, 36
    d = Drawing("Ada needs 18 places; 20 are free, in gaps of 8 and 12, or in five blocks", 264)
    d.text(left, 28, "one allocation per request: no room for Ada")
    d.box(left, 40, need * unit - 2, 22, "A")
    d.text(left + need * unit / 2, 56, f"Ada needs {need} in a row", "on m", "middle")
    place = 0
    owner: list[str] = []  # of each block
    for name, places in STRIP.items():
        x = left + place * unit
        gone = name in GONE
        d.box(x, 72, places * unit - 2, high, EMPTY if gone else "C")
        words = f"{places} free" if gone else name
        d.text(x + places * unit / 2, 95, words, "m" if gone else "on m", "middle")
        owner += ["" if gone else name] * blocks(places, BLOCK_SIZE)
        place += places
    y, wide = 168, BLOCK_SIZE * unit
    d.text(left, 152, f"blocks of {BLOCK_SIZE}: five are free, and she needs five")
    missing = need
    for number, name in enumerate(owner):
        x = left + number * wide
        d.box(x, y, wide - 2, high, "C" if name else EMPTY)
        if name:
            d.text(x + wide / 2, y + 23, name, "on m", "middle")
        elif missing:
            taken = min(missing, BLOCK_SIZE)
            d.box(x, y, taken * unit - 2, high, "A")
            d.text(x + taken * unit / 2, y + 23, "Ada", "on m", "middle")
            missing -= taken
        d.text(x + wide / 2, y + high + 18, number + 1, "m", "middle")
    d.text(
        left, y + high + 44, "block numbers; half of the last block that she takes is empty", "m"
    )
    return d


def draw_tables(step: int = 4) -> Drawing:
    """The tables of Ada and Bo after a step, and the blocks that they lead to."""
    after = story()[step - 1]
    d = Drawing("Two block tables, and the nine blocks of the pool that they point into", 322)
    left, wide, top = 26, 66, 122
    filled = slots(after)
    counts = references(after)
    for number in range(1, BLOCKS + 1):
        x = left + (number - 1) * wide
        people = [name for name, table in after.tables.items() if number in table]
        d.box(x, top, wide - 6, 62, EMPTY)
        for part, name in enumerate(people):
            share = (wide - 6) / len(people)
            d.box(x + part * share, top, share, 62, COLOUR[name])
        d.text(x + wide / 2 - 3, top + 26, number, "on" if people else "", "middle")
        if people:
            d.text(x + wide / 2 - 3, top + 47, f"{filled[number]} of 4", "on m", "middle")
        d.text(x + wide / 2 - 3, top + 80, f"ref {counts[number]}", "s", "middle")
    for name, y, begin, end in (("ada", 36, 54, top - 4), ("bo", 290, 270, top + 86)):
        d.text(left, y + 4, f"{SAID[name]}'s table", "m")
        for place, block in enumerate(after.tables[name]):
            x = left + 134 + place * 74
            d.cell(x - 34, y - 16, 68, 32, block, COLOUR[name])
            d.arrow(x, begin, left + (block - 1) * wide + wide / 2 - 3, end)
    return d


def slots(after: After) -> dict[int, int]:
    """Block -> how many of its places are filled after a step, of those that its requests hold."""
    found: dict[int, int] = {}
    for part in after.trace.scheduled:
        computed = part.num_computed_tokens + part.num_scheduled_tokens
        for place, block in enumerate(part.block_ids):
            found[block] = min(BLOCK_SIZE, computed - BLOCK_SIZE * place)
    return found


def references(after: After) -> dict[int, int]:
    tables = after.tables.values()
    return {block: sum(block in table for table in tables) for block in range(1, BLOCKS + 1)}


def draw_run() -> Drawing:
    """Nine blocks, eighteen steps: who holds each, how full it is, what a free one still holds."""
    left, cell, row, top = 62, 31, 27, 34
    steps = story()
    d = Drawing("Nine blocks of four tokens in eighteen steps", 366)
    content: dict[int, str] = {}  # block -> whose tokens are in it
    for block in range(1, BLOCKS + 1):
        d.text(left - 8, top + (block - 1) * row + 17, f"block {block}", "m", "end")
    for after in steps:
        x = left + (after.trace.index - 1) * cell
        held: dict[int, list[str]] = {}
        for part in after.trace.scheduled:
            for block in part.block_ids:
                held.setdefault(block, []).append(part.request_id)
        filled = slots(after)
        for block in range(1, BLOCKS + 1):
            y = top + (block - 1) * row
            people = held.get(block, [])
            if people:
                content[block] = people[0]
                for part_number, name in enumerate(people):
                    share = (cell - 3) / len(people)
                    d.box(x + part_number * share, y, share, row - 3, COLOUR[name])
                d.text(x + cell / 2 - 1.5, y + 17, filled[block], "on m", "middle")
                continue
            d.box(x, y, cell - 3, row - 3, EMPTY)
            if block in after.kept:
                d.box(x + cell / 2 - 5.5, y + row / 2 - 5.5, 8, 8, COLOUR[content[block]])
        d.text(x + cell / 2 - 1.5, top + BLOCKS * row + 16, after.trace.index, "m", "middle")
        for name in after.trace.preempted:
            d.path([(x - 1.5, top - 8), (x - 1.5, top + BLOCKS * row)], "dash")
            d.text(x + 4, top - 10, f"{SAID[name]} is preempted", f"{COLOUR[name]} m")
    y = top + BLOCKS * row + 44
    x = legend(d, left, y, *PROMPTS)
    d.text(x, y, "columns: steps, while they run", "m")
    d.text(
        left, y + 26, "numbers: filled places; small square: free, but still found by its hash", "m"
    )
    return d


def draw_queue(first: int = 5, last: int = 10) -> Drawing:
    """The free queue after some steps: who is next, and what each block still holds."""
    left, cell, row, top = 96, 54, 44, 46
    d = Drawing("The free queue after steps 5 to 10", 340)
    content: dict[int, str] = {}
    y = float(top)
    d.text(left, 26, "front: taken next", "m")
    d.text(628, 26, "back: freed last", "m", "end")
    for after in story()[:last]:
        for part in reversed(after.trace.scheduled):  # a shared block is said to be the first's
            content |= dict.fromkeys(part.block_ids, part.request_id)
        if after.trace.index < first:
            continue
        d.text(left - 12, y + 22, f"step {after.trace.index}", "m", "end")
        if not after.queue:
            d.text(left, y + 22, "none free", "s")
        for place, block in enumerate(after.queue):
            kept = block in after.kept
            css = COLOUR[content[block]] if kept else "none"
            d.cell(left + place * cell, y, cell - 6, 34, block, css)
        y += row
    x = legend(d, left, y + 18, "ada", "bo", "cy")
    d.text(x, y + 18, "colour: whose tokens it still holds; grey: no hash", "m")
    return d


PICTURES = {
    "waste": draw_waste,
    "strip": draw_strip,
    "tables": draw_tables,
    "run": draw_run,
    "queue": draw_queue,
}


if __name__ == "__main__":
    write_all(__file__, PICTURES)
