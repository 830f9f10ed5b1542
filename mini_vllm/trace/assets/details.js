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

function shortened(text, most) {
  const letters = [...shown(text)];
  return letters.length > most ? `${letters.slice(0, most - 1).join("")}\u2026` : letters.join("");
}

// A request's prompt in a few letters; its length where nobody knows the text.
const promptOf = (info, most) =>
  info.prompt ? shortened(info.prompt, most) : plural(info.num_prompt_tokens, "token");

const plural = (n, noun) => `${n} ${noun}${n === 1 ? "" : "s"}`;

function runs(blocks, most = Infinity) { // [1, 2, 3, 7] as 1-3, 7
  const parts = [];
  let more = "";
  for (const block of blocks) {
    const last = parts[parts.length - 1];
    if (last && block === last[1] + 1) last[1] = block;
    else if (parts.length === most) { more = ", \u2026"; break; }
    else parts.push([block, block]);
  }
  return parts.map(([a, b]) => (a === b ? `${a}` : `${a}-${b}`)).join(", ") + more || "none";
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
    const { draft_token_ids: drafts, num_accepted_tokens: accepted } = part;
    const lines = [];
    if (part.num_allowed_tokens.length) lines.push(this.ruleWords(part));
    const list = (tokens) => tokens.map((token) => this.piece(token)).join(", ");
    if (accepted) lines.push(`${plural(accepted, "draft token")} accepted: ${list(drafts.slice(0, accepted))}`);
    if (rejectedOf(part)) {
      const tokens = drafts.slice(accepted); // -1: only the worker knew them
      const which = tokens.includes(-1) ? "" : `: ${list(tokens)}`;
      lines.push(`${plural(tokens.length, "draft token")} rejected${which}`);
    }
    // The accepted drafts are sampled tokens, too, and stand there already.
    const fresh = part.new_token_ids.slice(accepted);
    if (fresh.length) lines.push(`sampled ${list(fresh)}`);
    if (part.finish_reason !== null) lines.push(`finished: ${shown(part.finish_reason)}`);
    return lines;
  }
  ruleWords(part) {
    const all = this.model.data.vocab_size;
    const share = (n) => (n === 1 ? "1 token, which is forced"
      : `${n} of ${all} tokens (${(100 * n / all).toFixed(n < all / 100 ? 2 : 0)} %)`);
    return `rule ${shown(part.rule_state)}: allows ${part.num_allowed_tokens.map(share).join(", then ")}`;
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
    const { model, state, blocks } = this;
    const s = state.step;
    const step = model.steps[s];
    const { config } = model;
    const n = model.first[s + 1] - model.first[s];
    this.stepTitle.textContent = `Step ${model.numbers[s]}`;
    const facts = [
      `${model.total[s]} of ${config.max_num_batched_tokens} tokens, ${plural(n, "request")}`,
      `after it ${step.running.length} running, ${step.waiting.length} waiting`,
    ];
    const { accepted, rejected } = model.drafts[s];
    if (accepted + rejected) {
      facts.push(`${plural(accepted + rejected, "draft token")} checked: ${accepted} accepted, ${rejected} rejected`);
    }
    if (model.timed) {
      const times = [step.schedule_time, step.execute_time, step.update_time];
      const ms = times.map((seconds) => (1e3 * seconds).toFixed(2));
      facts.push(`schedule ${ms[0]}, execute ${ms[1]}, update ${ms[2]} ms`);
    }
    this.facts.textContent = facts.join("; ");
    const happenings = this.happenings(s, (r) => this.name(r));
    this.happened.classList.toggle("none", !happenings.length);
    this.happened.replaceChildren(...(happenings.length
      ? happenings.flatMap((parts, i) => (i ? ["; ", ...parts] : parts))
      : ["Nobody comes, goes, is preempted or finds cached tokens in this step."]));
    let [shared, cached, used] = [0, 0, 0];
    for (let block = 1; block < blocks.count; block++) {
      if (blocks.refs[block]) { used++; shared += blocks.refs[block] > 1; }
      else cached += blocks.cached(block);
    }
    this.poolFacts.textContent =
      `${used} of ${blocks.count - 1} in use while it runs${shared ? ` (${shared} shared)` : ""}, ` +
      `${blocks.count - 1 - used} free${cached ? ` (${cached} with cached content)` : ""}; ` +
      `${step.free_blocks} free after it.`;
    this.queueFacts.hidden = !blocks.knowsQueue;
    this.queueFacts.textContent = !blocks.queue.length ? "The free queue is empty."
      : `Free queue, next to be given out first: ${runs(blocks.queue, 8)}`;
    this.selected.replaceChildren(...this.selection());
    this.lists.replaceChildren(...this.sections().filter(Boolean));
  }
  name(r) {
    return element("button", {
      type: "button", class: "name", "aria-pressed": String(r === this.state.row),
      onclick: () => this.go(this.state.step, { row: r, show: true, say: true }),
    }, element("bdi", {}, shown(this.model.requests[r].request_id)),
    " ", element("bdi", { class: "prompt" }, promptOf(this.model.requests[r], 18)));
  }
  // What happens in a step besides computing: a line each, with the request's name or its button.
  happenings(s, name = null) {
    const MOST = 6;
    const events = this.events[s];
    const made = events.slice(0, MOST).map(({ r, words }) => (name ? [name(r), ` ${words}`]
      : `${shown(this.model.requests[r].request_id)} ${words}`));
    const left = events.length - made.length;
    if (left > 0) made.push(name ? [`${left} more`] : `${left} more`);
    return made;
  }
  selection() {
    const { model, state: { row, step } } = this;
    const [title, ...lines] = this.cellTip(row, step);
    const info = model.requests[row];
    const table = model.tableIn(row, step);
    const tokens = model.tokensIn(row, step);
    const made = [
      element("h3", {}, element("bdi", {}, title)),
      element("ul", { class: "plain" },
        ...lines.map((line) => element("li", {}, element("bdi", {}, line)))),
    ];
    const facts = element("p", { class: "facts" },
      `${plural(info.num_prompt_tokens, "prompt token")}, at most ${info.max_tokens} more` +
      `${model.config.scheduling_policy === "priority" ? `, priority ${info.priority}` : ""}` +
      `${info.lora === null ? "" : `, adapter ${shown(info.lora)}`}` +
      `${info.rule === null ? "" : `, rule ${shown(info.rule)}`}; ` +
      (table.length ? `${plural(tokens, "token")} in the cache, in blocks ${runs(table)}` : "no blocks"));
    made.push(facts);
    const part = (text) => element("bdi", {}, shown(text));
    if (info.prompt) {
      const more = info.prompt.length > 400 ? "\u2026" : "";
      made.push(element("p", { class: "text" }, "Prompt: ",
        element("q", {}, part(info.prompt.slice(0, 400) + more))));
    }
    const said = model.textIn(row, step);
    if (said) {
      const [before, now, tokensOut] = said;
      const start = Math.max(0, before.length - 400);
      made.push(element("p", { class: "text output" }, tokensOut
        ? `Output so far (${plural(tokensOut, "token")}): ` : "No output yet.",
      ...(tokensOut ? [element("q", {}, part((start ? "\u2026" : "") + before.slice(start)),
        now ? element("mark", {}, part(now)) : "")] : [])));
    }
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
