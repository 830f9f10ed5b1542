"""Plain SVG for the pictures of the pages: boxes, words, arrows on a ground of their own, light or dark.

A phase's `pictures.py` has `PICTURES`, from a name to a function that returns a `Drawing`, and ends in

    if __name__ == "__main__":
        write_all(__file__, PICTURES)

which writes `pictures/NAME.svg` beside it. A test (`tests/authors/test_pictures.py`) draws them again.

Styles are class names, several separated by blanks. Fills: `A` `B` `C` `D` (four colours, of people or of
kinds), `none` (pale), `edge` (outline only), `thin` and `bold` for lines. Words: `s` is small and grey, `m`
small, `on` white, for words on a colour; a colour's letter gives its tint.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path

STYLE = """\
text{font:16px system-ui,sans-serif;fill:#1f2328}.m,.s{font-size:14px}.s{fill:#59636e}
.ground{fill:#fff}.edge{fill:none;stroke:#59636e}.thin{stroke:#d1d9e0}.bold{stroke:#1f2328;fill:none}
.A{fill:#0b5fa5}.B{fill:#b34700}.C{fill:#00714f}.D{fill:#8f2f73}.none{fill:#eff2f5}.on{fill:#fff}
.to{stroke:#59636e;fill:none}.dash{stroke:#59636e;stroke-dasharray:3 3;fill:none}.tip{fill:#59636e}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.s{fill:#9ea7b3}.ground{fill:#0d1117}
text.A{fill:#6cb6ff}text.B{fill:#f0883e}text.C{fill:#3fb68b}text.D{fill:#e085c2}text.on{fill:#fff}
.edge,.to,.dash{stroke:#9ea7b3}.tip{fill:#9ea7b3}.thin{stroke:#30363d}.bold{stroke:#e6edf3}.none{fill:#21262d}}"""


class Drawing:
    """SVG elements, one after the other; later ones lie on top. Lengths are CSS pixels.

    Args:
        title: what a screen reader says.
        height, width: of the sheet. 640 wide is what a page shows without shrinking it.
    """

    def __init__(self, title: str, height: int, width: int = 640) -> None:
        self.title, self.height, self.width = title, height, width
        self.parts: list[str] = []

    def text(self, x: float, y: float, words: object, css: str = "", anchor: str = "start") -> None:
        place = f'x="{x:.5g}" y="{y:.5g}" class="{css}" text-anchor="{anchor}"'
        self.parts.append(f"<text {place}>{escape(str(words))}</text>")

    def box(self, x: float, y: float, w: float, h: float, css: str, radius: int = 2) -> None:
        shape = f'x="{x:.5g}" y="{y:.5g}" width="{w:.5g}" height="{h:.5g}" rx="{radius}"'
        self.parts.append(f'<rect {shape} class="{css}"/>')

    def cell(self, x: float, y: float, w: float, h: float, words: object, css: str) -> None:
        """A box with words in its middle; in colour they are white."""
        self.box(x, y, w, h, css if css in "ABCD" else f"{css} edge")
        self.text(x + w / 2, y + h / 2 + 5, words, "on" if css in "ABCD" else "", "middle")

    def path(self, points: list[tuple[float, float]], css: str, width: float = 1) -> None:
        d = "M" + "L".join(f"{x:.5g} {y:.5g}" for x, y in points)
        self.parts.append(f'<path d="{d}" class="{css}" style="stroke-width:{width:.3g}"/>')

    def arrow(self, x1: float, y1: float, x2: float, y2: float, width: float = 1.5) -> None:
        angle, size = math.atan2(y2 - y1, x2 - x1), 7 + width
        back = [
            (x2 - size * math.cos(angle + a), y2 - size * math.sin(angle + a)) for a in (-0.5, 0.5)
        ]
        stop = (x2 - 0.8 * size * math.cos(angle), y2 - 0.8 * size * math.sin(angle))
        self.path([(x1, y1), stop], "to", width)
        self.path([back[0], (x2, y2), back[1]], "tip", 0)

    def dot(self, x: float, y: float, css: str) -> None:
        self.parts.append(f'<circle cx="{x:.5g}" cy="{y:.5g}" r="5" class="{css}"/>')

    def svg(self) -> str:
        size = f'width="{self.width}" height="{self.height}"'
        box = f'viewBox="0 0 {self.width} {self.height}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {box} {size} role="img">'
        body = "\n".join(self.parts)
        return (
            f"{head}\n<title>{escape(self.title)}</title>\n<style>{STYLE}</style>\n"
            f'<rect {size} rx="8" class="ground"/>\n{body}\n</svg>\n'
        )


def write_all(script: str, pictures: Mapping[str, Callable[[], Drawing]]) -> None:
    """Write each picture beside `script`, as `pictures/NAME.svg`."""
    folder = Path(script).resolve().parent / "pictures"
    folder.mkdir(exist_ok=True)
    for name, draw in pictures.items():
        path = folder / f"{name}.svg"
        path.write_text(draw().svg(), encoding="utf-8", newline="\n")
        print(f"wrote {path.relative_to(folder.parent.parent)}")
