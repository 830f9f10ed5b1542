"use strict";
// Requests x steps. Only what is in sight is drawn.

const TOP = 62; // the strip above the rows: batch tokens, KV use, step numbers

class Timeline {
  constructor(model, canvas, scroller) {
    Object.assign(this, { model, canvas, scroller });
    this.rowHeight = 20;
    this.ids = model.requests.map((r) => shortened(r.request_id, 12));
    this.cell = 16;
    this.measure();
  }
  // How much room the names take: ids first, of the prompts as much as the window allows.
  measure() {
    const width = this.scroller.clientWidth;
    if (width === this.measured) return;
    this.measured = width;
    const c = this.canvas.getContext("2d");
    const widest = (texts) => texts.reduce((most, text) => Math.max(most, c.measureText(text).width), 0);
    const most = width >= 900 ? 22 : width >= 600 ? 14 : 12;
    this.prompts = this.model.requests.map((r) => promptOf(r, most));
    c.font = `700 12px ${FONT}`;
    this.idWidth = Math.ceil(widest(this.ids));
    c.font = `11px ${FONT}`;
    this.left = Math.max(62, 24 + this.idWidth + 7 + Math.ceil(widest(this.prompts)) + 6);
    this.rowHeight = width < 600 ? 26 : 20;
  }
  size() {
    const { model } = this;
    return [this.left + model.S * this.cell + 8, TOP + model.R * this.rowHeight + 2];
  }
  // The cell under a point of the canvas; row -1 in the strip, step -1 over the labels.
  at(x, y) {
    const { model, scroller } = this;
    const s = x < this.left ? -1 : Math.floor((x - this.left + scroller.scrollLeft) / this.cell);
    const row = y < TOP ? -1 : Math.floor((y - TOP + scroller.scrollTop) / this.rowHeight);
    return { s: s < model.S ? s : -1, r: row < model.R ? row : -1 };
  }
  place(r, s) {
    const { scroller } = this;
    return [
      this.left + s * this.cell - scroller.scrollLeft,
      TOP + r * this.rowHeight - scroller.scrollTop,
    ];
  }
  reveal(r, s) {
    const { scroller, model } = this;
    const wide = scroller.clientWidth - this.left;
    const x = s * this.cell;
    if (x < scroller.scrollLeft || x + this.cell > scroller.scrollLeft + wide) {
      scroller.scrollLeft = Math.max(0, x - wide / 3);
    }
    const high = scroller.clientHeight - TOP;
    const shows = (row) => {
      const y = row * this.rowHeight - scroller.scrollTop;
      return y >= 0 && y + this.rowHeight <= high;
    };
    if (r !== null) {
      if (!shows(r)) scroller.scrollTop = Math.max(0, r * this.rowHeight - high / 2);
      return;
    }
    let least = Infinity;
    for (let i = model.first[s]; i < model.first[s + 1]; i++) {
      const row = model.entry.row[i];
      if (shows(row)) return;
      least = Math.min(least, row);
    }
    if (least < Infinity) scroller.scrollTop = Math.max(0, (least - 1) * this.rowHeight);
  }
  draw(state, p) {
    const { model, scroller, cell, left, rowHeight } = this;
    const [width, height] = [scroller.clientWidth, scroller.clientHeight];
    const c = prepare(this.canvas, width, height, p);
    const { S, R, cells } = model;
    const x0 = scroller.scrollLeft;
    const from = Math.max(0, Math.floor(x0 / cell));
    const to = Math.min(S, Math.ceil((x0 + width - left) / cell));
    const top = Math.max(0, Math.floor(scroller.scrollTop / rowHeight));
    const bottom = Math.min(R, Math.ceil((scroller.scrollTop + height - TOP) / rowHeight));
    const x = (s) => left + s * cell - x0;
    const gap = cell >= 6 ? 1 : 0;
    c.textBaseline = "middle";

    // The step that is looked at, and the selected row, behind everything.
    c.fillStyle = p.cursor;
    c.globalAlpha = 0.16;
    c.fillRect(x(state.step), 0, Math.max(cell, 2), height);
    c.globalAlpha = 0.1;
    c.fillRect(0, TOP + state.row * rowHeight - scroller.scrollTop, width, rowHeight);
    c.globalAlpha = 1;

    c.save();
    c.beginPath();
    c.rect(left, TOP, width - left, height - TOP);
    c.clip();
    for (let r = top; r < bottom; r++) {
      const y = TOP + r * rowHeight - scroller.scrollTop;
      const base = r * S;
      let s = from;
      while (s < to) {
        const kind = cells[base + s] & KIND_BITS;
        if (!kind) { s++; continue; }
        let end = s + 1;
        const single = cell >= 6 && kind >= KIND.prefill;
        if (!single) while (end < to && (cells[base + end] & KIND_BITS) === kind) end++;
        const thin = kind === KIND.decode || kind === KIND.stalled;
        const [dy, h] = thin ? [7, rowHeight - 14] : [3, rowHeight - 6];
        const w = (end - s) * cell - gap;
        if (p.fill[kind]) {
          c.fillStyle = p.fill[kind];
          c.fillRect(x(s), y + dy, w, h);
        } else swatch(c, p, r, x(s), y + dy, w, h);
        if (kind === KIND.recompute) {
          c.fillStyle = p.stripes;
          c.fillRect(x(s), y + dy, w, h);
        }
        if (kind === KIND.waiting || kind === KIND.preempted) {
          c.strokeStyle = kind === KIND.waiting ? p.wait : p.alarm;
          c.lineWidth = 1;
          c.strokeRect(x(s) + 0.5, y + dy + 0.5, (end - s) * cell - gap - 1, h - 1);
        }
        s = end;
      }
    }
    if (cell >= 6) this.drafts(c, p, from, to, top, bottom, x);
    if (cell >= 22) this.counts(c, p, from, to, top, bottom, x);
    for (let r = top; r < bottom; r++) {
      this.marks(c, p, r, TOP + r * rowHeight - scroller.scrollTop, from, to, x);
    }
    c.restore();
    this.strip(c, p, state, from, to, width, x);
    this.labels(c, p, state, top, bottom, height);

    c.strokeStyle = p.cursor;
    c.lineWidth = 1.5;
    if (state.row >= top && state.row < bottom && x(state.step) >= left - 1) {
      const y = TOP + state.row * rowHeight - scroller.scrollTop;
      if (y >= TOP - 1) c.strokeRect(x(state.step) - 0.5, y + 0.5, Math.max(cell, 3), rowHeight - 1);
    }
  }
  marks(c, p, r, y, from, to, x) {
    const { model: { S, cells }, cell, rowHeight } = this;
    const w = Math.min(6, Math.max(cell, 3));
    for (let s = from; s < to; s++) {
      const flags = cells[r * S + s] & ~KIND_BITS;
      if (!flags) continue;
      if (flags & FLAG.hit) { // a flag at the lower left: this much was found, not computed
        c.fillStyle = p.hit;
        c.strokeStyle = p.ink;
        c.lineWidth = 0.8;
        c.beginPath();
        c.moveTo(x(s), y + rowHeight - 3);
        c.lineTo(x(s), y + rowHeight - 11);
        c.lineTo(x(s) + w + 2, y + rowHeight - 3);
        c.closePath();
        c.fill();
        c.stroke();
      }
      c.fillStyle = p.ink;
      if (flags & FLAG.finished) {
        c.fillRect(x(s) + Math.max(cell - 4, 0), y + 2, 3, rowHeight - 4);
      }
      if (flags & FLAG.aborted) {
        c.fillStyle = p.alarm;
        c.fillRect(x(s) - 2, y + 2, 3, rowHeight - 4);
        c.fillRect(x(s) - 5, y + 2, 6, 3);
        c.fillRect(x(s) - 5, y + rowHeight - 5, 6, 3);
      }
      if (flags & FLAG.victim) {
        const [m, h] = [x(s) + cell / 2, y + rowHeight / 2];
        c.fillStyle = p.panel;
        c.fillRect(m - 6, h - 7, 12, 14);
        c.strokeStyle = p.alarm;
        c.lineWidth = 2.4;
        c.beginPath();
        c.moveTo(m - 4, h - 4);
        c.lineTo(m + 4, h + 4);
        c.moveTo(m + 4, h - 4);
        c.lineTo(m - 4, h + 4);
        c.stroke();
      }
    }
  }
  // Under the bar of a cell: a mark for each draft that it checks, a high one if it was accepted.
  drafts(c, p, from, to, top, bottom, x) {
    const { model: { first, entry, drafts }, cell, rowHeight, scroller } = this;
    for (let s = from; s < to; s++) {
      if (!drafts[s].accepted && !drafts[s].rejected) continue;
      for (let i = first[s]; i < first[s + 1]; i++) {
        const [r, part] = [entry.row[i], entry.part[i]];
        const n = part.draft_token_ids.length;
        if (!n || r < top || r >= bottom) continue;
        const step = Math.min(5, (cell - 1) / n);
        const size = Math.max(1, step - 1);
        const y = TOP + (r + 1) * rowHeight - scroller.scrollTop - 1;
        for (let d = 0; d < n; d++) {
          const accepted = d < part.num_accepted_tokens;
          const high = accepted ? 5 : 2;
          c.fillStyle = accepted ? p.ink : p.alarm;
          c.fillRect(x(s) + d * step, y - high, size, high);
        }
      }
    }
  }
  counts(c, p, from, to, top, bottom, x) {
    const { model: { first, entry, cells, S }, cell, rowHeight, scroller } = this;
    c.font = `600 10px ${FONT}`;
    c.textAlign = "center";
    for (let s = from; s < to; s++) {
      for (let i = first[s]; i < first[s + 1]; i++) {
        const [r, part] = [entry.row[i], entry.part[i]];
        if (r < top || r >= bottom || (cells[r * S + s] & KIND_BITS) === KIND.decode) continue;
        const shift = part.num_cached_tokens ? 4 : 0;
        const [m, y] = [x(s) + cell / 2 + shift, TOP + (r + 0.5) * rowHeight - scroller.scrollTop];
        const recompute = (cells[r * S + s] & KIND_BITS) === KIND.recompute;
        if (recompute) {
          c.fillStyle = p.panel;
          c.fillRect(m - 8, y - 6, 16, 12);
        }
        c.fillStyle = recompute ? p.ink : inkOn(p.owner(r));
        c.fillText(String(part.num_scheduled_tokens), m, y + 0.5);
      }
    }
  }
  // Above the rows: tokens of each batch as bars, blocks in use as a line, numbers of the steps.
  strip(c, p, state, from, to, width, x) {
    const { model, cell, left } = this;
    const { total, decodes, steps, config, numbers } = model;
    c.save();
    c.beginPath();
    c.rect(left, 0, width - left, TOP);
    c.clip();
    const [base, high] = [40, 36];
    const most = Math.max(1, Math.min(config.max_num_batched_tokens, this.mostTokens()));
    for (let s = from; s < to; s++) {
      const w = Math.max(1, cell - (cell >= 6 ? 1 : 0));
      const all = (high * total[s]) / most;
      const dec = (high * decodes[s]) / most;
      c.fillStyle = p.prefill;
      c.fillRect(x(s), base - all, w, all - dec);
      c.fillStyle = p.decode;
      c.fillRect(x(s), base - dec, w, dec);
    }
    c.strokeStyle = p.ink;
    c.lineWidth = 1.4;
    c.beginPath();
    const usable = Math.max(1, config.num_gpu_blocks - 1);
    for (let s = from; s < to; s++) {
      const y = base - (high * steps[s].blocks_in_use) / usable;
      if (s === from) c.moveTo(x(s), y);
      else c.lineTo(x(s), y);
      c.lineTo(x(s) + cell, y);
    }
    c.stroke();
    c.fillStyle = p.faint;
    c.font = `11px ${FONT}`;
    c.textAlign = "center";
    const every = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].find((n) => n * cell >= 34) ?? 1000;
    for (let s = from; s < to; s++) {
      if (numbers[s] % every === 0 && s !== state.step) {
        c.fillText(String(numbers[s]), x(s) + cell / 2, 52);
      }
    }
    const label = String(numbers[state.step]);
    const w = 10 + 7 * label.length;
    const m = x(state.step) + cell / 2;
    c.fillStyle = p.cursor;
    c.fillRect(m - w / 2, 44, w, 16);
    c.fillStyle = p.panel;
    c.font = `600 11px ${FONT}`;
    c.fillText(label, m, 52.5);
    c.restore();
    c.fillStyle = p.faint;
    c.font = `10px ${FONT}`;
    c.textAlign = "right";
    c.fillText(`${most} tok`, left - 5, 8);
    c.fillText("KV line", left - 5, 22);
    c.fillText("step", left - 5, 52);
    c.fillStyle = p.line;
    c.fillRect(0, TOP - 1, width, 1);
  }
  mostTokens() {
    this.most ??= this.model.total.reduce((a, b) => Math.max(a, b), 0);
    return this.most;
  }
  labels(c, p, state, top, bottom, height) {
    const { left, rowHeight, scroller } = this;
    c.save();
    c.beginPath();
    c.rect(0, TOP, left, height - TOP);
    c.clip();
    c.textAlign = "left";
    for (let r = top; r < bottom; r++) {
      const y = TOP + r * rowHeight - scroller.scrollTop;
      const middle = y + rowHeight / 2;
      swatch(c, p, r, 6, middle - 6, 12, 12);
      c.fillStyle = p.ink;
      c.font = `${r === state.row ? "700 " : ""}12px ${FONT}`;
      c.fillText(this.ids[r], 24, middle + 0.5);
      c.fillStyle = p.faint;
      c.font = `11px ${FONT}`;
      c.fillText(this.prompts[r], 24 + this.idWidth + 7, middle + 0.5);
    }
    c.restore();
    c.fillStyle = p.line;
    c.fillRect(left - 1, 0, 1, height);
  }
}
