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

  // Messages: a search that goes on, following, and searches that are kept in this browser.
  const MOST_ROWS = 500;
  function messages() {
    const progress = document.getElementById("progress"), rows = document.getElementById("rows");
    if (!progress || !rows) return;
    const stop = document.getElementById("stop"), next = document.getElementById("next"), follow = document.getElementById("follow");
    let source = null, follows = false;
    const number = value => Number(value).toLocaleString("en");
    const add = (html, isOnTop) => {
      const none = document.getElementById("none");
      if (none) none.remove();
      rows.insertAdjacentHTML(isOnTop ? "afterbegin" : "beforeend", html);
      while (rows.children.length > MOST_ROWS) (isOnTop ? rows.lastElementChild : rows.firstElementChild).remove();
    };
    const end = () => {
      if (source) source.close();
      source = null;
      stop.hidden = true;
      if (follow) follow.disabled = false;
    };
    const open = url => {
      end();
      source = new EventSource(url);
      stop.hidden = false;
      source.addEventListener("problem", event => { text("state", JSON.parse(event.data)); end(); });
      return source;
    };
    stop.addEventListener("click", () => {
      if (follows) text("state", "Stopped.");
      else if (next.getAttribute("href")) next.hidden = false;
      end();
    });
    if (progress.dataset.scan) {
      const from = [Number(progress.dataset.scanned), Number(progress.dataset.matched)];
      const url = new URL(progress.dataset.scan, location);
      url.searchParams.set("limit", Math.max(1, Number(progress.dataset.limit) - from[1]));
      const place = at => { const to = new URL(location); to.searchParams.set("at", at); next.href = to; };
      if (from[1] < Number(progress.dataset.limit)) {
        next.hidden = true;
        open(url);
        source.addEventListener("rows", event => add(JSON.parse(event.data), false));
        source.addEventListener("progress", event => {
          const at = JSON.parse(event.data);
          text("state", `${number(from[1] + at.matched)} found in ${number(from[0] + at.scanned)} records, at ${at.place || "…"}, ${number(at.left)} to go`);
          place(at.next);
        });
        source.addEventListener("done", event => {
          const at = JSON.parse(event.data);
          end();
          next.hidden = !at.next;
          if (at.next) place(at.next);
          const none = document.querySelector("#none p");
          if (none) none.textContent = "No record matches.";
        });
        source.onerror = () => { text("state", "The connection was lost."); next.hidden = false; end(); };
      }
    }
    if (follow) follow.addEventListener("click", () => {
      follows = true;
      next.hidden = true;
      follow.disabled = true;
      let seen = 0, leftOut = 0;
      open(follow.dataset.url);
      follow.disabled = true;
      text("state", "Connecting");
      source.addEventListener("rows", event => add(JSON.parse(event.data), true));
      source.addEventListener("progress", event => {
        const at = JSON.parse(event.data);
        seen += at.scanned;
        leftOut += at.left_out;
        text("state", `Following: ${number(seen)} new records${leftOut ? `, ${number(leftOut)} not shown` : ""}`);
      });
    });
    addEventListener("pagehide", end);
    saved();
  }

  function saved() {
    const save = document.getElementById("save"), list = document.getElementById("saved");
    if (!save || !list) return;
    const key = `tidemill-searches-${save.dataset.topic}`;
    const read = () => { try { return JSON.parse(localStorage.getItem(key)) || {}; } catch { return {}; } };
    const write = value => { try { localStorage.setItem(key, JSON.stringify(value)); } catch { /* not kept */ } };
    const show = () => {
      list.replaceChildren(...Object.entries(read()).flatMap(([name, query]) => {
        const link = document.createElement("a"), forget = document.createElement("button");
        link.href = `/console/messages${query}`;
        link.textContent = name;
        forget.type = "button";
        forget.className = "quiet";
        forget.textContent = "×";
        forget.setAttribute("aria-label", `Forget ${name}`);
        forget.addEventListener("click", () => { const all = read(); delete all[name]; write(all); show(); });
        return [link, forget];
      }));
    };
    save.addEventListener("click", () => {
      const name = prompt("A name for this search", document.querySelector("[name=where]").value || "search");
      if (name) { write({...read(), [name.slice(0, 100)]: location.search}); show(); }
    });
    show();
  }

  document.addEventListener("change", async event => {
    const file = event.target;
    if (!file.matches("input[type=file][data-into]") || !file.files.length) return;
    document.getElementById(file.dataset.into).value = await file.files[0].text();
  });

  document.addEventListener("DOMContentLoaded", () => { theme(); live(); ages(); prepare(document); messages(); });
})();
