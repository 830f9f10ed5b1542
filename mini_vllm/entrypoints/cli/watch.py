"""`mini-vllm generate --watch`: queue, batch, blocks and text in the terminal, while they change.

The same facts as on the page that `--trace run.html` writes, from the same recorder. Drawn with rich
(the extra `watch`). Text from outside is made printable first and is never read as markup.
"""

from __future__ import annotations

import importlib.util
import math
import sys
import time
import unicodedata
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from mini_vllm.engine.llm_engine import LLMEngine
from mini_vllm.trace import TraceRecorder
from mini_vllm.trace.types import RequestInfo, RequestStep, StepTrace
from mini_vllm.utils.extras import how_to_get

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

FRAMES_PER_SECOND = 20
COLOURS = ("dodger_blue2", "orange1", "spring_green4", "orchid", "sky_blue1", "orange_red1",
           "medium_purple1", "gold3")  # fmt: skip
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
BAR = 22


def check_watch(delay: float, out: TextIO) -> bool:
    """Whether to watch. False, with a word on stderr, where `out` is no terminal.

    Raises ValueError where rich is missing, or the delay is no time.
    """
    if not (math.isfinite(delay) and delay >= 0):
        raise ValueError(f"--watch-delay must be at least 0 seconds, got {delay}")
    if importlib.util.find_spec("rich") is None:
        raise ValueError(f"--watch needs rich, of the extra 'watch': {how_to_get('watch')}")
    if out.isatty():
        return True
    print("mini-vllm: --watch needs a terminal; going on without it", file=sys.stderr)
    return False


def printable(text: str) -> str:
    """The text on one line, without characters that would move the cursor or turn the writing."""
    return "".join(
        c if c == " " or not unicodedata.category(c).startswith(("C", "Z")) else "\u00b7"
        for c in text.replace("\n", "\u21b5")
    )


