"use strict";
// The blocks in one step, while it runs: who holds them, how full they are, their hashes, and the
// free queue. The trace has the changes of each step; they are played from the nearest picture.

class Blocks {
  constructor(model) {
    this.model = model;
    const { data, config, steps } = model;
    this.count = config.num_gpu_blocks;
    this.size = config.block_size;
    this.knowsQueue = data.free_at_start !== null;
    this.knowsHashes = Boolean(data.hashes_at_start.length) || steps.some((step) => step.hashes.length);
    this.names = [null, ""]; // a block's hash by its number: 0 has none, of 1 nobody knows it
    this.numbers = new Map();
    // Steps between two pictures: more where the pool is huge, for each picture is as large as that.
    this.spacing = Math.max(64, Math.ceil((steps.length * this.count) / 2 ** 23));
    this.pictures = [];
    const state = { hash: new Int32Array(this.count), order: new Float64Array(this.count), last: 0 };
    this.publish(state, data.cached_at_start, data.hashes_at_start);
    for (const [first, end] of data.free_at_start ?? []) {
      for (let block = first; block <= end; block++) state.order[block] = ++state.last;
    }
    for (let s = 0; s < steps.length; s++) {
      if (s % this.spacing === 0) this.pictures.push(this.copy(state));
      this.play(state, s);
    }
    this.step = -1;
  }
  copy({ hash, order, last }) {
    return { hash: hash.slice(), order: order.slice(), last };
  }
  publish(state, blocks, hashes) {
    for (let i = 0; i < blocks.length; i++) {
      const name = hashes[i] ?? "";
      if (name && !this.numbers.has(name)) {
        this.numbers.set(name, this.names.length);
        this.names.push(name);
      }
      state.hash[blocks[i]] = name ? this.numbers.get(name) : 1;
    }
  }
  // One step. A block's place in the queue is the order in which it came there: 0 means that it is
  // not in it.
  play(state, s) {
    const { steps, taken } = this.model;
    for (const block of steps[s].evicted) state.hash[block] = 0;
    this.publish(state, steps[s].published, steps[s].hashes);
    for (const block of taken[s]) state.order[block] = 0;
    for (const block of steps[s].freed) state.order[block] = ++state.last;
  }
  look(s) {
    if (s === this.step) return;
    this.step = s;
    const { model } = this;
    const from = Math.floor(s / this.spacing);
    const state = this.copy(this.pictures[from]);
    for (let at = from * this.spacing; at <= s; at++) this.play(state, at);
    this.hash = state.hash;
    this.holders = new Array(this.count); // of each block: request and place in its table
    this.refs = new Uint16Array(this.count);
    this.filled = new Uint16Array(this.count);
    this.written = new Uint16Array(this.count); // of the filled slots, those of this very step
    const fresh = new Map(); // tokens that the step computes, by request
    for (let i = model.first[s]; i < model.first[s + 1]; i++) {
      fresh.set(model.entry.row[i], model.entry.part[i].num_scheduled_tokens);
    }
    for (let r = 0; r < model.R; r++) {
      const table = model.tableIn(r, s);
      if (!table.length) continue;
      const tokens = model.tokensIn(r, s);
      const before = tokens - (fresh.get(r) ?? 0);
      for (let i = 0; i < table.length; i++) {
        const block = table[i];
        (this.holders[block] ??= []).push([r, i]);
        this.refs[block]++;
        const slots = Math.max(0, Math.min(this.size, tokens - i * this.size));
        if (slots > this.filled[block]) this.filled[block] = slots;
        const old = Math.max(0, Math.min(this.size, before - i * this.size));
        if (slots > old) this.written[block] = slots - old;
      }
    }
    this.line(state);
    this.evicted = new Set(model.steps[s].evicted);
    this.published = new Set(model.steps[s].published);
  }
  // The free queue while the step runs: those who finish in it still hold their blocks.
  line({ order }) {
    const SHIFT = 2 ** 25; // above any block's number: one number sorts by order and tells the block
    const both = new Float64Array(this.count);
    let n = 0;
    for (let block = 1; block < this.count; block++) {
      if (order[block] && !this.refs[block]) both[n++] = order[block] * SHIFT + block;
    }
    this.queue = Int32Array.from(both.subarray(0, n).sort(), (each) => each % SHIFT);
    this.place = new Int32Array(this.count);
    for (let i = 0; i < this.queue.length; i++) this.place[this.queue[i]] = i + 1;
  }
  cached(block) {
    return this.hash[block] !== 0;
  }
  // Its hash as far as it is known: null without one, "" where nobody knows.
  hashOf(block) {
    return this.names[this.hash[block]];
  }
  // A free block that is cached is full: only full blocks are published.
  slots(block) {
    return this.holders[block] ? this.filled[block] : this.cached(block) ? this.size : 0;
  }
  describe(block) {
    if (block === 0) return "Block 0: the null block, never given out";
    const holders = this.holders[block] ?? [];
    const cached = this.cached(block);
    const who = holders.map(([r, i]) => `${shown(this.model.requests[r].request_id)} (its block ${i})`);
    const parts = [];
    if (who.length > 1) parts.push(`shared by ${who.length}: ${who.join(", ")}`);
    else if (who.length) parts.push(`held by ${who[0]}`);
    else parts.push(cached ? "free, its content cached" : "free, empty");
    parts.push(`ref count ${holders.length}`);
    if (who.length) {
      const fresh = this.written[block] ? `, ${this.written[block]} of them in this step` : "";
      parts.push(`${this.filled[block]} of ${this.size} slots filled${fresh}`);
    }
    const hash = this.hashOf(block);
    if (hash) parts.push(`hash ${hash}`);
    else if (hash === "") parts.push("full, to be found by its hash");
    else if (who.length && this.knowsHashes) parts.push("no hash yet");
    if (this.place[block]) {
      parts.push(`number ${this.place[block]} of ${this.queue.length} in the free queue`);
    }
    if (this.evicted.has(block)) parts.push("what it held was evicted in this step");
    if (this.published.has(block)) parts.push("published in this step");
    return `Block ${block}: ${parts.join("; ")}`;
  }
}
