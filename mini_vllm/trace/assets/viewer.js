"use strict";
// The page around the canvases: controls, keyboard, theme, and when to draw.

function stored(key, value) {
  try { // a page in a frame may not be allowed to keep anything
    if (value === undefined) return localStorage.getItem(key);
    localStorage.setItem(key, value);
  } catch { /* not kept */ }
  return null;
}

class Viewer extends Words {
  constructor(data) {
    super();
    this.model = arranged(data);
    const { model } = this;
    const wanted = new URLSearchParams(location.hash.slice(1));
    const number = Number(wanted.get("step") ?? data.view?.step ?? model.numbers[0]);
    const request = wanted.get("request") ?? data.view?.request;
    this.state = {
      step: Math.max(0, model.numbers.findLastIndex((n) => n <= number)),
      row: Math.max(0, model.requests.findIndex((r) => r.request_id === request)),
    };
    this.playing = null;
    this.more = false;
    this.build(data);
    this.timeline = new Timeline(model, this.timelineCanvas, this.timelineBox);
    this.pool = new Pool(model, this.poolCanvas, this.poolBox);
    this.setTheme(wanted.get("theme") ?? stored("mini-vllm-theme") ?? "");
    this.listen();
    const room = this.timelineBox.clientWidth - this.timeline.left - 12;
    this.timeline.cell = Math.max(4, Math.min(34, Math.floor(room / model.S)));
    this.layout();
    this.timeline.reveal(null, this.state.step);
    if (this.state.row) this.timeline.reveal(this.state.row, this.state.step);
    this.render();
  }

  // -- the page -------------------------------------------------------------------------------------

