"use strict";
// The block pool, as it is while a step runs. Only what is in sight is drawn.

class Pool {
  constructor(model, canvas, scroller) {
    Object.assign(this, { model, canvas, scroller });
    this.count = model.config.num_gpu_blocks;
    this.size = this.count <= 64 ? 34 : this.count <= 300 ? 26 : this.count <= 1200 ? 16 : 9;
    this.focus = 0;
    this.step = -1;
  }
  columns() {
    return Math.max(1, Math.floor((this.scroller.clientWidth - 2) / this.size));
  }
  height() {
    return Math.ceil(this.count / this.columns()) * this.size + 2;
  }
  at(x, y) {
    const column = Math.floor(x / this.size);
    const row = Math.floor((y + this.scroller.scrollTop) / this.size);
    const block = row * this.columns() + column;
    return column < this.columns() && column >= 0 && block < this.count ? block : -1;
  }
  reveal(block) {
    const y = Math.floor(block / this.columns()) * this.size;
    const { scroller } = this;
    if (y < scroller.scrollTop) scroller.scrollTop = y;
    if (y + this.size > scroller.scrollTop + scroller.clientHeight) {
      scroller.scrollTop = y + this.size - scroller.clientHeight;
    }
  }
  // Who holds what while the step runs.
  look(s) {
    if (s === this.step) return;
    this.step = s;
    const { model } = this;
    this.holders = new Array(this.count);
    for (let r = 0; r < model.R; r++) {
      model.tableIn(r, s).forEach((block, position) => {
        (this.holders[block] ??= []).push([r, position]);
      });
    }
    this.cached = model.cachedIn(s);
    this.evicted = new Set(model.steps[s].evicted);
    this.published = new Set(model.steps[s].published);
  }
  describe(block) {
    if (block === 0) return "Block 0: the null block, never given out";
    const holders = this.holders[block] ?? [];
    const who = holders.map(([r, i]) => `${shown(this.model.requests[r].request_id)} (its block ${i})`);
    const parts = [];
    if (who.length > 1) parts.push(`shared by ${who.length}: ${who.join(", ")}`);
    else if (who.length) parts.push(`held by ${who[0]}`);
    else parts.push(this.cached[block] ? "free, its content cached" : "free, empty");
    if (who.length && this.cached[block]) parts.push("full, to be found by its hash");
    if (this.evicted.has(block)) parts.push("what it held was evicted in this step");
    if (this.published.has(block)) parts.push("published in this step");
    return `Block ${block}: ${parts.join("; ")}`;
  }
  draw(state, p, focused) {
    this.look(state.step);
    const { scroller, size, model } = this;
    const c = prepare(this.canvas, scroller.clientWidth, scroller.clientHeight, p);
    const columns = this.columns();
    const first = Math.max(0, Math.floor(scroller.scrollTop / size)) * columns;
    const rows = Math.ceil(scroller.clientHeight / size) + 1;
    const last = Math.min(this.count, first + rows * columns);
    const gap = size > 12 ? 2 : 1;
    const w = size - gap;
    c.textAlign = "center";
    c.textBaseline = "middle";
    for (let block = first; block < last; block++) {
      const x = (block % columns) * size + 1;
      const y = Math.floor(block / columns) * size + 1 - scroller.scrollTop;
      const holders = this.holders[block];
      c.lineWidth = 1;
      if (!holders) {
        if (this.cached[block]) {
          c.fillStyle = p.cached;
          c.fillRect(x, y, w, w);
        }
        c.strokeStyle = p.line;
        c.strokeRect(x + 0.5, y + 0.5, w - 1, w - 1);
        c.fillStyle = p.faint;
        c.font = `12px ${FONT}`;
        if (block === 0 && size >= 14) c.fillText("\u2205", x + w / 2, y + w / 2);
      } else {
        swatch(c, p, holders[0][0], x, y, w, w);
        if (holders.length > 1) this.second(c, p, holders, x, y, w);
        if (size >= 26 && holders.length === 1) {
          const id = shown(model.requests[holders[0][0]].request_id);
          const text = id.slice(size >= 30 ? -4 : -3);
          c.font = `600 ${text.length > 3 || size < 30 ? 10 : 12}px ${FONT}`;
          c.fillStyle = inkOn(p.owner(holders[0][0]));
          c.fillText(text, x + w / 2, y + w / 2);
        }
        if (this.cached[block] && size >= 14) { // an underline: can be found by its hash
          c.fillStyle = p.ink;
          c.fillRect(x + 3, y + w - 4, w - 6, 2);
        }
      }
      if (this.evicted.has(block)) {
        c.fillStyle = p.alarm;
        c.beginPath();
        c.moveTo(x + w, y);
        c.lineTo(x + w - size / 3, y);
        c.lineTo(x + w, y + size / 3);
        c.fill();
      }
      if (holders?.some(([r]) => r === state.row)) {
        c.strokeStyle = p.cursor;
        c.lineWidth = size > 12 ? 2.5 : 1.5;
        c.strokeRect(x + 1, y + 1, w - 2, w - 2);
      }
      if (focused && block === this.focus) {
        c.strokeStyle = p.ink;
        c.lineWidth = 2;
        c.setLineDash([3, 2]);
        c.strokeRect(x, y, w, w);
        c.setLineDash([]);
      }
    }
  }
  second(c, p, holders, x, y, w) {
    c.save();
    c.beginPath();
    c.moveTo(x + w, y);
    c.lineTo(x + w, y + w);
    c.lineTo(x, y + w);
    c.clip();
    swatch(c, p, holders[1][0], x, y, w, w);
    c.restore();
    if (w < 14) return;
    c.fillStyle = p.panel;
    c.beginPath();
    c.arc(x + w / 2, y + w / 2, Math.min(8, w / 3), 0, 7);
    c.fill();
    c.fillStyle = p.ink;
    c.font = `600 10px ${FONT}`;
    c.fillText(`${holders.length}\u00d7`, x + w / 2, y + w / 2 + 0.5);
  }
}
