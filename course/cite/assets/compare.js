"use strict";
// Block N of the left pane stands beside block N of the right one. Whatever changes the height of one
// is followed by `level`, so that both panes are equally long and one scroll position serves both.

const $ = (css, of = document) => of.querySelector(css);
const $$ = (css, of = document) => [...of.querySelectorAll(css)];
const sheets = $$(".sheet");
let sheet, panes, pairs, marked, current = -1, hits = [], hit = -1;

function level() {
  const top = panes[0].scrollTop;
  const [left, right] = panes.map((pane) => [...pane.children]);
  for (const block of [...left, ...right]) block.style.minHeight = "";
  const heights = left.map((block, n) => Math.ceil(Math.max(block.getBoundingClientRect().height,
    right[n].getBoundingClientRect().height)));
  heights.forEach((height, n) => {
    left[n].style.minHeight = right[n].style.minHeight = `${height}px`;
  });
  scrollBoth(top);
}

function scrollBoth(top) {
  for (const pane of panes) pane.scrollTop = top;
}

function show(path) {
  sheet = sheets.find((each) => each.dataset.path === path) ?? sheets[0];
  for (const each of sheets) each.hidden = each !== sheet;
  panes = $$(".pane", sheet);
  marked = new Map();
  for (const line of $$("[data-pair]", sheet))
    for (const mark of line.dataset.pair.split(" "))
      marked.set(mark, [...(marked.get(mark) ?? []), line]);
  pairs = $$("[data-go]", sheet);
  current = -1;
  hits = [];
  $("#file").value = sheet.dataset.path;
  $("#where").textContent = `${pairs.length} pairs`;
  $("#hits").textContent = "";
  level();
  scrollBoth(0);
  const put = new Map(); // a pane that was put somewhere hears of it later, when the other may be further on
  for (const pane of panes) {
    pane.onscroll = () => {
      const echo = put.get(pane) === pane.scrollTop;
      put.delete(pane);
      const other = panes.find((each) => each !== pane);
      if (echo || other.scrollTop === pane.scrollTop) return;
      other.scrollTop = pane.scrollTop;
      put.set(other, other.scrollTop);
    };
  }
}

function unfold(button, open) {
  button.setAttribute("aria-expanded", open);
  button.nextElementSibling.hidden = !open;
}

function topOf(line) {
  const pane = line.closest(".pane");
  return line.getBoundingClientRect().top - pane.getBoundingClientRect().top + pane.scrollTop;
}

function reveal(line) {
  const folded = line.closest(".more");
  if (folded?.hidden) {
    unfold(folded.previousElementSibling, true);
    level();
  }
  const pane = line.closest(".pane");
  scrollBoth(topOf(line) - pane.clientHeight / 4);
}

// The first line of a pair, on the side where it is lower: there both of its lines are in sight.
function anchorOf(n) {
  const lines = marked.get(pairs[n].dataset.go);
  const right = lines.find((line) => line.closest(".theirs"));
  return right ?? lines[0];
}

function go(n) {
  if (!pairs.length) return;
  current = Math.max(0, Math.min(pairs.length - 1, n));
  for (const each of $$(".now", sheet)) each.classList.remove("now");
  const button = pairs[current];
  button.classList.add("now");
  button.scrollIntoView({ block: "nearest" });
  for (const line of marked.get(button.dataset.go)) line.classList.add("now");
  reveal(anchorOf(current));
  light(button.dataset.go);
  $("#where").textContent = `${current + 1} of ${pairs.length}: ${button.textContent} (${button.title})`;
}

// From the current pair; after scrolling away from it, from what is in sight.
function step(by) {
  const pane = panes[0], seen = (n) => {
    const top = topOf(anchorOf(n)) - pane.scrollTop;
    return top >= 0 && top < pane.clientHeight;
  };
  if (current >= 0 && seen(current)) return go(current + by);
  const next = pairs.findIndex((_, n) => topOf(anchorOf(n)) >= pane.scrollTop);
  go(by > 0 ? (next < 0 ? pairs.length - 1 : next) : next - 1);
}

function light(marks) {
  for (const line of $$(".lit", sheet)) line.classList.remove("lit");
  for (const mark of (marks ?? "").split(" "))
    for (const line of marked.get(mark) ?? []) line.classList.add("lit");
}

function search(text) {
  for (const line of $$(".hit", sheet)) line.classList.remove("hit");
  const wanted = text.toLowerCase();
  const [left, right] = panes.map((pane) => [...pane.children]);
  const lines = left.flatMap((block, n) => [...$$("div", block), ...$$("div", right[n])]);
  hits = wanted === "" ? [] : lines.filter((line) => line.lastElementChild?.localName === "code" &&
    `${line.lastElementChild.textContent} ${line.dataset.what ?? ""}`.toLowerCase().includes(wanted));
  hit = -1;
  $("#hits").textContent = wanted === "" ? "" : `${hits.length} lines`;
}

function nextHit(by) {
  if (!hits.length) return;
  hits[hit]?.classList.remove("hit");
  hit = (hit + by + hits.length) % hits.length;
  hits[hit].classList.add("hit");
  reveal(hits[hit]);
  $("#hits").textContent = `${hit + 1} of ${hits.length} lines`;
}

function unfoldAll() {
  const open = $("#all").getAttribute("aria-pressed") !== "true";
  $("#all").setAttribute("aria-pressed", open);
  $("#all").textContent = open ? "Fold all" : "Unfold all";
  const kept = $$(".block > div", panes[0]).find((line) =>
    topOf(line) >= panes[0].scrollTop + panes[0].clientHeight / 4);
  const before = kept && topOf(kept) - panes[0].scrollTop;
  for (const button of $$(".fold", sheet)) unfold(button, open);
  level();
  if (kept) scrollBoth(topOf(kept) - before);
}

function toggleList() {
  const hidden = document.body.classList.toggle("no-list");
  $("#list").setAttribute("aria-expanded", !hidden);
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (button?.classList.contains("fold")) {
    unfold(button, button.getAttribute("aria-expanded") !== "true");
    level();
  } else if (button?.dataset.go) go(pairs.indexOf(button));
});
document.addEventListener("mouseover", (event) => {
  light(event.target.closest("[data-pair]")?.dataset.pair ?? event.target.dataset?.go);
});
$("#file").addEventListener("change", (event) => { location.hash = event.target.value; });
$("#all").addEventListener("click", unfoldAll);
$("#list").addEventListener("click", toggleList);
$("#find").addEventListener("input", (event) => search(event.target.value));
$("#find").addEventListener("keydown", (event) => {
  if (event.key === "Enter") nextHit(event.shiftKey ? -1 : 1);
  if (event.key === "Escape") { event.target.value = ""; search(""); event.target.blur(); }
});
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.matches("input, select")) return;
  const keys = {
    j: () => step(1), k: () => step(-1), e: unfoldAll, l: toggleList,
    n: () => nextHit(1), N: () => nextHit(-1), "/": () => $("#find").focus(),
  };
  if (!keys[event.key]) return;
  event.preventDefault();
  keys[event.key]();
});
addEventListener("hashchange", () => show(decodeURIComponent(location.hash.slice(1))));
addEventListener("resize", level);
$("#file").closest("label").hidden = sheets.length < 2;
show(decodeURIComponent(location.hash.slice(1)));
document.body.dataset.ready = "yes";
