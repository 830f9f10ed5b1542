"""The pictures of this phase's pages, drawn from `bill.py`'s figures and from an index list that is built.

python phase-07-gemm-and-moe/pictures.py
"""

from __future__ import annotations

import math

from bill import DENSE_13, DENSE_47, MIXTRAL, aligned, six_tokens, step_ms, touched
from touched import counted

from course.docs.drawing import Drawing, write_all


def draw_bill() -> Drawing:
    """Milliseconds of a step against its tokens: Mixtral between the two dense models."""
    left, right, top, bottom = 66, 470, 34, 262
    d = Drawing("How long a step takes on Ilse's card, against the tokens in it", 338)

    def x(tokens: float) -> float:
        return left + math.log2(tokens) / 12 * (right - left)

    def y(ms: float) -> float:
        return bottom - math.log2(ms / 4) / math.log2(100) * (bottom - top)

    for ms in (5, 10, 20, 50, 100, 200, 400):
        d.path([(left, y(ms)), (right, y(ms))], "thin")
        d.text(left - 8, y(ms) + 5, ms, "s", "end")
    d.text(12, 20, "ms", "m")
    for power in range(0, 13, 2):
        d.text(x(2**power), bottom + 20, f"{2**power:,}", "s", "middle")
    d.text(right, bottom + 42, "tokens in the step", "m", "end")
    fine = [2 ** (step / 8) for step in range(97)]
    for model, css, wide in ((DENSE_47, "to", 2), (DENSE_13, "to", 2), (MIXTRAL, "bold", 3)):
        d.path([(x(t), y(step_ms(t, model))) for t in fine], css, wide)
    d.text(right + 8, y(step_ms(4096, DENSE_47)) + 5, "dense, 47 billion", "m")
    d.text(right + 8, y(step_ms(4096)) - 4, "Mixtral, and", "m")
    d.text(right + 8, y(step_ms(4096)) + 16, "dense, 13 billion", "m")
    d.text(x(1.2), y(step_ms(1, DENSE_47)) - 8, "dense, 47 billion", "m")
    d.text(x(4.6), y(11) + 5, "Mixtral", "m")
    d.text(x(24), y(step_ms(1, DENSE_13)) - 8, "dense, 13 billion", "m")
    d.text(left, 330, "derived from the data sheet's bandwidth and operations; log scales", "m")
    return d


def draw_tiles() -> Drawing:
    """A product of 6 by 4 tiles: the output's tile that a program keeps, and the strips that pass through."""
    cell, gap = 34, 26
    d = Drawing(
        "A product in tiles: one program's tile of the output, and the strips it loads", 330
    )
    left, top = 30, 30
    deep, rows, columns = 4, 3, 8  # of K, of M, of N, in tiles
    x0, y0 = left, top + deep * cell + gap  # x lies at the left, w above, the output between them
    xo, yw = left + deep * cell + gap, top
    row, column = 1, 5
    for i in range(rows):
        for j in range(deep):
            d.box(x0 + j * cell, y0 + i * cell, cell - 2, cell - 2, "A" if i == row else "none")
    for i in range(deep):
        for j in range(columns):
            css = "B" if j == column else "none"
            d.box(xo + j * cell, yw + i * cell, cell - 2, cell - 2, css)
    for i in range(rows):
        for j in range(columns):
            css = "C" if (i, j) == (row, column) else "none"
            d.box(xo + j * cell, y0 + i * cell, cell - 2, cell - 2, css)
    d.text(x0, y0 + rows * cell + 20, "x: tokens by inputs", "m")
    d.text(xo + columns * cell + 10, yw + 2 * cell, "w: inputs", "m")
    d.text(xo + columns * cell + 10, yw + 2 * cell + 20, "by outputs", "m")
    d.text(xo, y0 + rows * cell + 20, "the product: tokens by outputs", "m")
    d.text(
        left,
        y0 + rows * cell + 44,
        "green: sums that one program keeps; blue and orange: what it loads for them",
        "m",
    )
    d.height = int(y0 + rows * cell + 58)
    return d


