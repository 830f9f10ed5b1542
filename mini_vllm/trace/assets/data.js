"use strict";
// The trace, laid out for looking things up by step. What it says stands in mini_vllm/trace/types.py;
// nothing is worked out here but sums, and who holds which block when.

const KIND = { none: 0, waiting: 1, preempted: 2, prefill: 3, decode: 4, recompute: 5, stalled: 6 };
const KIND_BITS = 15;
const FLAG = { hit: 16, victim: 32, finished: 64, aborted: 128, accepted: 256, rejected: 512 };
async function unzipped(text) { // gzip in base64, as JSON
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

const rejectedOf = (part) => part.draft_token_ids.length - part.num_accepted_tokens;

// What of `now` is not at the same place in `before`: a table only grows while its request runs.
function added(before, now) {
  let same = 0;
  while (same < before.length && same < now.length && before[same] === now[same]) same++;
  return now.slice(same);
}

function arranged(data) {
  const { requests, config, steps } = data;
  const [R, S] = [requests.length, steps.length];
  const cells = new Uint16Array(R * S); // request * S + step: what stands in a cell of the timeline
  // What was scheduled in step s: entries first[s] to first[s + 1]; the request's row, and its part.
  const first = new Uint32Array(S + 1);
  const entry = { row: [], part: [] };
  const rows = new Array(S); // running, waiting, arrived, victims, aborted: as rows
  // Of each request, from step `from` on: its table, and its tokens in the cache when a step is over.
  const tables = requests.map(() => ({ from: [], table: [], tokens: [] }));
  const sampledIn = requests.map(() => []); // the step of each token that it sampled
  const taken = new Array(S); // blocks that came into a table in the step
  const arrival = new Int32Array(R).fill(S);
  const total = new Uint32Array(S); // tokens of the batch
  const decodes = new Uint32Array(S);
  const drafts = new Array(S); // how many of the batch's drafts were accepted, how many rejected
  const wasPreempted = new Uint8Array(R);
  const used = new Set(data.cached_at_start);
  const rowOf = new Map(); // an id can be used again: its latest row
  const row = (id) => rowOf.get(id);
  let next = 0;
  const hold = (r, table, tokens, s) => {
    const own = tables[r];
    const before = own.table.length ? own.table[own.table.length - 1] : [];
    const fresh = added(before, table);
    own.from.push(s);
    own.table.push(fresh.length || table.length !== before.length ? table : before);
    own.tokens.push(tokens);
    return fresh;
  };

  for (let s = 0; s < S; s++) {
    const step = steps[s];
    taken[s] = [];
    drafts[s] = { accepted: 0, rejected: 0 };
    const aborted = step.aborted.map(row);
    for (const r of aborted) {
      hold(r, [], 0, s);
      cells[r * S + s] |= FLAG.aborted;
    }
    const arrived = step.arrived.map((id) => {
      rowOf.set(id, next);
      arrival[next] = s;
      const { blocks_before: there, computed_before: tokens } = requests[next];
      if (there.length) taken[s].push(...hold(next, there, tokens, s));
      return next++;
    });
    const victims = step.preempted.map(row);
    for (const r of victims) {
      hold(r, [], 0, s);
      wasPreempted[r] = 1;
      cells[r * S + s] |= FLAG.victim;
    }
    for (const part of step.scheduled) {
      const r = row(part.request_id);
      entry.row.push(r);
      entry.part.push(part);
      const tokens = part.num_computed_tokens + part.num_scheduled_tokens;
      taken[s].push(...hold(r, part.block_ids, tokens, s));
      if (part.finish_reason !== null) hold(r, [], 0, s + 1);
      for (let i = 0; i < part.new_token_ids.length; i++) sampledIn[r].push(s);
      const rejected = rejectedOf(part);
      if (rejected && part.finish_reason === null) hold(r, part.block_ids, tokens - rejected, s + 1);
      drafts[s].accepted += part.num_accepted_tokens;
      drafts[s].rejected += rejected;
      cells[r * S + s] |= KIND[part.kind] | (part.num_cached_tokens ? FLAG.hit : 0) |
        (part.num_accepted_tokens ? FLAG.accepted : 0) | (rejected ? FLAG.rejected : 0) |
        (part.finish_reason === null ? 0 : FLAG.finished);
      total[s] += part.num_scheduled_tokens;
      if (part.kind === "decode") decodes[s] += part.num_scheduled_tokens;
      wasPreempted[r] = 0;
    }
    first[s + 1] = entry.row.length;
    for (const block of taken[s]) used.add(block);
    const running = step.running.map(row);
    const waiting = step.waiting.map(row);
    for (const r of waiting) cells[r * S + s] |= wasPreempted[r] ? KIND.preempted : KIND.waiting;
    for (const r of running) if (!(cells[r * S + s] & KIND_BITS)) cells[r * S + s] |= KIND.stalled;
    rows[s] = { running, waiting, arrived, victims, aborted };
  }

  const past = (sorted, s) => { // how many of them are not after s
    let [low, high] = [0, sorted.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (sorted[middle] <= s) low = middle + 1;
      else high = middle;
    }
    return low;
  };
  const tableIn = (r, s) => { // while step s ran
    const at = past(tables[r].from, s);
    return at ? tables[r].table[at - 1] : [];
  };
  const tokensIn = (r, s) => { // of the request in the cache, those that step s computes included
    const at = past(tables[r].from, s);
    return at ? tables[r].tokens[at - 1] : 0;
  };
  const longest = (r) => tables[r].table.reduce((most, table) => Math.max(most, table.length), 0);
  const textIn = (r, s) => { // up to step s: before it, and what it adds; null where nobody knows
    const { texts, outputs_before: before } = requests[r];
    if (!texts) return null;
    const [then, now] = [past(sampledIn[r], s - 1), past(sampledIn[r], s)].map((n) => n + before);
    return [texts.slice(0, then).join(""), texts.slice(then, now).join(""), now];
  };
  const partOf = (r, s) => {
    for (let i = first[s]; i < first[s + 1]; i++) if (entry.row[i] === r) return entry.part[i];
    return null;
  };
  const ownReason = (r, s) => {
    const id = requests[r].request_id;
    return Object.hasOwn(steps[s].why, id) ? steps[s].why[id] : null;
  };
  const waits = (r, s) => { // a victim's own reason is why it was preempted
    if (steps[s].skipped.includes(requests[r].request_id)) return ownReason(r, s);
    return r === rows[s].waiting[0] ? steps[s].why_waiting : steps[s].why_behind;
  };
  const reason = (r, s) => // of a request that got no tokens
    ownReason(r, s) ?? (rows[s].waiting.includes(r) ? waits(r, s) : "");
  const timed = steps.some((s) => s.schedule_time + s.execute_time + s.update_time > 0);
  return {
    data, requests, config, steps, R, S, cells, first, entry, rows, arrival, total, decodes, drafts, timed,
    numbers: steps.map((step) => step.index), taken, used, longest, tableIn, tokensIn, textIn, partOf, reason,
    waits,
  };
}
