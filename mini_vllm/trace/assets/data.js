"use strict";
// The trace, laid out for looking things up by step. What it says stands in mini_vllm/trace/types.py;
// nothing is worked out here but sums, and who holds which block when.

const KIND = { none: 0, waiting: 1, preempted: 2, prefill: 3, decode: 4, recompute: 5, stalled: 6 };
const KIND_BITS = 15;
const FLAG = { hit: 16, victim: 32, finished: 64, aborted: 128 };
const SPACING = 64; // steps between two pictures of what the prefix cache holds

async function unzipped(text) { // gzip in base64, as JSON
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

function arranged(data) {
  const { requests, config, steps } = data;
  const [R, S] = [requests.length, steps.length];
  const cells = new Uint8Array(R * S); // request * S + step: a byte a cell of the timeline
  // What was scheduled in step s: entries first[s] to first[s + 1]; the request's row, and its part.
  const first = new Uint32Array(S + 1);
  const entry = { row: [], part: [] };
  const rows = new Array(S); // running, waiting, arrived, victims, aborted: as rows
  const tables = requests.map(() => ({ from: [], table: [] })); // from step `from` on
  const arrival = new Int32Array(R).fill(S);
  const total = new Uint32Array(S); // tokens of the batch
  const decodes = new Uint32Array(S);
  const wasPreempted = new Uint8Array(R);
  const cachedAt = [];
  const cached = new Uint8Array(config.num_gpu_blocks);
  for (const block of data.cached_at_start) cached[block] = 1;
  const rowOf = new Map(); // an id can be used again: its latest row
  const row = (id) => rowOf.get(id);
  let next = 0;
  const hold = (r, table, s) => {
    tables[r].from.push(s);
    tables[r].table.push(table);
  };

  for (let s = 0; s < S; s++) {
    const step = steps[s];
    if (s % SPACING === 0) cachedAt.push(cached.slice());
    const aborted = step.aborted.map(row);
    for (const r of aborted) {
      hold(r, [], s);
      cells[r * S + s] |= FLAG.aborted;
    }
    const arrived = step.arrived.map((id) => {
      rowOf.set(id, next);
      arrival[next] = s;
      return next++;
    });
    const victims = step.preempted.map(row);
    for (const r of victims) {
      hold(r, [], s);
      wasPreempted[r] = 1;
      cells[r * S + s] |= FLAG.victim;
    }
    for (const part of step.scheduled) {
      const r = row(part.request_id);
      entry.row.push(r);
      entry.part.push(part);
      hold(r, part.block_ids, s);
      if (part.finish_reason !== null) hold(r, [], s + 1);
      cells[r * S + s] |= KIND[part.kind] | (part.num_cached_tokens ? FLAG.hit : 0) |
        (part.finish_reason === null ? 0 : FLAG.finished);
      total[s] += part.num_scheduled_tokens;
      if (part.kind === "decode") decodes[s] += part.num_scheduled_tokens;
      wasPreempted[r] = 0;
    }
    first[s + 1] = entry.row.length;
    for (const block of step.evicted) cached[block] = 0;
    for (const block of step.published) cached[block] = 1;
    const running = step.running.map(row);
    const waiting = step.waiting.map(row);
    for (const r of waiting) cells[r * S + s] |= wasPreempted[r] ? KIND.preempted : KIND.waiting;
    for (const r of running) if (!(cells[r * S + s] & KIND_BITS)) cells[r * S + s] |= KIND.stalled;
    rows[s] = { running, waiting, arrived, victims, aborted };
  }

  const cachedIn = (s) => { // while step s ran, what it published included
    const from = Math.floor(s / SPACING);
    const state = cachedAt[from].slice();
    for (let at = from * SPACING; at <= s; at++) {
      for (const block of steps[at].evicted) state[block] = 0;
      for (const block of steps[at].published) state[block] = 1;
    }
    return state;
  };
  const tableIn = (r, s) => { // while step s ran
    const { from, table } = tables[r];
    let [low, high] = [0, from.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (from[middle] <= s) low = middle + 1;
      else high = middle;
    }
    return low ? table[low - 1] : [];
  };
  const partOf = (r, s) => {
    for (let i = first[s]; i < first[s + 1]; i++) if (entry.row[i] === r) return entry.part[i];
    return null;
  };
  const waits = (r, s) => (r === rows[s].waiting[0] ? steps[s].why_waiting : steps[s].why_behind);
  const reason = (r, s) => { // of a request that got no tokens
    const id = requests[r].request_id;
    if (Object.hasOwn(steps[s].why, id)) return steps[s].why[id];
    return rows[s].waiting.includes(r) ? waits(r, s) : "";
  };
  const timed = steps.some((s) => s.schedule_time + s.execute_time + s.update_time > 0);
  return {
    data, requests, config, steps, R, S, cells, first, entry, rows, arrival, total, decodes, timed,
    numbers: steps.map((step) => step.index), cachedIn, tableIn, partOf, reason, waits,
  };
}
