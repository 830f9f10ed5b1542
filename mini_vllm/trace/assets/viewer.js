"use strict";
// The page around the canvases: controls, keyboard, theme, and when to draw.

function stored(key, value) {
  try { // a page in a frame may not be allowed to keep anything
    if (value === undefined) return localStorage.getItem(key);
    localStorage.setItem(key, value);
  } catch { /* not kept */ }
  return null;
}

class Viewer extends Built {
  constructor(data) {
    super();
    this.model = arranged(data);
    const { model } = this;
    this.events = eventsOf(model);
    this.blocks = new Blocks(model);
    this.framed = window.parent !== window;
    const wanted = new URLSearchParams(location.hash.slice(1));
    const number = Number(wanted.get("step") ?? data.view?.step ?? model.numbers[0]);
    const request = wanted.get("request") ?? data.view?.request;
    const step = this.stepOf(number);
    // Where nobody says whom to look at: the first that gets tokens here.
    const first = model.first[step] < model.first[step + 1] ? model.entry.row[model.first[step]] : 0;
    const row = model.requests.findIndex((r) => r.request_id === request);
    this.state = { step, row: row < 0 ? first : row };
    this.playing = null;
    this.more = false;
    this.build(data);
    this.timeline = new Timeline(model, this.timelineCanvas, this.timelineBox);
    this.overview = new Overview(model, this.overviewCanvas);
    this.pool = new Pool(model, this.blocks, this.poolCanvas, this.poolBox);
    this.setTheme(wanted.get("theme") ?? stored("mini-vllm-theme") ?? "");
    this.listen();
    this.fold(this.pool.folded);
    this.timeline.measure();
    const room = this.timelineBox.clientWidth - this.timeline.left - 12;
    this.timeline.cell = Math.max(4, Math.min(34, Math.floor(room / model.S)));
    this.layout();
    this.timeline.reveal(null, this.state.step);
    if (this.state.row) this.timeline.reveal(this.state.row, this.state.step);
    this.render();
    if (wanted.get("play")) this.play(true);
  }

  // -- what happens ---------------------------------------------------------------------------------

