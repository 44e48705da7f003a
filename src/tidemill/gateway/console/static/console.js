// Live parts, the theme, copying and keys. Pages work without it.
"use strict";
(() => {
  const root = document.documentElement;
  const stored = () => { try { return localStorage.getItem("tidemill-theme"); } catch { return null; } };
  if (stored()) root.dataset.theme = stored();

  const text = (id, value) => { const found = document.getElementById(id); if (found) found.textContent = value; };

  function theme() {
    const button = document.getElementById("theme");
    if (!button) return;
    const isDark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
    const name = () => { button.textContent = isDark() ? "Light colours" : "Dark colours"; };
    button.hidden = false;
    name();
    button.addEventListener("click", () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      try { localStorage.setItem("tidemill-theme", root.dataset.theme); } catch { /* not kept */ }
      name();
    });
  }

  // The block "live" of a page, as the server renders it. It is not replaced while someone types in it.
  function live() {
    const pulse = document.getElementById("pulse"), part = document.getElementById("live");
    if (!pulse || !part) return;
    let source = null;
    const state = (name, words) => { pulse.className = name; pulse.textContent = words; };
    const isUsed = () => part.contains(document.activeElement) && document.activeElement.matches("input, select, textarea")
      || (getSelection().toString() && part.contains(getSelection().anchorNode));
    function open() {
      source = new EventSource(pulse.dataset.live);
      source.onopen = () => state("on", "Live");
      source.onerror = () => state("off", "Connecting again");
      source.addEventListener("part", event => {
        state("on", "Live");
        if (isUsed()) return;
        const opened = [...part.querySelectorAll("details[id][open]")].map(each => each.id);
        const checked = [...part.querySelectorAll("input[id]:checked")].map(each => each.id);
        const focused = document.activeElement && document.activeElement.getAttribute("href");
        part.innerHTML = JSON.parse(event.data);
        opened.forEach(id => { const found = document.getElementById(id); if (found) found.open = true; });
        checked.forEach(id => { const found = document.getElementById(id); if (found) found.checked = true; });
        if (focused && document.activeElement === document.body) {
          const again = [...part.querySelectorAll("a")].find(each => each.getAttribute("href") === focused);
          if (again) again.focus({preventScroll: true});
        }
        prepare(part);
        const age = document.getElementById("age");
        if (age) age.dataset.at = Date.now();
        pulse.classList.remove("beat");
        void pulse.offsetWidth;
        pulse.classList.add("beat");
      });
      source.addEventListener("problem", event => state("off", JSON.parse(event.data)));
    }
    const close = () => { if (source) source.close(); source = null; state("", "Paused"); };
    document.addEventListener("visibilitychange", () => document.hidden ? close() : source || open());
    addEventListener("pagehide", close);
    if (!document.hidden) open();
  }

  function ages() {
    const age = document.getElementById("age");
    if (!age) return;
    const show = () => {
      const seconds = Math.max(0, Math.round((Date.now() - Number(age.dataset.at)) / 1000));
      text("age", seconds < 100 ? `${seconds} s old` : `${Math.round(seconds / 60)} min old`);
    };
    show();
    setInterval(show, 1000);
  }

  function prepare(part) {
    part.querySelectorAll("button.copy").forEach(each => { each.hidden = !navigator.clipboard; });
    part.querySelectorAll("[data-js]").forEach(each => { each.hidden = false; });
  }

  document.addEventListener("click", async event => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.matches(".copy")) {
      await navigator.clipboard.writeText(button.dataset.copy);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    }
    if (button.dataset.confirm && !confirm(button.dataset.confirm)) event.preventDefault();
  });

  document.addEventListener("keydown", event => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea")) return;
    const found = [...document.querySelectorAll("[data-key]")].find(each => each.dataset.key === event.key);
    if (found) { event.preventDefault(); found.focus(); }
  });

  document.addEventListener("DOMContentLoaded", () => { theme(); live(); ages(); prepare(document); });
})();
