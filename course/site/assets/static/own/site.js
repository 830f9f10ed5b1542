// Diagrams (Mermaid) and formulas (KaTeX), both fetched only by pages that have something for them, Mermaid,
// which is large, when the first diagram is near; the frames of runs; and what the theme leaves out for people who copy, or read by keyboard or ear.
(() => {
  "use strict";
  const vendor = new URL("../vendor/", document.currentScript.src);
  const own = new URL(".", document.currentScript.src);
  const root = new URL("../", own);

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
    await new Promise((resolve) => {
      const near = new IntersectionObserver((seen) => {
        if (seen.some((each) => each.isIntersecting)) resolve();
      }, { rootMargin: "100%" });
      for (const pre of found) near.observe(pre);
      addEventListener("beforeprint", resolve);
    });
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
    const heard = new Set(); // frames that have spoken since they were loaded: they listen, too
    for (const frame of frames) {
      frame.addEventListener("load", () => { heard.delete(frame); tell(frame); });
    }
    new MutationObserver(() => frames.forEach(tell))
      .observe(document.body, { attributeFilter: ["data-md-color-scheme"] });
    frames.forEach(tell);
    const widths = new Map();
    window.addEventListener("message", (event) => {
      const frame = frames.find((each) => each.contentWindow === event.source);
      const { viewerHeight: height, viewerWidth: width } = event.data ?? {};
      if (frame && !heard.has(frame)) {
        heard.add(frame);
        tell(frame); // what was said at its load may have come before its script was ready
      }
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

  // A run that plays when its picture is pressed.
  function onClick() {
    for (const figure of document.querySelectorAll("figure.viewer.on-click")) {
      const frame = figure.querySelector("iframe");
      figure.querySelector("button")?.addEventListener("click", (event) => {
        frame.src = frame.dataset.src;
        frame.hidden = false;
        event.currentTarget.remove();
        frame.focus();
      });
    }
  }

  // -- tracks: what the reader follows is kept in this browser and nowhere else ---------------------

  const kept = (value) => {
    try {
      if (value === undefined) return localStorage.getItem("course-track");
      if (value === null) localStorage.removeItem("course-track");
      else localStorage.setItem("course-track", value);
    } catch { /* a browser that keeps nothing: the track is followed on this page only */ }
    return null;
  };

  async function tracks() {
    const answer = await fetch(new URL("tracks.json", own));
    if (!answer.ok) return;
    const all = await answer.json();
    const here = location.pathname.slice(root.pathname.length);
    const article = document.querySelector("article");
    const name = Object.keys(all).find((each) => all[each].url === here);
    const follow = kept();
    if (name) {
      const button = document.createElement("button");
      button.className = "md-button track-button";
      button.textContent = follow === name ? "Stop following this track" : "Follow this track on the site";
      button.addEventListener("click", () => {
        kept(follow === name ? null : name);
        location.reload();
      });
      article.querySelector("h1")?.after(button);
    }
    const track = all[follow];
    if (!track) return;
    const steps = track.steps;
    const link = (step, words) => {
      const a = document.createElement("a");
      a.href = new URL(step.url + (step.anchor ? `#${step.anchor}` : ""), root).href;
      a.textContent = words;
      return a;
    };
    const bar = document.createElement("nav");
    bar.className = "track-bar";
    bar.setAttribute("aria-label", "Your track");
    const show = () => {
      bar.replaceChildren();
      const anchor = decodeURIComponent(location.hash.slice(1));
      const mine = steps.map((step, i) => ({ step, i })).filter(({ step }) => step.url === here);
      const { i } = mine.find(({ step }) => step.anchor === anchor) ?? mine[0] ?? { i: -1 };
      const whole = document.createElement("span");
      const place = i < 0 ? "this page is not on it" : `step ${i + 1} of ${steps.length}`;
      whole.append(link({ url: track.url }, track.title), `: ${place}`);
      bar.append(whole);
      const next = steps[i + 1];
      if (next) bar.append(link(next, `${i < 0 ? "First" : "Next"}: ${next.title}`));
    };
    show();
    addEventListener("hashchange", show);
    article.prepend(bar);
    const onIt = new Set([track, ...steps].map((step) => new URL(step.url, root).pathname));
    for (const a of document.querySelectorAll(".md-nav--primary a.md-nav__link[href]")) {
      const url = new URL(a.href);
      if (url.hash === "" && onIt.has(url.pathname)) a.classList.add("on-track");
    }
    for (const { url, anchor } of steps) {
      if (url !== here || !anchor) continue;
      document.getElementById(anchor)?.classList.add("on-track");
      for (const a of document.querySelectorAll(`.md-nav a[href="#${CSS.escape(anchor)}"]`)) {
        a.classList.add("on-track");
      }
    }
  }

  function reachable() {
    document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
    const boxes = document.querySelectorAll(".md-typeset__scrollwrap, .katex-display, div.diagram, pre > code");
    for (const box of boxes) if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
  }

  const start = () => {
    viewers();
    sessions();
    onClick();
    reachable();
    addEventListener("load", reachable);
    addEventListener("resize", reachable);
    formulas().catch(console.error);
    diagrams().catch(console.error);
    tracks().catch(console.error);
  };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
