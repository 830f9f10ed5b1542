"use strict";
// What is said in words: the tip, and the details of a step. Text from the trace goes into the page
// through textContent alone.

const KIND_WORDS = ["", "waiting", "waiting after a preemption", "prefill", "decode", "recompute",
  "running without tokens"];

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

const plural = (n, noun) => `${n} ${noun}${n === 1 ? "" : "s"}`;

function runs(blocks) { // [1, 2, 3, 7] as 1-3,7
  const parts = [];
  for (const block of blocks) {
    const last = parts[parts.length - 1];
    if (last && block === last[1] + 1) last[1] = block;
    else parts.push([block, block]);
  }
  return parts.map(([a, b]) => (a === b ? `${a}` : `${a}-${b}`)).join(",") || "none";
}

class Words {
  stepTip(s) {
    const { model } = this;
    if (s < 0) return [];
    const n = model.first[s + 1] - model.first[s];
    return [`Step ${model.numbers[s]}: ${plural(model.total[s], "token")} for ${plural(n, "request")}`];
  }
  // A request in a step, as lines.
  cellTip(r, s) {
    const { model } = this;
    const name = shown(model.requests[r].request_id);
    const flags = model.cells[r * model.S + s];
    const kind = flags & KIND_BITS;
    const lines = [];
    const part = model.partOf(r, s);
    if (model.arrival[r] === s) lines.push("arrived before this step");
    if (flags & FLAG.victim) lines.push("preempted in this step: its blocks are free, it starts over");
    if (part) {
      const hit = part.num_cached_tokens;
      if (hit) lines.push(`${plural(hit, "token")} from the prefix cache`);
      const from = part.num_computed_tokens;
      const to = from + part.num_scheduled_tokens - 1;
      const tokens = plural(part.num_scheduled_tokens, "token");
      lines.push(`${tokens} (position${from === to ? "" : "s"} ${from}${from === to ? "" : ` to ${to}`})`);
      lines.push(`why: ${shown(part.why)}`, ...this.outcome(part));
    } else if (kind) {
      const why = model.reason(r, s);
      if (why) lines.push(`why: ${shown(why)}`);
    } else {
      lines.push(flags & FLAG.aborted ? "ended from outside just before this step"
        : s < model.arrival[r] ? "has not arrived yet" : "over, earlier than this");
    }
    const step = `step ${model.numbers[s]}`;
    return [`${name}, ${step}${kind ? `: ${KIND_WORDS[kind]}` : ""}`, ...lines];
  }
  outcome(part) {
    const lines = part.new_token_ids.map((token) => `sampled ${this.piece(token)}`);
    if (part.finish_reason !== null) lines.push(`finished: ${shown(part.finish_reason)}`);
    return lines;
  }
  piece(token) {
    const piece = this.model.data.pieces[token];
    return piece === undefined ? `token ${token}` : `${token} \u201c${shown(piece)}\u201d`;
  }
  showTip(lines, event) {
    const { tip } = this;
    if (!lines.length) return this.hideTip();
    tip.replaceChildren(...lines.map((line, i) => element(i ? "div" : "strong", {}, line)));
    tip.hidden = false;
    const [w, h] = [tip.offsetWidth, tip.offsetHeight];
    const [x, y] = [event.clientX + 14, event.clientY + 16];
    tip.style.left = `${Math.max(4, Math.min(x, document.documentElement.clientWidth - w - 6))}px`;
    tip.style.top = `${y + h > window.innerHeight ? Math.max(4, event.clientY - h - 10) : y}px`;
  }
  hideTip() {
    this.tip.hidden = true;
  }
  tipAtCursor() {
    const { state, timeline } = this;
    const box = this.timelineCanvas.getBoundingClientRect();
    const [x, y] = timeline.place(state.row, state.step);
    this.showTip(this.cellTip(state.row, state.step), {
      clientX: box.left + x + timeline.cell, clientY: box.top + y + timeline.rowHeight - 8,
    });
  }

  // -- the details of a step ------------------------------------------------------------------------

