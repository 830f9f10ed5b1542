// Diagrams (Mermaid) and formulas (KaTeX), both fetched only by pages that have something for them; the
// frames of runs; and what the theme leaves out for people who copy, or read by keyboard or ear.
(() => {
  "use strict";
  const vendor = new URL("../vendor/", document.currentScript.src);

  const script = (path) =>
    new Promise((resolve, reject) => {
      const element = document.createElement("script");
      element.src = new URL(path, vendor).href;
      element.onload = resolve;
      element.onerror = () => reject(new Error(`cannot load ${element.src}`));
      document.head.append(element);
    });

  async function formulas() {
    const found = [...document.querySelectorAll(".arithmatex")];
    if (found.length === 0) return;
    const style = document.createElement("link");
    style.rel = "stylesheet";
    style.href = new URL("katex/katex.min.css", vendor).href;
    document.head.append(style);
    await script("katex/katex.min.js");
    for (const element of found) {
      const [, open, tex] = element.textContent.trim().match(/^\\([([])([\s\S]*)\\[)\]]$/);
      katex.render(tex, element, { displayMode: open === "[", throwOnError: false });
    }
  }

  async function diagrams() {
    const found = [...document.querySelectorAll("pre.diagram")];
    if (found.length === 0) return;
    await script("mermaid/mermaid.tiny.js");
    const drawn = found.map((pre) => {
      const box = document.createElement("div");
      box.className = "diagram";
      return { pre, box, source: pre.textContent };
    });
    let turn = 0;
    const draw = async () => {
      const mine = ++turn;
      const dark = document.body.dataset.mdColorScheme === "slate";
      mermaid.initialize({
        startOnLoad: false,
        securityLevel: "strict",
        flowchart: { rankSpacing: 28, nodeSpacing: 28, padding: 9 },
        theme: dark ? "dark" : "neutral",
        fontFamily: getComputedStyle(document.body).fontFamily,
      });
      for (const [index, { pre, box, source }] of drawn.entries()) {
        const { svg } = await mermaid.render(`diagram-${mine}-${index}`, source);
        if (mine !== turn) return; // the colours were changed again meanwhile
        box.innerHTML = svg;
        box.style.setProperty("--diagram-width", `${box.firstElementChild.viewBox.baseVal.width}px`);
        if (pre.isConnected) pre.replaceWith(box);
      }
    };
    await draw();
    new MutationObserver(draw).observe(document.body, { attributeFilter: ["data-md-color-scheme"] });
  }

  // A run to step through is a page of its own, in a frame: it follows this page's colours, and the
  // frame follows its height. While the width stays, a frame only grows: steps differ in what there
  // is to say, and the text below should not jump with each of them.
  function viewers() {
    const frames = [...document.querySelectorAll("figure.viewer iframe")];
    if (frames.length === 0) return;
    const tell = (frame) => {
      const theme = document.body.dataset.mdColorScheme === "slate" ? "dark" : "light";
      frame.contentWindow?.postMessage({ theme }, "*");
    };
    for (const frame of frames) frame.addEventListener("load", () => tell(frame));
    new MutationObserver(() => frames.forEach(tell))
      .observe(document.body, { attributeFilter: ["data-md-color-scheme"] });
    frames.forEach(tell);
    const widths = new Map();
    window.addEventListener("message", (event) => {
      const frame = frames.find((each) => each.contentWindow === event.source);
      const { viewerHeight: height, viewerWidth: width } = event.data ?? {};
      if (!frame || frame.closest(".fixed") || !(height > 0 && height < 10000)) return;
      const border = frame.offsetHeight - frame.clientHeight;
      const before = widths.get(frame) === width ? frame.offsetHeight : 0;
      widths.set(frame, width);
      frame.style.height = `${Math.max(before, Math.ceil(height) + border)}px`;
    });
  }

  // Copying a session gives what one would type: no prompts, no outputs.
  function sessions() {
    for (const code of document.querySelectorAll(".language-pycon code")) {
      const typed = code.textContent.split("\n").filter((line) => /^(>>>|\.\.\.)( |$)/.test(line));
      code.dataset.copy = typed.map((line) => line.slice(4)).join("\n");
    }
  }

  function reachable() {
    document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
    const boxes = document.querySelectorAll(".md-typeset__scrollwrap, .katex-display, div.diagram");
    for (const box of boxes) if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
  }

  const start = () => {
    viewers();
    sessions();
    reachable();
    addEventListener("load", reachable);
    addEventListener("resize", reachable);
    formulas().catch(console.error);
    diagrams().catch(console.error);
  };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