  listen() {
    const { timelineCanvas, poolCanvas, timelineBox, poolBox } = this;
    for (const box of [timelineBox, poolBox]) {
      box.addEventListener("scroll", () => this.dirty("scroll"), { passive: true });
    }
    const place = (canvas, event) => {
      const box = canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    timelineCanvas.addEventListener("pointermove", (event) => {
      const { r, s } = this.timeline.at(...place(timelineCanvas, event));
      this.showTip(r < 0 ? this.stepTip(s) : this.cellTip(r, s < 0 ? this.state.step : s), event);
    });
    timelineCanvas.addEventListener("pointerleave", () => this.hideTip());
    timelineCanvas.addEventListener("click", (event) => {
      const { r, s } = this.timeline.at(...place(timelineCanvas, event));
      this.go(s < 0 ? this.state.step : s, { row: r < 0 ? this.state.row : r, still: true });
    });
    timelineCanvas.addEventListener("focus", () => this.tipAtCursor());
    timelineCanvas.addEventListener("blur", () => this.hideTip());
    poolCanvas.addEventListener("pointermove", (event) => {
      const block = this.pool.at(...place(poolCanvas, event), this.state);
      this.showTip(block < 0 ? [] : [this.blocks.describe(block)], event);
    });
    poolCanvas.addEventListener("pointerleave", () => this.hideTip());
    poolCanvas.addEventListener("click", (event) => {
      const block = this.pool.at(...place(poolCanvas, event), this.state);
      if (block >= 0) this.toBlock(block);
    });
    poolCanvas.addEventListener("focus", () => { this.toBlock(this.pool.focus, true); });
    poolCanvas.addEventListener("blur", () => { this.hideTip(); this.dirty(); });
    const { overviewCanvas } = this;
    const jump = (event) => {
      const box = overviewCanvas.getBoundingClientRect();
      const share = (event.clientX - box.left) / box.width;
      this.go(Math.floor(share * this.model.S));
    };
    overviewCanvas.addEventListener("pointerdown", (event) => {
      overviewCanvas.setPointerCapture(event.pointerId);
      jump(event);
    });
    overviewCanvas.addEventListener("pointermove", (event) => { if (event.buttons) jump(event); });
    document.addEventListener("keydown", (event) => this.key(event));
    const again = () => { this.layout(); this.dirty(); };
    new ResizeObserver(again).observe(document.documentElement);
    window.addEventListener("resize", again); // a window's height alone does not change the page's
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.recolour());
    window.addEventListener("message", (event) => { // a page that shows this one in a frame
      if (event.source !== window.parent || event.source === window) return;
      if (["light", "dark"].includes(event.data?.theme)) this.setTheme(event.data.theme);
      if (Number.isInteger(event.data?.step)) this.go(this.stepOf(event.data.step), { from: "frame" });
      this.tellHeight(); // it may not have listened before
    });
    if (this.framed) new ResizeObserver(() => this.tellHeight()).observe(document.body);
  }
  // A page that shows this one in a frame can make the frame as high as what stands in it.
  tellHeight() {
    const height = Math.ceil(document.body.getBoundingClientRect().height);
    const width = document.documentElement.clientWidth; // more, once there is no scroll bar any more
    window.parent.postMessage({ viewerHeight: height, viewerWidth: width }, "*");
  }
  key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const { target } = event;
    const own = target === this.timelineCanvas || target === document.body || target === this.timelineBox;
    if (target === this.poolCanvas && this.poolKey(event)) return event.preventDefault();
    if (!own && target !== this.poolCanvas) {
      // A slider, a list and a button have their own use for these keys.
      if (target.matches?.("input, select")) return;
      if (event.key === " " || event.key === "Enter") return;
      if (!target.matches?.("button")) return;
    }
    const { step, row } = this.state;
    const moves = {
      ArrowLeft: [step - 1, row], ArrowRight: [step + 1, row],
      ArrowUp: [step, row - 1], ArrowDown: [step, row + 1],
      Home: [0, row], End: [this.model.S - 1, row],
      PageUp: [step - 10, row], PageDown: [step + 10, row],
    };
    if (event.key === " ") this.play(this.playing === null);
    else if (event.key === "n" || event.key === "p") this.jump(event.key === "n" ? 1 : -1);
    else if (moves[event.key]) {
      const [s, r] = moves[event.key];
      this.go(s, { row: r, say: true, show: true });
    } else return;
    event.preventDefault();
  }
  poolKey(event) {
    const block = this.pool.neighbour(event.key, this.state.row);
    if (block !== undefined) this.toBlock(block);
    return block !== undefined;
  }
  toBlock(block, quiet = false) {
    this.pool.focus = block;
    const holders = this.blocks.holders[block];
    if (holders && !quiet && !holders.some(([r]) => r === this.state.row)) {
      this.state.row = holders[0][0];
      this.layoutPool();
    }
    this.pool.reveal(block, this.state.row);
    const text = this.blocks.describe(block);
    this.say(text);
    const box = this.poolCanvas.getBoundingClientRect();
    const grid = this.pool.grid(this.state.row);
    const [x, y] = this.pool.place(block, grid);
    this.showTip([text], {
      clientX: box.left + x + grid.w / 2, clientY: box.top + y + this.pool.high - 8,
    });
    this.dirty();
  }
  // The step with this number, or the last before it.
  stepOf(number) {
    return Math.max(0, this.model.numbers.findLastIndex((n) => n <= number));
  }
  go(step, { row = this.state.row, say = false, show = false, still = false, from = "" } = {}) {
    const { model, state } = this;
    const moved = row !== state.row;
    state.step = Math.max(0, Math.min(model.S - 1, step));
    if (this.framed && from !== "frame") {
      window.parent.postMessage({ viewerStep: model.numbers[state.step] }, "*");
    }
    state.row = Math.max(0, Math.min(model.R - 1, row));
    if (moved) this.layoutPool();
    if (!still) this.timeline.reveal(show || moved ? state.row : null, state.step);
    if (say) this.say([this.stepTip(state.step)[0], ...this.cellTip(state.row, state.step)].join(". "));
    this.atCursor = document.activeElement === this.timelineCanvas && show;
    this.dirty();
  }
  // To the next step, or the last before this one, in which something of the chosen kind happens.
  jump(by) {
    const found = nextEvent(this.events, this.state.step, by, this.eventKind.value);
    if (!found) return this.say(by > 0 ? "No such event after this step" : "No such event before this step");
    this.go(found.s, { row: found.event.r, show: true });
    this.say(`Step ${this.model.numbers[found.s]}: ${this.happenings(found.s).join("; ")}`);
  }
  fold(folded) {
    const { pool, model, foldButton } = this;
    pool.fold(folded);
    foldButton.hidden = pool.idle <= FEW;
    foldButton.textContent = `${folded ? "Show" : "Fold away"} the ${pool.idle} never used`;
    foldButton.setAttribute("aria-expanded", String(!folded));
    this.poolLegend.replaceChildren(poolLegend(model, this.blocks, pool.wide >= 40));
    this.layout();
    this.dirty();
  }
  play(on) {
    clearTimeout(this.playing);
    this.playing = null;
    if (on) {
      if (this.state.step === this.model.S - 1) this.go(0);
      const tick = () => {
        if (this.state.step === this.model.S - 1) return this.play(false);
        this.go(this.state.step + 1);
        this.playing = setTimeout(tick, 1000 / Number(this.speed.value));
      };
      this.playing = setTimeout(tick, 1000 / Number(this.speed.value));
    }
    const label = this.playing === null ? "Play" : "Pause";
    this.playButton.textContent = this.playing === null ? "\u25b6" : "\u275a\u275a";
    this.playButton.setAttribute("aria-label", label);
    this.playButton.title = label;
  }
  zoom(by) {
    const { timeline, timelineBox, state } = this;
    const x = state.step * timeline.cell - timelineBox.scrollLeft;
    const wanted = timeline.cell * by;
    timeline.cell = Math.max(1, Math.min(60, by > 1 ? Math.ceil(wanted) : Math.floor(wanted)));
    this.layout();
    timelineBox.scrollLeft = state.step * timeline.cell - x;
    this.dirty();
  }
  dark() {
    const chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  }
  setTheme(theme, keep = false) {
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
    if (keep) stored("mini-vllm-theme", theme);
    this.recolour();
  }
  recolour() {
    this.palette = readPalette();
    this.themeButton.setAttribute("aria-pressed", String(this.dark()));
    this.overview.picture = null;
    this.dirty();
  }
  say(text) {
    clearTimeout(this.saying);
    this.saying = setTimeout(() => { this.live.textContent = text; }, 120);
  }
  layout() {
    this.timeline.measure();
    const [width, height] = this.timeline.size();
    const bar = width > this.timelineBox.clientWidth ? 16 : 0;
    // A frame may follow this page's height, so what it shows must not depend on the frame's.
    const room = this.framed ? 400 : Math.max(200, Math.min(460, window.innerHeight * 0.5));
    this.timelineBox.style.height = `${Math.min(height + bar + 2, room)}px`;
    this.timelineSpace.style.width = `${width}px`;
    this.timelineSpace.style.height = `${height}px`;
    this.overviewCanvas.hidden = width <= this.timelineBox.clientWidth && height <= room;
    this.overview.picture = null;
    this.layoutPool();
  }
  layoutPool() { // other requests need more room for their tables
    const tall = this.pool.height(this.state.row);
    this.poolBox.style.height = `${Math.min(tall + 2, 480)}px`;
    this.poolSpace.style.height = `${tall}px`;
  }
  dirty(why) {
    if (why === "scroll") this.hideTip();
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.render();
    });
  }

  // -- drawing --------------------------------------------------------------------------------------

  render() {
    const { model, state, palette } = this;
    this.slider.value = state.step;
    this.slider.setAttribute("aria-valuetext", `step ${model.numbers[state.step]}`);
    this.where.textContent =
      `step ${model.numbers[state.step]} (${state.step + 1} of ${model.S})`;
    this.timeline.draw(state, palette);
    this.overview.draw(state, palette, this.timeline);
    this.pool.draw(state, palette, document.activeElement === this.poolCanvas);
    const key = `${state.step} ${state.row} ${this.more}`;
    if (key !== this.detailed) {
      this.detailed = key;
      this.details();
    }
    if (this.atCursor) {
      this.atCursor = false;
      this.tipAtCursor();
    }
    this.drawn = performance.now();
    this.firstDrawn ??= this.drawn;
  }
}

(async () => {
  const say = (text) => document.body.append(element("main", {}, element("p", {}, text)));
  if (!window.DecompressionStream) {
    return say("This browser is too old to unpack the trace: it has no DecompressionStream.");
  }
  try {
    const data = await unzipped(document.getElementById("trace-data").textContent);
    if (!data.steps.length) return say("No step was recorded.");
    window.viewer = new Viewer(data);
  } catch (error) {
    say(`The trace in this page cannot be read: ${error.message}`);
  }
})();