  details() {
    const { model, state, pool } = this;
    const s = state.step;
    const step = model.steps[s];
    const { config } = model;
    const n = model.first[s + 1] - model.first[s];
    this.stepTitle.textContent = `Step ${model.numbers[s]}`;
    const facts = [
      `${model.total[s]} of ${config.max_num_batched_tokens} tokens, ${plural(n, "request")}`,
      `after it ${step.running.length} running, ${step.waiting.length} waiting`,
    ];
    if (model.timed) {
      const times = [step.schedule_time, step.execute_time, step.update_time];
      const ms = times.map((seconds) => (1e3 * seconds).toFixed(2));
      facts.push(`schedule ${ms[0]}, execute ${ms[1]}, update ${ms[2]} ms`);
    }
    this.facts.textContent = facts.join("; ");
    let [shared, cached, used] = [0, 0, 0];
    for (let block = 1; block < pool.count; block++) {
      const holders = pool.holders[block];
      if (holders) { used++; shared += holders.length > 1; }
      else cached += pool.cached[block];
    }
    this.poolFacts.textContent =
      `${used} of ${pool.count - 1} in use while it runs (${shared} shared), ` +
      `${pool.count - 1 - used} free (${cached} with cached content); ${step.free_blocks} free after it`;
    this.selected.replaceChildren(...this.selection());
    this.lists.replaceChildren(...this.sections().filter(Boolean));
  }
  name(r) {
    return element("button", {
      type: "button", class: "name", "aria-pressed": String(r === this.state.row),
      onclick: () => this.go(this.state.step, { row: r, show: true, say: true }),
    }, element("bdi", {}, shown(this.model.requests[r].request_id)));
  }
  selection() {
    const { model, state: { row, step } } = this;
    const [title, ...lines] = this.cellTip(row, step);
    const info = model.requests[row];
    const table = model.tableIn(row, step);
    const made = [
      element("h3", {}, element("bdi", {}, title)),
      element("ul", { class: "plain" },
        ...lines.map((line) => element("li", {}, element("bdi", {}, line)))),
    ];
    const facts = element("p", { class: "facts" },
      `${plural(info.num_prompt_tokens, "prompt token")}, at most ${info.max_tokens} more` +
      `${model.config.scheduling_policy === "priority" ? `, priority ${info.priority}` : ""}; blocks ${runs(table)}`);
    made.push(facts);
    const line = (label, text) => element("p", { class: "text" }, `${label} `,
      element("q", {}, element("bdi", {}, shown(text.slice(0, 400)) + (text.length > 400 ? "\u2026" : ""))));
    if (info.prompt) made.push(line("Prompt:", info.prompt));
    if (info.text) made.push(line("Output in the end:", info.text));
    return made;
  }
  sections() {
    const { model, state: { step: s, row } } = this;
    const { entry, first } = model;
    const step = model.steps[s];
    const { victims, aborted, running, waiting } = model.rows[s];
    const LIMIT = this.more ? Infinity : 12;
    let hidden = 0;
    const made = [];
    const heading = (text) => element("h3", {}, text);
    const list = (title, requests, say) => {
      if (!requests.length) return;
      const rows = requests.slice(0, LIMIT);
      hidden += requests.length - rows.length;
      made.push(heading(`${title} (${requests.length})`), element("ul", { class: "plain" },
        ...rows.map((r) => element("li", {}, this.name(r), " ", element("bdi", {}, say(r))))));
    };
    list("Preempted", victims, (r) => shown(model.reason(r, s)));
    list("Ended from outside", aborted, () => "aborted, or its text held a stop string");
    if (first[s + 1] > first[s]) {
      const rows = [];
      for (let i = first[s]; i < Math.min(first[s + 1], first[s] + LIMIT); i++) {
        const [r, part] = [entry.row[i], entry.part[i]];
        const notes = [shown(part.why)];
        if (part.num_cached_tokens) notes.push(`${part.num_cached_tokens} from the prefix cache`);
        notes.push(...this.outcome(part));
        rows.push(element("tr", { class: r === row ? "chosen" : null },
          element("th", { scope: "row" }, this.name(r)),
          element("td", {}, part.kind),
          element("td", { class: "number" }, String(part.num_scheduled_tokens)),
          element("td", {}, element("bdi", {}, notes.join("; ")))));
      }
      hidden += first[s + 1] - first[s] - rows.length;
      made.push(heading(`Batch (${first[s + 1] - first[s]})`), element("table", {},
        element("thead", {}, element("tr", {},
          ...["request", "as", "tokens", "why"].map((t) => element("th", { scope: "col" }, t)))),
        element("tbody", {}, ...rows)));
    }
    list("Running without tokens", running.filter((r) =>
      (model.cells[r * model.S + s] & KIND_BITS) === KIND.stalled), (r) => shown(model.reason(r, s)));
    list("Waiting", waiting, (r) => shown(model.waits(r, s)));
    if (step.evicted.length) {
      made.push(heading("Evicted from the prefix cache"),
        element("p", {}, `blocks ${runs(step.evicted)}: taken for others, what they held is gone`));
    }
    if (hidden || this.more) {
      made.push(element("button", {
        type: "button", onclick: () => { this.more = !this.more; this.dirty(); },
      }, this.more ? "Show fewer" : `Show ${hidden} more`));
    }
    return made;
  }
}
