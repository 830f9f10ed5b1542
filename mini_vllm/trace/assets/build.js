"use strict";
// The page's elements: what stands where, and what each control is called.

class Built extends Words {
  build(data) {
    const { model } = this;
    const button = (label, text, act, more = {}) => element("button",
      { type: "button", "aria-label": label, title: label, onclick: act, ...more }, text);
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
    this.eventKind = eventChoice(this.events);
    const canvas = (label) => element("canvas", {
      tabindex: 0, role: "application", "aria-label": label, "aria-describedby": "keys",
    });
    this.timelineCanvas = canvas("Timeline of requests and steps");
    this.timelineSpace = element("div", { class: "space" }, this.timelineCanvas);
    this.timelineBox = element("div", { class: "box timeline", tabindex: -1 }, this.timelineSpace);
    this.overviewCanvas = element("canvas", {
      class: "overview", role: "img", "aria-label": "All steps at a glance; press to go there",
    });
    this.poolCanvas = canvas("Table of the selected request, and grid of KV blocks");
    this.poolSpace = element("div", { class: "space" }, this.poolCanvas);
    this.poolBox = element("div", { class: "box pool", tabindex: -1 }, this.poolSpace);
    this.poolFacts = element("p", { class: "facts" });
    this.queueFacts = element("p", { class: "facts queue" });
    this.foldButton = element("button", { type: "button", onclick: () => this.fold(!this.pool.folded) });
    this.poolLegend = element("div");
    this.happened = element("p", { class: "happened" });
    this.stepTitle = element("h2");
    this.facts = element("p", { class: "facts" });
    this.selected = element("div", { class: "selected" });
    this.lists = element("div", { class: "lists" });
    this.tip = element("div", { class: "tip", role: "tooltip", hidden: true });
    this.live = element("div", { class: "unseen", "aria-live": "polite", role: "status" });

    const bounded = (node) => element("bdi", {}, node);
    const group = (label, ...nodes) =>
      element("div", { class: "group", role: "group", "aria-label": label }, ...nodes);
    const some = this.events.some((events) => events.length);
    this.page = element("main", {},
      element("header", {},
        element("div", {},
          element("h1", {}, bounded(shown(data.title || "A trace"))),
          data.about ? element("p", { class: "about" }, bounded(shown(data.about))) : "",
          element("p", { class: "source" }, this.sourceLine(data))),
        this.themeButton),
      element("div", { class: "controls", role: "group", "aria-label": "Steps" },
        group("Move",
          button("First step", "\u00ab", () => this.go(0), { class: "far" }),
          button("One step back", "\u2039", () => this.go(this.state.step - 1)),
          this.playButton,
          button("One step on", "\u203a", () => this.go(this.state.step + 1)),
          button("Last step", "\u00bb", () => this.go(last), { class: "far" })),
        this.slider, this.where,
        some ? group("Events",
          button("Event before (p)", "\u2190", () => this.jump(-1)),
          this.eventKind,
          button("Next event (n)", "\u2192", () => this.jump(1))) : ""),
      this.happened,
      element("section", { class: "wide", "aria-label": "Timeline" },
        this.overviewCanvas, this.timelineBox,
        element("div", { class: "below" }, timelineLegend(model),
          group("Looks", this.speed,
            button("Narrower steps", "\u2212", () => this.zoom(1 / 1.5)),
            button("Wider steps", "+", () => this.zoom(1.5))))),
      element("div", { class: "columns" },
        element("section", { "aria-label": "The step" },
          this.stepTitle, this.facts, this.selected, this.lists),
        element("section", { "aria-label": "KV blocks" },
          element("h2", {}, "KV blocks"), this.poolFacts, this.queueFacts, this.poolBox, this.foldButton,
          this.poolLegend)),
      element("p", { id: "keys", class: "keys" },
        "Arrow keys: step and request. Home, End: first and last step. Page Up, Page Down: ten steps. " +
        (some ? "n, p: next event and the one before. " : "") +
        "Space: play. In the grid the arrow keys go from block to block."),
      this.tip, this.live);
    document.body.append(this.page);
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
}