def draw_list() -> Drawing:
    """Six tokens, their pairs, and the list: blocks of four, each of one expert."""
    ids = six_tokens()
    blocks, owners = aligned(ids, 4, 4)
    d = Drawing(
        "Six tokens with two experts each, and the list that orders their pairs by expert", 330
    )
    colours = ("none", "A", "B", "C")
    left, size = 30, 36
    d.text(left, 24, "pairs: token t has the pairs 2t and 2t + 1, in the colour of the expert", "m")
    for token, experts in enumerate(ids.tolist()):
        at = left + token * 96
        d.text(at + 36, 52, f"token {token}", "s", "middle")
        for place, expert in enumerate(experts):
            d.cell(at + place * size, 60, size - 2, 32, token * 2 + place, colours[expert])
    d.text(left, 128, "the list, in blocks of four", "m")
    wide = 4 * size + 8
    for number, (pairs, owner) in enumerate(zip(blocks, owners, strict=True)):
        at = left + number * wide
        for place, pair in enumerate(pairs):
            css = colours[owner] if pair < ids.size else "none"
            d.cell(at + place * size, 140, size - 2, 32, pair, css)
        d.text(at + 2 * size, 192, f"expert {owner}", "s", "middle")
    d.text(left, 228, "rows of x that the first product gathers: pair // 2", "m")
    for number, pairs in enumerate(blocks):
        at = left + number * wide
        for place, pair in enumerate(pairs):
            word = pair // 2 if pair < ids.size else "–"
            d.cell(at + place * size, 240, size - 2, 32, word, "none")
    counts = [int((ids == expert).sum()) for expert in range(4)]
    chosen = ", ".join(map(str, counts))
    d.text(
        left,
        304,
        f"pairs of experts 0 to 3: {chosen}. {ids.size} is not a pair but padding.",
        "m",
    )
    return d


def draw_touched() -> Drawing:
    """The share of a layer's experts that a batch uses, for three models."""
    left, right, top, bottom = 66, 500, 30, 250
    d = Drawing("Share of a layer's experts that a step reads, against the tokens in it", 326)

    def x(tokens: float) -> float:
        return left + math.log2(tokens) / 9 * (right - left)

    def y(share: float) -> float:
        return bottom - share * (bottom - top)

    for share in (0, 0.25, 0.5, 0.75, 1):
        d.path([(left, y(share)), (right, y(share))], "thin")
        d.text(left - 8, y(share) + 5, f"{share:.0%}", "s", "end")
    for power in range(10):
        d.text(x(2**power), bottom + 20, 2**power, "s", "middle")
    d.text(right, bottom + 42, "tokens in the step", "m", "end")
    fine = [2 ** (step / 8) for step in range(73)]
    models = (
        ("A", 8, 2, "2 of 8: Mixtral"),
        ("B", 128, 8, "8 of 128: Qwen3-30B-A3B"),
        ("C", 256, 8, "8 of 256: DeepSeek-V3"),
    )
    for row, (css, experts, active, words) in enumerate(models):
        d.path([(x(t), y(touched(t, experts, active) / experts)) for t in fine], "bold", 1.5)
        for tokens in (1, 4, 16, 64, 256):
            d.dot(x(tokens), y(touched(tokens, experts, active) / experts), css)
        d.dot(296, 156 + row * 24, css)
        d.text(308, 161 + row * 24, words, "m")
    for tokens in (1, 4, 16, 64):
        d.dot(x(tokens), y(counted("sums", tokens) / 8), "D")
    d.dot(296, 228, "D")
    d.text(308, 233, "counted: tiny Mixtral, sums", "m")
    d.text(left, 318, "curves: routers without favourites, tokens that choose independently", "m")
    return d


PICTURES = {"bill": draw_bill, "tiles": draw_tiles, "list": draw_list, "touched": draw_touched}


if __name__ == "__main__":
    write_all(__file__, PICTURES)
