"use strict";
// Two runs, each a page of its own in a frame. Whatever step one is led to, the other goes to as well; each
// frame is as high as what stands in it. What a page around this one says of colours goes on to both.

const frames = [...document.querySelectorAll("iframe")];
const framed = window.parent !== window;
const heights = new Map();

function tell(frame, message) {
  frame.contentWindow?.postMessage(message, "*");
}

function theme(name) {
  document.documentElement.dataset.theme = name;
  for (const frame of frames) tell(frame, { theme: name });
}

function tellHeight() {
  const height = Math.ceil(document.body.getBoundingClientRect().height);
  const width = document.documentElement.clientWidth;
  window.parent.postMessage({ viewerHeight: height, viewerWidth: width }, "*");
}

window.addEventListener("message", (event) => {
  const { viewerHeight: height, viewerWidth: width, viewerStep: step, theme: name } = event.data ?? {};
  if (framed && event.source === window.parent) {
    if (["light", "dark"].includes(name)) theme(name);
    return tellHeight();
  }
  const frame = frames.find((each) => each.contentWindow === event.source);
  if (!frame) return;
  if (Number.isInteger(step)) {
    for (const other of frames) if (other !== frame) tell(other, { step });
  }
  if (!(height > 0 && height < 10000)) return;
  if (!heights.has(frame) && document.documentElement.dataset.theme) {
    tell(frame, { theme: document.documentElement.dataset.theme }); // it listens from now on
  }
  // While the width stays, a frame only grows: the steps differ in what there is to say.
  const [before, then] = heights.get(frame) ?? [0, width];
  const now = then === width ? Math.max(before, height) : height;
  heights.set(frame, [now, width]);
  frame.style.height = `${now}px`;
});
if (framed) new ResizeObserver(tellHeight).observe(document.body);
