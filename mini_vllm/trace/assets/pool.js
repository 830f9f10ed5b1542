"use strict";
// The block pool as a grid, and above it the selected request's table: logical block, table entry,
// and a line to the physical block. Only what is in sight is drawn.

// How much a cell shows depends on how many there are: up to so many blocks, of this size.
const CELLS = [
  [72, 86, 52], // everything
  [200, 44, 34], // number, slots, references
  [1200, 16, 16],
  [Infinity, 9, 9],
];
const ENTRY = 40; // the width of a table entry, and of the logical block above it
const BAND = 62; // the height of a row of them
const BANDS = 3; // rows at most
const LABELS = 50; // what the names of the rows take
const FEW = 24; // so many blocks that nobody ever held may as well be seen

class Pool {
  constructor(model, blocks, canvas, scroller) {
    Object.assign(this, { model, blocks, canvas, scroller });
    this.count = blocks.count;
    this.focus = 0;
    this.idle = this.count - 1 - model.used.size;
    this.fold(this.idle > FEW);
  }
  // Folded, the blocks that nobody ever held are left out.
  fold(folded) {
    this.folded = folded;
    const all = [...Array(this.count).keys()];
    this.ids = folded ? all.filter((block) => !block || this.model.used.has(block)) : all;
    this.index = new Int32Array(this.count).fill(-1);
    this.ids.forEach((block, at) => { this.index[block] = at; });
    [, this.wide, this.high] = CELLS.find(([most]) => this.ids.length <= most);
    if (this.index[this.focus] < 0) this.focus = 0;
  }
  // Table entries in a row, and how many rows this request's table needs at its longest.
  entries() {
    return Math.max(1, Math.floor((this.scroller.clientWidth - LABELS - 4) / ENTRY));
  }
  head(row) {
    if (this.headOf !== row) {
      this.headOf = row;
      this.longest = this.model.longest(row);
    }
    return 6 + BAND * Math.max(1, Math.min(BANDS, Math.ceil(this.longest / this.entries())));
  }
  height(row) {
    return this.head(row) + Math.ceil(this.ids.length / this.grid(row).columns) * this.high + 2;
  }
  // How the cells lie in the window, asked for once a drawing. Large cells share what would be left
  // over at the right; `w` and `h` are what is drawn of one.
  grid(row) {
    const room = this.scroller.clientWidth - 2;
    const columns = Math.max(1, Math.floor(room / this.wide));
    const column = this.wide < 40 ? this.wide : Math.floor(Math.min(room / columns, 1.5 * this.wide));
    const gap = this.wide > 60 ? 6 : this.wide > 12 ? 2 : 1;
    const top = this.head(row) + 1 - this.scroller.scrollTop;
    return { columns, column, top, w: column - gap, h: this.high - gap };
  }
  // The upper left corner of a block's cell, as scrolled; null for a block that is folded away.
  place(block, { columns, column, top }) {
    const at = this.index[block];
    return at < 0 ? null : [(at % columns) * column + 1, top + Math.floor(at / columns) * this.high];
  }
  // The block under a point: its cell, or its entry in the table. -1 if there is none.
  at(x, y, state) {
    const { columns, column, top } = this.grid(state.row);
    if (y < top) {
      const head = y + this.scroller.scrollTop - 6;
      const entry = Math.floor((x - LABELS) / ENTRY);
      if (head < 0 || entry < 0 || entry >= this.entries()) return -1;
      const at = Math.floor(head / BAND) * this.entries() + entry;
      return this.model.tableIn(state.row, state.step).slice(0, this.shownEntries(state))[at] ?? -1;
    }
    const across = Math.floor(x / column);
    const at = Math.floor((y - top) / this.high) * columns + across;
    return across < columns && across >= 0 && at < this.ids.length ? this.ids[at] : -1;
  }
  // The table's entries that there is room for; the last place then says how many are left out.
  shownEntries({ row, step }) {
    const room = this.entries() * BANDS;
    const { length } = this.model.tableIn(row, step);
    return length > room ? room - 1 : length;
  }
  reveal(block, row) {
    const [, y] = this.place(block, this.grid(row));
    const { scroller } = this;
    if (y < 0) scroller.scrollTop += y - 2;
    else if (y + this.high > scroller.clientHeight) {
      scroller.scrollTop += y + this.high - scroller.clientHeight;
    }
  }
  neighbour(key, row) { // the block that an arrow key leads to; undefined if none
    const { columns } = this.grid(row);
    const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[key];
    return by === undefined ? undefined : this.ids[this.index[this.focus] + by] ?? this.focus;
  }
  draw(state, p, focused) {
    const { scroller, blocks, high } = this;
    blocks.look(state.step);
    const c = prepare(this.canvas, scroller.clientWidth, scroller.clientHeight, p);
    const grid = this.grid(state.row);
    const { columns, w, h } = grid;
    const first = Math.max(0, Math.floor(-grid.top / high)) * columns;
    const last = Math.min(this.ids.length, first + (Math.ceil(scroller.clientHeight / high) + 1) * columns);
    c.textBaseline = "middle";
    for (let at = first; at < last; at++) {
      const block = this.ids[at];
      const [x, y] = this.place(block, grid);
      this.cell(c, p, block, x, y, w, h);
      if (blocks.holders[block]?.some(([r]) => r === state.row)) {
        c.strokeStyle = p.cursor;
        c.lineWidth = this.wide > 12 ? 2.5 : 1.5;
        c.strokeRect(x + 1, y + 1, w - 2, h - 2);
      }
      if (focused && block === this.focus) {
        c.strokeStyle = p.ink;
        c.lineWidth = 2;
        c.setLineDash([3, 2]);
        c.strokeRect(x, y, w, h);
        c.setLineDash([]);
      }
    }
    this.table(c, p, state, grid);
  }
  cell(c, p, block, x, y, w, h) {
    const { blocks, wide } = this;
    const holders = blocks.holders[block];
    c.lineWidth = 1;
    if (wide >= 40) this.card(c, p, block, x, y, w, h);
    else if (holders) {
      swatch(c, p, holders[0][0], x, y, w, h);
      if (holders.length > 1) this.second(c, p, holders, x, y, w, h);
      if (blocks.cached(block) && wide >= 14) { // an underline: can be found by its hash
        c.fillStyle = p.ink;
        c.fillRect(x + 3, y + h - 4, w - 6, 2);
      }
    } else {
      if (blocks.cached(block)) {
        c.fillStyle = p.cached;
        c.fillRect(x, y, w, h);
      }
      c.strokeStyle = p.line;
      c.strokeRect(x + 0.5, y + 0.5, w - 1, h - 1);
    }
    if (blocks.evicted.has(block)) {
      const size = Math.min(12, wide / 3);
      c.fillStyle = p.alarm;
      c.beginPath();
      c.moveTo(x + w, y);
      c.lineTo(x + w - size, y);
      c.lineTo(x + w, y + size);
      c.fill();
    }
  }
  // A block with its number, its references or its place in the queue, its slots and its hash.
  card(c, p, block, x, y, w, h) {
    const { blocks, wide } = this;
    const holders = blocks.holders[block];
    const big = wide > 60;
    c.fillStyle = p.panel;
    c.fillRect(x, y, w, h);
    c.strokeStyle = holders ? p.faint : p.line;
    c.strokeRect(x + 0.5, y + 0.5, w - 1, h - 1);
    c.textAlign = "left";
    c.fillStyle = holders ? p.ink : p.faint;
    c.font = `${holders ? "700 " : ""}${big ? 12 : 10}px ${FONT}`;
    c.fillText(block ? String(block) : "\u2205", x + 4, y + (big ? 10 : 8));
    if (!block) return;
    c.textAlign = "right";
    c.fillStyle = holders ? p.ink : p.faint;
    c.font = `${big ? 11 : 9.5}px ${FONT}`;
    const place = blocks.place[block];
    const standing = holders ? (big ? `ref ${holders.length}` : `\u00d7${holders.length}`)
      : !place ? "" : big ? `queue ${place}` : `q${place}`;
    const corner = blocks.evicted.has(block) ? 12 : 4; // beside the mark of an eviction
    c.fillText(standing, x + w - corner, y + (big ? 10 : 8));
    this.slots(c, p, block, x + 4, y + (big ? 19 : 15), w - 8, big ? 10 : h - 19);
    if (!big) return;
    c.fillStyle = p.faint;
    c.font = `11px ${FONT}`;
    c.textAlign = "left";
    const slots = blocks.slots(block);
    c.fillText(slots ? `${slots}/${blocks.size}` : "empty", x + 4, y + h - 8);
    c.textAlign = "right";
    const hash = blocks.hashOf(block);
    c.font = `11px ${MONO}`;
    if (hash !== null) c.fillText(hash ? `#${hash.slice(0, 4)}` : "hashed", x + w - 4, y + h - 8);
  }
  // The slots of a block: filled ones in its owner's colour, those of this step in the cursor's.
  slots(c, p, block, x, y, w, h) {
    const { blocks } = this;
    const { size } = blocks;
    const holders = blocks.holders[block];
    const filled = blocks.slots(block);
    const at = (slot) => x + (w * slot) / size;
    if (holders) {
      swatch(c, p, holders[0][0], x, y, at(filled) - x, h);
      if (holders.length > 1) this.second(c, p, holders, x, y, at(filled) - x, h);
      const fresh = blocks.written[block];
      if (fresh) {
        c.fillStyle = p.cursor;
        c.fillRect(at(filled - fresh), y + h - 3, at(filled) - at(filled - fresh), 3);
      }
    } else if (filled) {
      c.fillStyle = p.cached;
      c.fillRect(x, y, w, h);
    }
    c.strokeStyle = p.line;
    c.lineWidth = 1;
    c.strokeRect(x + 0.5, y + 0.5, w - 1, h - 1);
    if (size > 32 || !holders) return;
    c.fillStyle = p.panel;
    for (let slot = 1; slot < size && w / size >= 3; slot++) c.fillRect(at(slot), y + 1, 1, h - 2);
  }
  second(c, p, holders, x, y, w, h) { // the lower right half is another holder's
    c.save();
    c.beginPath();
    c.moveTo(x + w, y);
    c.lineTo(x + w, y + h);
    c.lineTo(x, y + h);
    c.clip();
    swatch(c, p, holders[1][0], x, y, w, h);
    c.restore();
  }

