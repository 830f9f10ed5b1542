"use strict";
// The trace, unpacked. The form is described in mini_vllm/trace/data.py; this is its from_data, made
// for looking things up by step: flat arrays for what was scheduled, one byte a cell of the timeline.

const KIND = { none: 0, waiting: 1, preempted: 2, prefill: 3, decode: 4, recompute: 5, stalled: 6 };
const KIND_BITS = 15;
const FLAG = { hit: 16, victim: 32, finished: 64, aborted: 128 };

function unpack(data) {
  const { requests, strings, config } = data;
  const R = requests.length;
  const S = data.steps.length;
  const byPriority = config.scheduling_policy === "priority";
  const cells = new Uint8Array(R * S); // request * S + step
  const numbers = new Array(S);
  // What was scheduled in step s: entries first[s] to first[s + 1].
  const first = new Uint32Array(S + 1);
  const entry = { request: [], tokens: [], before: [], hit: [], why: [], sampled: [], finish: [] };
  const running = new Array(S); // lists of requests after step s, shared while they do not change
  const waiting = new Array(S);
  const steps = new Array(S); // the rare things: arrived, aborted, victims, evicted, why ...
  const tables = requests.map(() => ({ from: [], table: [] })); // from step `from` on
  const total = new Uint32Array(S); // tokens of the batch
  const decodes = new Uint32Array(S);
  const inUse = new Uint32Array(S); // blocks, while the step ran
  const cachedAt = []; // every SPACING steps: which blocks hold cached content
  const SPACING = 64;
  const lives = requests.map((r) => ({
    tokens: r.prompt_tokens + r.before[0], computed: r.before[1], most: r.before[1],
    sampled: r.before[0], table: [], preempted: false,
  }));
  const references = new Int32Array(config.num_gpu_blocks);
  const cached = new Uint8Array(config.num_gpu_blocks);
  for (const block of data.cached) cached[block] = 1;
  const arrival = new Int32Array(R).fill(S);
  const mark = new Int32Array(R).fill(-1);
  const inRunning = new Int32Array(R).fill(-1);
  const amount = new Int32Array(R);
  let held = 0;
  let arrivedSoFar = 0;
  let nowRunning = [];
  let nowWaiting = [];
  let number = 0;

  const hold = (r, table, at) => {
    const before = lives[r].table;
    if (table === before) return;
    for (const block of before) if (--references[block] === 0) held--;
    for (const block of table) if (references[block]++ === 0) held++;
    lives[r].table = table;
    tables[r].from.push(at);
    tables[r].table.push(table);
  };
  const pairs = (flat) => {
    const map = new Map();
    if (flat) for (let i = 0; i < flat.length; i += 2) map.set(flat[i], flat[i + 1]);
    return map;
  };
  const rank = (a, b) => {
    const [p, q] = [requests[a], requests[b]];
    return p.priority - q.priority || p.arrival - q.arrival || (p.id < q.id ? -1 : p.id > q.id ? 1 : 0);
  };

  for (let s = 0; s < S; s++) {
    const coded = data.steps[s];
    number = numbers[s] = coded.n ?? number + 1;
    if (s % SPACING === 0) cachedAt.push(cached.slice());
    const gone = coded.x ?? [];
    if (gone.length) {
      for (const r of gone) {
        mark[r] = s;
        hold(r, [], s);
        cells[r * S + s] |= FLAG.aborted;
      }
      nowRunning = nowRunning.filter((r) => mark[r] !== s);
      nowWaiting = nowWaiting.filter((r) => mark[r] !== s);
    }
    const arrived = [];
    for (let i = 0; i < (coded.a ?? 0); i++) {
      arrived.push(arrivedSoFar);
      arrival[arrivedSoFar] = s;
      arrivedSoFar++;
    }
    if (arrived.length) nowWaiting = [...nowWaiting, ...arrived];
    const victims = coded.p ?? [];
    if (victims.length) {
      for (const r of victims) {
        mark[r] = s;
        lives[r].computed = 0;
        lives[r].preempted = true;
        hold(r, [], s);
        cells[r * S + s] |= FLAG.victim;
      }
      nowWaiting = [...nowRunning.filter((r) => mark[r] === s), ...nowWaiting];
      nowRunning = nowRunning.filter((r) => mark[r] !== s);
    }
    for (const r of nowRunning) inRunning[r] = s;
    let order = [];
    if (coded.S) {
      for (let i = 0; i < coded.S.length; i += 2) {
        order.push(coded.S[i]);
        amount[coded.S[i]] = coded.S[i + 1];
      }
    } else {
      for (const r of nowRunning) amount[r] = 1;
      const admitted = [];
      const said = coded.s ?? [];
      for (let i = 0; i < said.length; i += 2) {
        amount[said[i]] = said[i + 1];
        if (inRunning[said[i]] !== s) admitted.push(said[i]);
      }
      order = nowRunning.filter((r) => amount[r]);
      order.push(...admitted);
    }
    const hits = pairs(coded.h);
    const before = pairs(coded.c);
    const sampled = pairs(coded.k);
    const why = pairs(coded.y);
    const table = new Map((coded.t ?? []).map((t) => [t[0], t]));
    const finished = new Map(coded.f ?? []);
    let batch = 0;
    let decoding = 0;
    const admitted = [];
    for (const r of order) {
      const life = lives[r];
      const hit = hits.get(r) ?? 0;
      const at = before.get(r) ?? life.computed + hit;
      const tokens = amount[r];
      const changed = table.get(r);
      if (changed) hold(r, [...life.table.slice(0, changed[1]), ...changed.slice(2)], s);
      const news = sampled.get(r) ?? (at + tokens >= life.tokens ? 1 : 0);
      const isDecode = life.tokens - at === 1 && at >= requests[r].prompt_tokens;
      const kind = at < life.most ? KIND.recompute : isDecode ? KIND.decode : KIND.prefill;
      const usual = kind === KIND.decode ? 0 : kind === KIND.prefill ? 1 : 2;
      entry.request.push(r);
      entry.tokens.push(tokens);
      entry.before.push(at);
      entry.hit.push(hit);
      entry.why.push(why.get(r) ?? usual);
      entry.sampled.push(news ? requests[r].output_ids[life.sampled] : -1);
      entry.finish.push(finished.get(r) ?? "");
      cells[r * S + s] |= kind | (hit ? FLAG.hit : 0) | (finished.has(r) ? FLAG.finished : 0);
      batch += tokens;
      if (kind === KIND.decode) decoding += tokens;
      life.computed = at + tokens;
      life.most = Math.max(life.most, life.computed);
      life.tokens += news;
      life.sampled += news;
      life.preempted = false;
      if (inRunning[r] !== s) { admitted.push(r); mark[r] = s; }
    }
    first[s + 1] = entry.request.length;
    total[s] = batch;
    decodes[s] = decoding;
    inUse[s] = held;
    for (const block of coded.e ?? []) cached[block] = 0;
    for (const block of coded.b ?? []) cached[block] = 1;
    if (admitted.length) {
      nowRunning = [...nowRunning, ...admitted];
      nowWaiting = nowWaiting.filter((r) => mark[r] !== s);
    }
    if (byPriority && (arrived.length || victims.length)) nowWaiting = [...nowWaiting].sort(rank);
    if (finished.size) nowRunning = nowRunning.filter((r) => !finished.has(r));
    running[s] = nowRunning = coded.r ?? nowRunning;
    waiting[s] = nowWaiting = coded.w ?? nowWaiting;
    for (const r of nowWaiting) cells[r * S + s] |= lives[r].preempted ? KIND.preempted : KIND.waiting;
    for (const r of nowRunning) if (!(cells[r * S + s] & KIND_BITS)) cells[r * S + s] |= KIND.stalled;
    for (const r of finished.keys()) hold(r, [], s + 1);
    steps[s] = {
      arrived, victims, aborted: gone, evicted: coded.e ?? [], published: coded.b ?? [],
      whyWaiting: coded.v === undefined ? "" : strings[coded.v], why: pairs(coded.z),
      ns: data.ns.length ? data.ns.map((column) => column[s]) : null,
    };
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
  const entryOf = (r, s) => {
    for (let i = first[s]; i < first[s + 1]; i++) if (entry.request[i] === r) return i;
    return -1;
  };
  const waits = (r, s) => {
    const head = waiting[s][0];
    return r === head ? steps[s].whyWaiting : `behind ${requests[head].id}, the head of the queue`;
  };
  const reason = (r, s) => {
    const i = entryOf(r, s);
    if (i >= 0) return strings[entry.why[i]];
    const step = steps[s];
    if (step.why.has(r)) return strings[step.why.get(r)];
    return waiting[s].includes(r) ? waits(r, s) : "";
  };
  return {
    data, requests, strings, config, R, S, cells, numbers, first, entry, running, waiting, steps,
    arrival, total, decodes, inUse, cachedIn, tableIn, entryOf, reason, waits, ended: new Set(data.ended),
  };
}