class Watch:
    """Redraws a few lines of the terminal, at most `FRAMES_PER_SECOND` times a second.

    Args:
        engine: the engine that is stepped.
        recorder: attached to it.
        delay: seconds to rest after a step; they do not count as the engine's time.
        out: a terminal.
    """

    def __init__(
        self, engine: LLMEngine, recorder: TraceRecorder, delay: float, out: TextIO
    ) -> None:
        from rich.console import Console
        from rich.live import Live

        self.engine = engine
        self.recorder = recorder
        self.delay = delay
        self.console: Console = Console(file=out, highlight=False)
        self.live = Live(console=self.console, auto_refresh=False, vertical_overflow="crop")
        self._last = 0.0
        self._tokens = 0
        self._texts: dict[str, str] = {}
        self._infos: dict[str, RequestInfo] = {}
        self._places: dict[str, int] = {}  # request id -> its place in order of arrival

    def __enter__(self) -> Watch:
        self.live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.recorder.steps:
            self.live.update(self.picture(), refresh=True)
        self.live.__exit__(kind, error, trace)

    def show(self) -> None:
        """Take in the step that was just made, and draw it if a frame is due."""
        step = self.recorder.steps[-1]
        self._tokens += sum(len(part.new_token_ids) for part in step.scheduled)
        for place in range(len(self._places), len(self.recorder.requests)):
            info = self.recorder.requests[place]
            self._places[info.request_id], self._infos[info.request_id] = place, info
        states = self.engine.output_processor.request_states
        for part in step.scheduled:
            if (state := states.get(part.request_id)) is not None:
                self._texts[part.request_id] = state.detokenizer.output_text
        now = time.perf_counter()
        if now - self._last >= 1 / FRAMES_PER_SECOND or self.delay:
            self._last = now
            self.live.update(self.picture(), refresh=True)
        if self.delay:
            time.sleep(self.delay)

    # -- the picture ------------------------------------------------------------------------------

    def picture(self) -> RenderableType:
        """The last step, as wide and as high as the terminal lets it be."""
        from rich.console import Group

        step = self.recorder.steps[-1]
        height = max(self.console.height, 12)
        grid = self._grid(step, max(2, height // 3))
        rows = max(2, height - len(grid) - 7)
        return Group(self._head(step), *self._batch(step, rows), self._queue(step), *grid)

    def _head(self, step: StepTrace) -> Text:
        spent = step.start + step.schedule_time + step.execute_time + step.update_time
        config = self.engine.config
        tokens = sum(part.num_scheduled_tokens for part in step.scheduled)
        return self._line(
            (f"step {step.index}", "bold"),
            (
                f"  {tokens} of {config.token_budget} tokens  running {len(step.running)} of "
                f"{config.max_num_seqs}  waiting {len(step.waiting)}  "
                f"{self._tokens / max(spent, 1e-9):.0f} tokens/s",
                "",
            ),
        )

    def _batch(self, step: StepTrace, rows: int) -> list[Text]:
        lines = [self._row(part) for part in step.scheduled[:rows]]
        if len(step.scheduled) > rows:
            lines.append(self._line((f"and {len(step.scheduled) - rows} more", "dim")))
        for request_id in step.preempted[:2]:
            why = f"preempted: {printable(step.reason(request_id))}"
            lines.append(self._line(self._name(request_id), (why, "red")))
        return lines

    def _row(self, part: RequestStep) -> Text:
        info = self._infos[part.request_id]
        now = part.num_computed_tokens + part.num_scheduled_tokens
        most = max(1, info.num_prompt_tokens + info.max_tokens - 1)
        before = min(BAR, BAR * part.num_computed_tokens // most)
        new = max(1, min(BAR, -(-BAR * now // most)) - before)
        colour = self._colour(part.request_id)
        hits = f", {part.num_cached_tokens} cached" if part.num_cached_tokens else ""
        what = f"{part.kind} {part.num_scheduled_tokens}{hits}"
        if part.draft_token_ids:
            what += f", {part.num_accepted_tokens} of {len(part.draft_token_ids)} draft tokens"
        if part.finish_reason:
            what += f", {part.finish_reason}"
        text = printable(self._texts.get(part.request_id, ""))
        room = max(8, self.console.width - BAR - 38)
        return self._line(
            self._name(part.request_id),
            ("\u2588" * before, colour),
            ("\u2593" * new, colour),
            ("\u2591" * (BAR - before - new), "dim"),
            (f" {what:<22.22} ", ""),
            (text[-room:], "dim"),
        )

    def _queue(self, step: StepTrace) -> Text:
        if not step.waiting:
            return self._line(("nobody waits", "dim"))
        names = " ".join(printable(r)[:8] for r in step.waiting[:8])
        more = f" and {len(step.waiting) - 8} more" if len(step.waiting) > 8 else ""
        why = f"  {printable(step.waiting[0])[:8]}: {step.why_waiting}" if step.why_waiting else ""
        return self._line(("waiting: ", "bold"), (names + more + why, ""))

    def _grid(self, step: StepTrace, rows: int) -> list[Text]:
        """A character a block: its owner's letter, a digit where it is shared, a dot where it is
        free and still holds cached content."""
        pool = self.recorder.core.kv_cache_manager.block_pool
        owner: dict[int, str] = {}
        held: dict[int, int] = {}
        tables = {request_id: self.recorder.table_of(request_id) for request_id in step.running}
        for request_id, table in tables.items():
            for block in table:
                owner.setdefault(block, request_id)
                held[block] = held.get(block, 0) + 1
        usable = pool.num_gpu_blocks - 1
        lines = [
            self._line(
                (f"blocks: {usable - step.free_blocks} of {usable} in use", "bold"),
                (
                    f", {step.shared_blocks} shared, {step.cached_blocks} free with cached content"
                    f", {len(step.evicted)} evicted now",
                    "",
                ),
            )
        ]
        width = max(8, self.console.width)
        shown = min(usable, width * rows)
        for first in range(1, shown + 1, width):
            cells = []
            for block in range(first, min(first + width, shown + 1)):
                if block in owner:
                    who, times = owner[block], held[block]
                    letter = LETTERS[self._places.get(who, 0) % len(LETTERS)]
                    cells.append((str(min(times, 9)) if times > 1 else letter, self._colour(who)))
                elif pool.blocks[block].block_hash is not None:
                    cells.append(("\u00b7", ""))
                else:
                    cells.append(("_", "dim"))
            lines.append(self._line(*cells))
        if shown < usable:
            lines.append(self._line((f"and {usable - shown} more blocks", "dim")))
        return lines

    def _colour(self, request_id: str) -> str:
        return COLOURS[self._places.get(request_id, 0) % len(COLOURS)]

    def _name(self, request_id: str) -> tuple[str, str]:
        letter = LETTERS[self._places.get(request_id, 0) % len(LETTERS)]
        return f"{letter} {printable(request_id):<6.6} ", f"bold {self._colour(request_id)}"

    def _line(self, *parts: tuple[str, str]) -> Text:
        from rich.text import Text

        line: Any = Text(no_wrap=True, overflow="ellipsis", end="")
        for text, style in parts:
            line.append(text, style)
        line.append("\n")
        return line  # type: ignore[no-any-return]