  build(data) {
    const { model } = this;
    const button = (label, text, act) =>
      element("button", { type: "button", "aria-label": label, title: label, onclick: act }, text);
    const last = model.S - 1;
    this.playButton = button("Play", "\u25b6", () => this.play(this.playing === null));
    this.slider = element("input", {
      type: "range", min: 0, max: last, step: 1, "aria-label": "Step",
      oninput: () => this.go(Number(this.slider.value), { from: "slider" }),
    });
    this.speed = element("select", { "aria-label": "Speed" },
      ...[1, 2, 5, 10, 30, 60].map((n) =>
        element("option", { value: n, selected: n === 5 }, `${n} a second`)));
    this.where = element("output", { class: "where" });
    this.themeButton = element("button", {
      type: "button", class: "theme", "aria-label": "Dark", "aria-pressed": "false",
      onclick: () => this.setTheme(this.dark() ? "light" : "dark", true),
    }, "\u25d0");
    const canvas = (label) => element("canvas", {
      tabindex: 0, role: "application", "aria-label": label, "aria-describedby": "keys",
    });
    this.timelineCanvas = canvas("Timeline of requests and steps");
    this.timelineSpace = element("div", { class: "space" }, this.timelineCanvas);
    this.timelineBox = element("div", { class: "box timeline", tabindex: -1 }, this.timelineSpace);
    this.overview = element("canvas", {
      class: "overview", role: "img", "aria-label": "All steps at a glance; press to go there",
    });
    this.poolCanvas = canvas("Grid of KV blocks");
    this.poolSpace = element("div", { class: "space" }, this.poolCanvas);
    this.poolBox = element("div", { class: "box pool", tabindex: -1 }, this.poolSpace);
    this.poolFacts = element("p", { class: "facts" });
    this.stepTitle = element("h2");
    this.facts = element("p", { class: "facts" });
    this.selected = element("div", { class: "selected" });
    this.lists = element("div", { class: "lists" });
    this.tip = element("div", { class: "tip", role: "tooltip", hidden: true });
    this.live = element("div", { class: "unseen", "aria-live": "polite", role: "status" });

    const bounded = (node) => element("bdi", {}, node);
    document.body.append(
      element("header", {},
        element("div", {},
          element("h1", {}, bounded(shown(data.title || "A trace"))),
          data.about ? element("p", { class: "about" }, bounded(shown(data.about))) : "",
          element("p", { class: "source" }, this.sourceLine(data))),
        this.themeButton),
      element("div", { class: "controls", role: "group", "aria-label": "Steps" },
        button("First step", "\u00ab", () => this.go(0)),
        button("One step back", "\u2039", () => this.go(this.state.step - 1)),
        this.playButton,
        button("One step on", "\u203a", () => this.go(this.state.step + 1)),
        button("Last step", "\u00bb", () => this.go(last)),
        this.slider, this.where, this.speed,
        button("Narrower steps", "\u2212", () => this.zoom(1 / 1.5)),
        button("Wider steps", "+", () => this.zoom(1.5))),
      element("main", {},
        element("section", { class: "wide", "aria-label": "Timeline" },
          this.overview, this.timelineBox, this.legend()),
        element("div", { class: "columns" },
          element("section", { "aria-label": "The step" },
            this.stepTitle, this.facts, this.selected, this.lists),
          element("section", { "aria-label": "KV blocks" },
            element("h2", {}, "KV blocks"), this.poolFacts, this.poolBox, this.poolLegend()))),
      element("p", { id: "keys", class: "keys" },
        "Arrow keys: step and request. Home, End: first and last step. Page Up, Page Down: ten steps. " +
        "Space: play. In the grid the arrow keys go from block to block."),
      this.tip, this.live);
  }
  sourceLine(data) {
    const { config, R, S } = this.model;
    const budget = config.max_num_batched_tokens;
    return `${shown(data.source)}. ${plural(R, "request")}, ${plural(S, "step")}; blocks of ` +
      `${config.block_size} tokens, ${config.num_gpu_blocks - 1} to give out; ${budget} tokens a step` +
      (config.long_prefill_token_threshold
        ? `, ${config.long_prefill_token_threshold} for one request` : "") +
      `; ${plural(config.max_num_seqs, "sequence slot")}; ${config.scheduling_policy}; prefix caching ` +
      `${config.enable_prefix_caching ? "on" : "off"}.`;
  }
  legend() {
    const key = (name, text) =>
      element("li", {}, element("span", { class: `key ${name}`, "aria-hidden": "true" }), text);
    return element("ul", { class: "legend", "aria-label": "Legend of the timeline" },
      key("prefill", "prefill (tokens)"), key("decode", "decode (1 token)"),
      key("recompute", "computed again"), key("wait", "waiting"),
      element("li", {}, element("b", { class: "cross", "aria-hidden": "true" }, "\u2715"), "preempted"),
      key("victim", "waiting after it"), key("hit", "prefix hit"), key("end", "finished"),
      key("abort", "aborted"),
      element("li", {}, "bars: tokens of the batch, decodes below; line: blocks in use"));
  }
  poolLegend() {
    const key = (name, text) =>
      element("li", {}, element("span", { class: `key ${name}`, "aria-hidden": "true" }), text);
    return element("ul", { class: "legend", "aria-label": "Legend of the blocks" },
      key("owned", "held: its owner's colour"), key("shared", "shared"),
      key("hashed", "full, found by its hash"), key("cached", "free, content cached"),
      key("free", "free"), key("evicted", "evicted in this step"));
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
      const block = this.pool.at(...place(poolCanvas, event));
      this.showTip(block < 0 ? [] : [this.pool.describe(block)], event);
    });
    poolCanvas.addEventListener("pointerleave", () => this.hideTip());
    poolCanvas.addEventListener("click", (event) => {
      const block = this.pool.at(...place(poolCanvas, event));
      if (block >= 0) this.toBlock(block);
    });
    poolCanvas.addEventListener("focus", () => { this.toBlock(this.pool.focus, true); });
    poolCanvas.addEventListener("blur", () => { this.hideTip(); this.dirty(); });
    const jump = (event) => {
      const box = this.overview.getBoundingClientRect();
      const share = (event.clientX - box.left) / box.width;
      this.go(Math.floor(share * this.model.S));
    };
    this.overview.addEventListener("pointerdown", (event) => {
      this.overview.setPointerCapture(event.pointerId);
      jump(event);
    });
    this.overview.addEventListener("pointermove", (event) => { if (event.buttons) jump(event); });
    document.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => { this.layout(); this.dirty(); }).observe(document.documentElement);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.recolour());
    window.addEventListener("message", (event) => { // a page that shows this one in a frame
      if (event.source !== window.parent || event.source === window) return;
      if (["light", "dark"].includes(event.data?.theme)) this.setTheme(event.data.theme);
    });
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
    else if (moves[event.key]) {
      const [s, r] = moves[event.key];
      this.go(s, { row: r, say: true, show: true });
    } else return;
    event.preventDefault();
  }
  poolKey(event) {
    const columns = this.pool.columns();
    const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[event.key];
    if (by === undefined) return false;
    const block = this.pool.focus + by;
    if (block >= 0 && block < this.pool.count) this.toBlock(block);
    return true;
  }
  toBlock(block, quiet = false) {
    this.pool.focus = block;
    const holders = this.pool.holders[block];
    if (holders && !quiet && !holders.some(([r]) => r === this.state.row)) this.state.row = holders[0][0];
    this.pool.reveal(block);
    const text = this.pool.describe(block);
    this.say(text);
    const box = this.poolCanvas.getBoundingClientRect();
    const { size } = this.pool;
    this.showTip([text], {
      clientX: box.left + (block % this.pool.columns()) * size + size / 2,
      clientY: box.top + Math.floor(block / this.pool.columns()) * size + size - this.poolBox.scrollTop,
    });
    this.dirty();
  }
  go(step, { row = this.state.row, say = false, show = false, still = false } = {}) {
    const { model, state } = this;
    const moved = row !== state.row;
    state.step = Math.max(0, Math.min(model.S - 1, step));
    state.row = Math.max(0, Math.min(model.R - 1, row));
    if (!still) this.timeline.reveal(show || moved ? state.row : null, state.step);
    if (say) this.say([this.stepTip(state.step)[0], ...this.cellTip(state.row, state.step)].join(". "));
    this.atCursor = document.activeElement === this.timelineCanvas && show;
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
    this.overviewPicture = null;
    this.dirty();
  }
  say(text) {
    clearTimeout(this.saying);
    this.saying = setTimeout(() => { this.live.textContent = text; }, 120);
  }
  layout() {
    const [width, height] = this.timeline.size();
    const bar = width > this.timelineBox.clientWidth ? 16 : 0;
    const room = Math.max(200, Math.min(460, window.innerHeight * 0.5));
    this.timelineBox.style.height = `${Math.min(height + bar + 2, room)}px`;
    this.timelineSpace.style.width = `${width}px`;
    this.timelineSpace.style.height = `${height}px`;
    this.overview.hidden = width <= this.timelineBox.clientWidth && height <= room;
    const tall = this.pool.height();
    this.poolBox.style.height = `${Math.min(tall + 2, 380)}px`;
    this.poolSpace.style.height = `${tall}px`;
    this.overviewPicture = null;
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
    this.drawOverview();
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
  drawOverview() {
    if (this.overview.hidden) return;
    const { model, palette, state } = this;
    const { S, R, cells } = model;
    const [width, height] = [this.timelineBox.clientWidth, 44];
    if (!this.overviewPicture) {
      const picture = element("canvas");
      picture.width = S;
      picture.height = R;
      const image = picture.getContext("2d").createImageData(S, R);
      const pixels = new Uint32Array(image.data.buffer);
      const colour = (value) => {
        const [r, g, b] = [1, 3, 5].map((i) => parseInt(value.slice(i, i + 2), 16));
        return (255 << 24) | (b << 16) | (g << 8) | r;
      };
      const [wait, alarm] = [colour(palette.wait), colour(palette.alarm)];
      for (let r = 0; r < R; r++) {
        const own = colour(palette.owner(r));
        for (let i = r * S; i < (r + 1) * S; i++) {
          const kind = cells[i] & KIND_BITS;
          if (kind) pixels[i] = kind === KIND.waiting ? wait : kind === KIND.preempted ? alarm : own;
        }
      }
      picture.getContext("2d").putImageData(image, 0, 0);
      const small = this.overviewPicture = element("canvas");
      prepare(small, width, height, palette).drawImage(picture, 0, 0, width, height);
    }
    const c = prepare(this.overview, width, height, palette);
    c.drawImage(this.overviewPicture, 0, 0, width, height);
    const { timeline, timelineBox } = this;
    const seen = (timelineBox.clientWidth - timeline.left) / timeline.cell;
    c.strokeStyle = palette.faint;
    c.strokeRect(
      (width * timelineBox.scrollLeft) / timeline.cell / S + 0.5,
      (height * timelineBox.scrollTop) / timeline.rowHeight / R + 0.5,
      Math.min(width - 1, (width * seen) / S),
      Math.min(height - 1, (height * (timelineBox.clientHeight - TOP)) / timeline.rowHeight / R));
    c.fillStyle = palette.cursor;
    c.fillRect((width * (state.step + 0.5)) / S - 1, 0, 2, height);
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
