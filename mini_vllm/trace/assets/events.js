"use strict";
// What one jumps to: requests that come, go, are preempted, or find tokens in the prefix cache.

const EVENTS = [ // the weightiest first: of several in a step, the first is selected
  ["preempted", "preemption"], ["hit", "prefix-cache hit"], ["finished", "finish"],
  ["aborted", "end from outside"], ["arrived", "arrival"],
];

function eventsOf(model) { // a list a step
  const found = [];
  for (let s = 0; s < model.S; s++) {
    const { victims, aborted, arrived } = model.rows[s];
    const of = { preempted: [], hit: [], finished: [], aborted: [], arrived: [] };
    for (const r of victims) of.preempted.push({ kind: "preempted", r, words: "is preempted" });
    for (let i = model.first[s]; i < model.first[s + 1]; i++) {
      const [r, part] = [model.entry.row[i], model.entry.part[i]];
      const { num_cached_tokens: hit, finish_reason: end } = part;
      if (hit) of.hit.push({ kind: "hit", r, words: `finds ${plural(hit, "token")} in the prefix cache` });
      if (end !== null) of.finished.push({ kind: "finished", r, words: `finishes (${shown(end)})` });
    }
    for (const r of aborted) of.aborted.push({ kind: "aborted", r, words: "is ended from outside" });
    for (const r of arrived) of.arrived.push({ kind: "arrived", r, words: "arrives" });
    found.push(EVENTS.flatMap(([kind]) => of[kind]));
  }
  return found;
}

// The list to choose from: only what happens in this run, and how often.
function eventChoice(events) {
  const all = events.flat();
  const options = EVENTS.map(([kind, noun]) => [kind, noun, all.filter((e) => e.kind === kind).length]);
  return element("select", { "aria-label": "Which events to jump to" },
    element("option", { value: "" }, `any event (${all.length})`),
    ...options.filter(([, , n]) => n).map(([kind, noun, n]) =>
      element("option", { value: kind }, `${noun} (${n})`)));
}

// The step before or after this one with such an event, and the event; null if there is none.
function nextEvent(events, from, by, kind) {
  for (let s = from + by; s >= 0 && s < events.length; s += by) {
    const event = events[s].find((e) => !kind || e.kind === kind);
    if (event) return { s, event };
  }
  return null;
}
