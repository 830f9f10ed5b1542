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
    reachable();
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
      reachable();
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

  // In the cell of a table a symbol may break, between its words: the column need not be as wide as all of it.
  function symbols() {
    for (const code of document.querySelectorAll(":is(td, th) code:not(pre code)")) {
      code.innerHTML = code.innerHTML.replace(/[_./](?=\w)/g, "$&<wbr>");
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

  // -- tracks: what the reader follows, and the step they were at, are kept in this browser and nowhere else

  const kept = (key, value) => {
    try {
      if (value === undefined) return localStorage.getItem(`course-${key}`);
      if (value === null) localStorage.removeItem(`course-${key}`);
      else localStorage.setItem(`course-${key}`, value);
    } catch { /* a browser that keeps nothing: the track is followed on this page only */ }
    return null;
  };

  async function tracks() {
    const answer = await fetch(new URL("tracks.json", own));
    if (!answer.ok) return;
    const all = await answer.json();
    const here = location.pathname.slice(root.pathname.length);
    const name = Object.keys(all).find((each) => all[each].url === here);
    const follow = kept("track");
    if (name) {
      const button = document.createElement("button");
      button.className = "md-button track-button";
      button.textContent = follow === name ? "Stop following this track" : "Follow this track on the site";
      button.addEventListener("click", () => {
        kept("track", follow === name ? null : name);
        location.reload();
      });
      document.querySelector("article h1")?.after(button);
    }
    if (all[follow]) followTrack(follow, all[follow], here);
  }

  // The ways on are the track's: in the bar above the page, behind each section that is a step, and in the footer
  // (with the keys n and p, for which the theme asks the links in the head). What leads to a step on the track's
  // page stands at the step, too: who goes on from step to step does not see that page.
  function followTrack(name, track, here) {
    const article = document.querySelector("article");
    const count = track.steps.length;
    const stops = [
      { title: track.title, url: track.url, anchor: "" },
      ...track.steps,
      { title: "Your task", url: track.url, anchor: "your-task" },
    ];
    const mine = [...stops.keys()].filter((i) => stops[i].url === here);
    const address = ({ url, anchor }) => new URL(url + (anchor ? `#${anchor}` : ""), root).href;
    const last = () => Math.min(Number(kept(`step-${name}`)), count); // 0: at none yet
    const link = (i, words = "") => {
      const a = document.createElement("a");
      a.href = address(stops[i]);
      a.textContent = words + stops[i].title;
      return a;
    };
    const back = () => link(last() || 1, last() ? `Back to step ${last()}: ` : "First: ");

    // A page may be several stops: the anchor says which. Where it names none of them, it is the nearest to
    // the one before.
    const find = () => {
      const anchor = decodeURIComponent(location.hash.slice(1));
      const named = mine.filter((i) => stops[i].anchor === anchor);
      const whole = mine.filter((i) => stops[i].anchor === "");
      const far = (i) => Math.abs(i - last());
      return [named, whole, mine].find((some) => some.length)?.reduce((a, b) => (far(b) < far(a) ? b : a));
    };

    const bar = document.createElement("nav");
    bar.className = "track-bar";
    bar.setAttribute("aria-label", "Your track");
    const showBar = (at) => {
      const words = at === undefined ? "this page is not on it"
        : at === 0 ? "this page is its start"
        : at > count ? `your task, after all ${count} steps` : `step ${at} of ${count}`;
      const whole = document.createElement("span");
      whole.append(link(0), `: ${words}`);
      bar.replaceChildren(whole);
      if (at === undefined) bar.append(back());
      else if (at <= count) bar.append(link(at + 1, at ? "Next: " : "First: "));
      if (at === 0 && last()) bar.append(back());
    };

    // At the end of a page its later steps have been passed: next is the first after them on another page.
    const ways = ["prev", "next"].map((way) => [
      document.querySelector(`.md-footer__link--${way}`), document.querySelector(`link[rel=${way}]`), way,
    ]);
    const showFooter = (at) => {
      let [from, to] = [at, at];
      while (stops[from - 1]?.url === here) from--;
      while (stops[to + 1]?.url === here) to++;
      const ends = at === undefined ? [undefined, last() || 1] : [from - 1, to + 1];
      for (const [n, [a, head, way]] of ways.entries()) {
        const stop = stops[ends[n]];
        if (head) head.rel = stop ? way : "";
        if (head && stop) head.href = address(stop);
        if (a) a.hidden = !stop;
        if (!a || !stop) continue;
        const words = at === undefined ? "Back to your track" : `${n ? "Next" : "Previous"} on your track`;
        a.href = address(stop);
        a.setAttribute("aria-label", `${words}: ${stop.title}`);
        a.querySelector(".md-footer__direction").textContent = words;
        a.querySelector(".md-ellipsis").textContent = stop.title;
      }
    };

    const show = () => {
      const at = find();
      if (at > 0 && at <= count) kept(`step-${name}`, at);
      showBar(at);
      showFooter(at);
    };
    show();
    addEventListener("hashchange", show);
    article.prepend(bar);

    for (const i of mine) {
      const { anchor, bridge } = stops[i];
      const heading = anchor ? document.getElementById(anchor) : article.querySelector("h1");
      if (!heading || i === 0 || i > count) continue;
      if (bridge) {
        const lead = document.createElement("div");
        lead.className = "track-lead";
        lead.innerHTML = bridge;
        for (const a of lead.querySelectorAll("a")) a.href = new URL(a.getAttribute("href"), root).href;
        heading.after(lead);
      }
      if (!anchor) continue;
      heading.classList.add("on-track");
      for (const a of document.querySelectorAll(`.md-nav a[href="#${CSS.escape(anchor)}"]`)) {
        a.classList.add("on-track");
      }
      let end = heading.nextElementSibling;
      while (end && !(/^H[1-6]$/.test(end.tagName) && end.tagName <= heading.tagName)) end = end.nextElementSibling;
      // Where the next step is what one reads next anyway, or the footer stands, nothing need be said.
      if (!end || (stops[i + 1].url === here && stops[i + 1].anchor === end.id)) continue;
      const next = document.createElement("p");
      next.className = "track-next";
      next.append(link(i + 1, "Next on your track: "));
      end.before(next);
    }
    const onIt = new Set(stops.map(({ url }) => new URL(url, root).pathname));
    for (const a of document.querySelectorAll(".md-nav--primary a.md-nav__link[href]")) {
      const url = new URL(a.href);
      if (url.hash === "" && onIt.has(url.pathname)) a.classList.add("on-track");
    }
  }

  function reachable() {
    document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
    const boxes = document.querySelectorAll(".md-typeset__scrollwrap, div.arithmatex, div.diagram, pre > code");
    for (const box of boxes) if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
  }

  const start = () => {
    viewers();
    sessions();
    symbols();
    onClick();
    reachable();
    addEventListener("load", reachable);
    addEventListener("resize", reachable);
    addEventListener("toggle", reachable, true); // what was folded had no width
    formulas().catch(console.error);
    diagrams().catch(console.error);
    tracks().catch(console.error);
  };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
