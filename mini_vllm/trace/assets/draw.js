"use strict";
// What both canvases draw with: colours, patterns, text that cannot do anything.

// Told apart by people with any kind of colour vision; the label and the pattern say it again.
const OWNERS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a6fc0", "#b5a900"];
const FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif";
const MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace";

function inkOn(colour) {
  const [r, g, b] = [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
  return 0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#000" : "#fff";
}

// Control and direction characters would otherwise do things to the page's text.
function shown(text) {
  return text.replace(/[\u0000-\u001f\u007f-\u009f\u200e\u200f\u2028-\u202e\u2066-\u2069]/g, (c) =>
    c === "\n" ? "\u21b5" : `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

// A small picture to fill with: "/" stripes, "x" both ways, "." dots, "|" upright stripes.
function hatch(kind, ink, ground, ratio) {
  const size = 6 * ratio;
  const tile = document.createElement("canvas");
  tile.width = tile.height = size;
  const c = tile.getContext("2d");
  if (ground) {
    c.fillStyle = ground;
    c.fillRect(0, 0, size, size);
  }
  c.strokeStyle = c.fillStyle = ink;
  c.lineWidth = 1.4 * ratio;
  c.beginPath();
  if (kind === "/" || kind === "x") {
    for (const d of [-size, 0, size]) { c.moveTo(d, size); c.lineTo(d + size, 0); }
  }
  if (kind === "x" || kind === "\\") {
    for (const d of [-size, 0, size]) { c.moveTo(d, 0); c.lineTo(d + size, size); }
  }
  if (kind === "|") { c.moveTo(size / 2, 0); c.lineTo(size / 2, size); }
  c.stroke();
  if (kind === ".") c.fillRect(size / 3, size / 3, size / 3, size / 3);
  const pattern = c.createPattern(tile, "repeat");
  pattern.setTransform(new DOMMatrix([1 / ratio, 0, 0, 1 / ratio, 0, 0]));
  return pattern;
}

function readPalette() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  const ratio = Math.min(3, Math.max(1, window.devicePixelRatio || 1));
  const p = { ratio };
  for (const name of ["ground", "panel", "ink", "faint", "line", "cursor", "prefill", "decode",
    "wait", "hit", "alarm"]) p[name] = colour(name);
  p.fill = [];
  p.fill[KIND.waiting] = hatch("/", p.wait, null, ratio);
  p.fill[KIND.preempted] = hatch("x", p.alarm, null, ratio);
  p.fill[KIND.stalled] = hatch(".", p.ink, null, ratio);
  p.stripes = hatch("|", p.panel, null, ratio);
  p.cached = hatch(".", p.faint, null, ratio);
  // The ninth owner has the first one's colour, and stripes.
  p.owner = (r) => OWNERS[r % OWNERS.length];
  p.over = [null, ...["/", "\\", "|"].map((kind) => hatch(kind, "#0006", null, ratio))];
  return p;
}

function prepare(canvas, width, height, palette) {
  const { ratio } = palette;
  const [w, h] = [Math.max(1, Math.round(width * ratio)), Math.max(1, Math.round(height * ratio))];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const c = canvas.getContext("2d");
  c.setTransform(ratio, 0, 0, ratio, 0, 0);
  c.clearRect(0, 0, width, height);
  return c;
}

function swatch(c, p, r, x, y, w, h) {
  c.fillStyle = p.owner(r);
  c.fillRect(x, y, w, h);
  const over = p.over[Math.floor(r / OWNERS.length) % p.over.length];
  if (over) {
    c.fillStyle = over;
    c.fillRect(x, y, w, h);
  }
}

function arrow(c, colour, x, from, to) { // straight down
  c.strokeStyle = c.fillStyle = colour;
  c.lineWidth = 1;
  c.beginPath();
  c.moveTo(x, from);
  c.lineTo(x, to);
  c.stroke();
  c.beginPath();
  c.moveTo(x - 3, to - 4);
  c.lineTo(x + 3, to - 4);
  c.lineTo(x, to);
  c.fill();
}