  // -- the table ------------------------------------------------------------------------------------

  table(c, p, state, grid) {
    const { model, blocks, scroller } = this;
    const { row, step } = state;
    const table = model.tableIn(row, step);
    const top = 6 - scroller.scrollTop;
    if (top + this.head(row) < 0) return;
    c.textBaseline = "middle";
    c.font = `11px ${FONT}`;
    c.textAlign = "left";
    if (!table.length) {
      c.fillStyle = p.faint;
      c.fillText(`${shown(model.requests[row].request_id).slice(0, 30)} holds no block in this step`,
        6, top + 24);
      return;
    }
    const [per, most] = [this.entries(), this.shownEntries(state)];
    const corner = (i) => [LABELS + (i % per) * ENTRY, top + Math.floor(i / per) * BAND];
    this.arrows(c, p, row, table.slice(0, most), corner, grid);
    const tokens = model.tokensIn(row, step);
    for (let band = 0; band * per < most; band++) {
      c.fillStyle = p.faint;
      c.font = `11px ${FONT}`;
      c.textAlign = "left";
      c.fillText("logical", 4, top + band * BAND + 9);
      c.fillText("table", 4, top + band * BAND + 39);
    }
    for (let i = 0; i < most; i++) {
      const [x, y] = corner(i);
      const share = Math.max(0, Math.min(1, tokens / blocks.size - i));
      const w = ENTRY - 6;
      c.fillStyle = p.panel;
      c.fillRect(x, y, w, 18);
      swatch(c, p, row, x, y + 14, w * share, 4);
      c.fillStyle = p.panel;
      c.fillRect(x, y + 30, w, 18);
      c.lineWidth = 1;
      c.strokeStyle = p.faint;
      c.strokeRect(x + 0.5, y + 0.5, w - 1, 17);
      c.strokeStyle = table[i] === this.focus ? p.cursor : p.faint;
      c.lineWidth = table[i] === this.focus ? 2 : 1;
      c.strokeRect(x + 0.5, y + 30.5, w - 1, 17);
      c.textAlign = "center";
      c.fillStyle = p.faint;
      c.font = `10.5px ${FONT}`;
      c.fillText(String(i), x + w / 2, y + 7.5);
      c.fillStyle = p.ink;
      c.font = `600 11px ${FONT}`;
      c.fillText(String(table[i]), x + w / 2, y + 39.5);
      arrow(c, p.faint, x + w / 2, y + 19, y + 29);
    }
    if (most < table.length) {
      const [x, y] = corner(most);
      c.textAlign = "left";
      c.fillStyle = p.faint;
      c.font = `11px ${FONT}`;
      c.fillText(`+${table.length - most}`, x + 4, y + 39);
    }
  }
  // From each entry to its physical block. The focused one stands out.
  arrows(c, p, row, table, corner, grid) {
    const bottom = this.scroller.clientHeight;
    table.forEach((block, i) => {
      const place = this.place(block, grid);
      if (!place) return;
      const [x, y] = corner(i);
      const [from, to] = [x + (ENTRY - 6) / 2, place[0] + grid.w / 2];
      const [start, end] = [y + 48, Math.min(place[1], bottom + 30)];
      const chosen = block === this.focus;
      c.strokeStyle = chosen ? p.cursor : p.owner(row);
      c.globalAlpha = chosen ? 1 : this.wide < 40 ? 0.4 : 0.8;
      c.lineWidth = chosen ? 2.6 : 1.3;
      c.beginPath();
      c.moveTo(from, start);
      c.bezierCurveTo(from, start + 16, to, end - 18, to, end);
      c.stroke();
    });
    c.globalAlpha = 1;
  }
}
