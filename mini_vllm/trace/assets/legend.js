"use strict";
// Legends, of what occurs in this run and of nothing else.

const swatchOf = (name) => element("span", { class: `key ${name}`, "aria-hidden": "true" });

function legend(label, entries) {
  return element("ul", { class: "legend", "aria-label": label },
    ...entries.filter(([occurs]) => occurs).map(([, mark, text]) => element("li", {}, mark, text)));
}

function timelineLegend(model) {
  const kinds = new Set();
  let flags = 0;
  for (const cell of model.cells) {
    kinds.add(cell & KIND_BITS);
    flags |= cell;
  }
  const cross = element("b", { class: "cross", "aria-hidden": "true" }, "\u2715");
  return legend("Legend of the timeline", [
    [kinds.has(KIND.prefill), swatchOf("prefill"), "prefill (tokens)"],
    [kinds.has(KIND.decode), swatchOf("decode"),
      flags & (FLAG.accepted | FLAG.rejected) ? "decode (1 token and drafts)" : "decode (1 token)"],
    [kinds.has(KIND.recompute), swatchOf("recompute"), "computed again"],
    [kinds.has(KIND.waiting), swatchOf("wait"), "waiting"],
    [flags & FLAG.victim, cross, "preempted"],
    [kinds.has(KIND.preempted), swatchOf("victim"), "waiting after it"],
    [kinds.has(KIND.stalled), swatchOf("stalled"), "running, without tokens"],
    [flags & FLAG.accepted, swatchOf("accepted"), "draft token accepted"],
    [flags & FLAG.rejected, swatchOf("rejected"), "draft token rejected"],
    [flags & FLAG.hit, swatchOf("hit"), "prefix hit"],
    [flags & FLAG.finished, swatchOf("end"), "finished"],
    [flags & FLAG.aborted, swatchOf("abort"), "ended from outside"],
    [true, "", "bars: tokens of the batch, decodes below; line: blocks in use"],
  ]);
}

function poolLegend(model, blocks, detailed) {
  const { steps, data } = model;
  const published = steps.some((step) => step.published.length) || data.cached_at_start.length;
  const hash = !blocks.knowsHashes ? "full, found by its hash"
    : detailed ? "#: the hash it is found by" : "full, has a hash";
  return legend("Legend of the blocks", [
    [true, swatchOf("owned"), "held: its owner's colour"],
    [detailed, swatchOf("fresh"), "filled in this step"],
    [steps.some((step) => step.shared_blocks), swatchOf("shared"), "shared"],
    [published, detailed ? "" : swatchOf("hashed"), hash],
    [data.cached_at_start.length || steps.some((step) => step.cached_blocks), swatchOf("cached"),
      "free, content cached"],
    [steps.some((step) => step.free_blocks), swatchOf("free"), "free"],
    [steps.some((step) => step.evicted.length), swatchOf("evicted"), "evicted in this step"],
    [detailed, "", "ref: tables that hold it"],
    [detailed && blocks.knowsQueue, "", "queue: its place in the free queue"],
  ]);
}
