// The words of all pages, which the theme fetches with each page, wait until somebody is about to search: the
// box has the focus, or the address brings a query or words to be marked. It stands before the theme's script.
(() => {
  "use strict";
  const wanted = new Promise((resolve) => {
    if (/[?&][qh]=/.test(location.search)) resolve();
    document.addEventListener("focusin", (event) => {
      if (event.target.matches?.(".md-search__input")) resolve();
    });
  });
  const { open, send } = XMLHttpRequest.prototype;
  const later = new WeakSet();
  XMLHttpRequest.prototype.open = function (method, url, ...more) {
    if (/\/search\/search_index\.json$/.test(url)) later.add(this);
    return open.call(this, method, url, ...more);
  };
  XMLHttpRequest.prototype.send = function (...body) {
    if (later.has(this)) wanted.then(() => send.apply(this, body));
    else send.apply(this, body);
  };
})();
