// Moves the demo's page: planes along their routes, bars as windows close. It draws what the stream
// of changes says, and nothing else.
"use strict";

(() => {
  const root = document.getElementById("demo");
  if (!root) return;
  const SVG = "http://www.w3.org/2000/svg";
  const HOUR = 3600;
  const CODES = ["EWR", "JFK", "LGA"];
  const SHOWN = 4; // lines of a list
  const MOST_DELAY = 90; // minutes; longer bars are cut
  const ROW = 62, TOP = 22, LEFT = 42;
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  const byId = (id) => document.getElementById(id);
  const zone = { timeZone: "America/New_York" };
  const day = new Intl.DateTimeFormat("en-GB", { ...zone, weekday: "long", day: "numeric", month: "long", year: "numeric" });
  const hourOf = new Intl.DateTimeFormat("en-GB", { ...zone, hour: "2-digit", minute: "2-digit" });
  const signed = (value) => (value >= 0.5 ? "+" : value <= -0.5 ? "−" : "±") + Math.abs(Math.round(value));
  const plural = (departures) => `${departures} ${departures === 1 ? "departure" : "departures"}`;
  const count = (value) => value.toLocaleString("en");

  let now = {}; // the last message, without planes, hours and alerts
  let clock = 0, speed = 0, heard = null; // the clock moves on between two messages
  const planes = new Map(), routes = new Set(), hours = new Map();
  let alerts = [], closed = [];

  const make = (parent, name, attributes) => {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    parent.append(made);
    return made;
  };

  // --- messages ---

  const take = (message, isAll) => {
    if (isAll) {
      for (const plane of planes.values()) plane.group.remove();
      planes.clear(); hours.clear();
      alerts = []; closed = []; clock = 0; speed = 0; heard = null;
      byId("demo-routes").replaceChildren(); routes.clear();
    }
    const at = performance.now();
    if (heard && message.clock > heard.clock) {
      const found = (message.clock - heard.clock) / Math.max(1, at - heard.at); // seconds per ms
      speed = speed ? speed * 0.8 + found * 0.2 : found;
    }
    if (!heard || message.clock > heard.clock) heard = { clock: message.clock, at };
    if (!clock || message.clock - clock > 6 * HOUR) clock = message.clock;
    now = message;
    for (const each of message.planes) addPlane(each);
    for (const each of message.hours) {
      const key = each.airport + each.start, before = hours.get(key);
      if (each.is_final && !(before && before.is_final)) closed.push(each);
      hours.set(key, { ...each, fresh: each.is_final && !isAll && !(before && before.is_final) });
    }
    closed = closed.slice(-SHOWN);
    alerts = alerts.concat(message.alerts).slice(-40);
    drawCards(); drawHours(); drawStatus();
    if (isAll || message.alerts.length) drawList("demo-alerts", alerts, (each) => `${signed(each.usual)} was usual`, isAll);
    if (isAll || message.hours.some((each) => each.is_final)) drawList("demo-closed", closed, (each) => plural(each.departures), isAll);
  };

  const drawStatus = () => {
    const { pipeline, counts } = now;
    let text = "Flights of 2013, as airports report them: late, and out of order.";
    if (now.problem) text = now.problem;
    else if (pipeline.failed.length) text = `The pipeline has failed: ${pipeline.failed.join(", ")}.`;
    else if (!now.clock && pipeline.queries) text = `The airports open soon: ${pipeline.started} of ${pipeline.queries} queries have started.`;
    else if (!now.clock) text = "The airports open as soon as the pipeline has started.";
    else if (now.is_over) text = "All reports are in.";
    say("demo-status", text);
    const parts = [`${pipeline.running} of ${pipeline.queries} queries run`, `${count(pipeline.batches)} batches`];
    if (counts.departures) parts.unshift(`${count((counts.departures || 0) + (counts.arrivals || 0) + (counts.cancellations || 0))} reports`);
    if (counts.windows) parts.push(`${count(counts.windows)} windows closed`);
    if (pipeline.late_rows) parts.push(`${count(pipeline.late_rows)} reports were too late`);
    if (pipeline.latency_ms !== null) parts.push(`slowest query: ${count(pipeline.latency_ms)} ms from record to result`);
    say("demo-pipeline", parts.join(" · "));
  };

  const say = (id, text) => {
    const found = byId(id);
    if (found.textContent !== text) found.textContent = text;
  };

  // --- cards and lists ---

  const drawCards = () => {
    for (const each of now.airports) {
      const card = byId(`airport-${each.code}`), last = each.last;
      const part = (name) => card.querySelector(`[data-is=${name}]`);
      part("mark").className = `demo-mark d${last ? last.level : "none"}`;
      part("delay").textContent = last ? signed(last.delay) : "–";
      part("note").textContent = last ? `${plural(last.departures)}, ${last.when}` : "no hour is final yet";
      part("air").textContent = each.in_the_air;
      part("cancelled").textContent = each.cancelled;
    }
  };

  const drawList = (id, items, note, isAll) => {
    const list = byId(id);
    if (!items.length) return;
    const known = new Set([...list.children].map((each) => each.dataset.key));
    const made = items.slice(-SHOWN).reverse().map((each) => {
      const row = document.createElement("li"), key = `${each.airport} ${each.start}`;
      row.dataset.key = key;
      if (!isAll && !known.has(key)) row.className = "fresh";
      const mark = document.createElement("i"), code = document.createElement("b");
      mark.className = `demo-mark d${each.level}`;
      code.textContent = each.airport;
      const when = document.createElement("span"), right = document.createElement("b");
      const small = document.createElement("small");
      when.textContent = each.when;
      right.textContent = signed(each.delay);
      small.textContent = note(each);
      row.append(mark, code, when, right, small);
      return row;
    });
    list.replaceChildren(...made);
  };

  // --- the map ---

  const addPlane = (plane) => {
    const key = `${plane.flight} ${plane.departed}`;
    if (planes.has(key)) return;
    const [ax, ay, cx, cy, bx, by] = plane.route;
    const path = `M${ax} ${ay}Q${cx} ${cy} ${bx} ${by}`;
    if (!routes.has(path)) {
      routes.add(path);
      make(byId("demo-routes"), "path", { d: path });
      make(byId("demo-routes"), "circle", { class: "place", cx: bx, cy: by, r: 1.8 });
    }
    const group = make(byId("demo-planes"), "g", { class: `plane d${plane.level}` });
    const trail = make(group, "path", { d: path, pathLength: 1 });
    const dot = make(group, "circle", { r: 3.2 });
    make(dot, "title", {}).textContent = `${plane.flight} to ${plane.destination}, ${signed(plane.delay)} min`;
    planes.set(key, { ...plane, group, trail, dot });
  };

  const movePlanes = () => {
    for (const [key, plane] of planes) {
      const share = (clock - plane.departed) / (plane.lands - plane.departed);
      if (share >= 1) {
        plane.group.remove();
        planes.delete(key);
        continue;
      }
      const t = Math.max(0, share), [ax, ay, cx, cy, bx, by] = plane.route, u = 1 - t;
      plane.dot.setAttribute("cx", (u * u * ax + 2 * u * t * cx + t * t * bx).toFixed(1));
      plane.dot.setAttribute("cy", (u * u * ay + 2 * u * t * cy + t * t * by).toFixed(1));
      const long = Math.min(t, 0.18);
      plane.trail.setAttribute("stroke-dasharray", `0 ${(t - long).toFixed(3)} ${long.toFixed(3)} 2`);
    }
  };

  // --- the hours ---

  const drawHours = () => {
    const svg = byId("demo-hours"), wide = svg.clientWidth || 1000, high = TOP + ROW * CODES.length + 6;
    svg.setAttribute("viewBox", `0 0 ${wide} ${high}`);
    svg.replaceChildren();
    const begin = now.days.length ? now.days[0].start : 0, end = now.days.length ? now.days.at(-1).start : 24 * HOUR;
    const x = (time) => LEFT + (wide - LEFT) * (time - begin) / (end - begin);
    const step = (wide - LEFT) * HOUR / (end - begin);
    CODES.forEach((code, row) => {
      const base = TOP + ROW * (row + 1);
      make(svg, "text", { x: 0, y: base - 4, class: "code" }).textContent = code;
      make(svg, "line", { x1: LEFT, x2: wide, y1: base, y2: base, class: "axis" });
    });
    if (!begin) return;
    now.days.slice(0, -1).forEach((each) => {
      make(svg, "line", { x1: x(each.start), x2: x(each.start), y1: 4, y2: high, class: "day" });
      const text = make(svg, "text", { x: x(each.start) + 6, y: 14, class: "date" });
      text.textContent = wide < 700 ? each.text.split(" ").slice(0, 2).join(" ") : each.text;
    });
    const mark = now.pipeline.final_up_to;
    if (mark && mark > begin) {
      const to = Math.min(x(now.clock), wide);
      if (to > x(mark)) make(svg, "rect", { x: x(mark), y: TOP, width: to - x(mark), height: ROW * CODES.length, class: "waiting" });
      make(svg, "line", { x1: x(mark), x2: x(mark), y1: TOP - 4, y2: high, class: "watermark" });
    }
    for (const each of hours.values()) {
      if (each.start < begin || each.start >= end || !each.departures) continue;
      const base = TOP + ROW * (CODES.indexOf(each.airport) + 1);
      const tall = Math.max(2, (ROW - 14) * Math.min(MOST_DELAY, Math.max(0, each.delay)) / MOST_DELAY);
      const state = each.is_final ? (each.fresh ? "final fresh" : "final") : "open";
      const bar = make(svg, "rect", {
        x: x(each.start) + step * 0.12, y: base - tall, width: Math.max(1, step * 0.76), height: tall,
        rx: Math.min(1.5, step / 4), class: `bar d${each.level} ${state}`,
      });
      make(bar, "title", {}).textContent = `${each.airport} ${each.when}: ${plural(each.departures)}, ${signed(each.delay)} min`;
    }
    for (const each of alerts) {
      if (each.start < begin) continue;
      const row = CODES.indexOf(each.airport), at = x(each.start) + step / 2;
      const tall = (ROW - 14) * Math.min(MOST_DELAY, Math.max(0, each.delay)) / MOST_DELAY;
      const y = TOP + ROW * (row + 1) - tall - 3;
      make(svg, "path", { d: `M${at} ${y}l-4 -7h8z`, class: "alert" });
    }
  };

  // --- the clock ---

  let before = performance.now();
  const frame = (at) => {
    const passed = Math.min(500, at - before);
    before = at;
    if (heard) {
      // A little behind the newest report, so that the next one is there when the clock reaches it.
      const goal = heard.clock, behind = goal - clock;
      const pace = now.is_over ? speed || 3.6 : Math.max(0, speed + behind / 2000); // seconds per ms
      clock = Math.min(goal + (now.is_over ? 12 * HOUR : 0), clock + passed * (calm.matches ? Infinity : pace) || goal);
      const shown = new Date(Math.min(clock, goal) * 1000);
      say("demo-clock", goal ? `${day.format(shown)}, ${hourOf.format(shown)}` : "2013");
      movePlanes();
    }
    requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
  new ResizeObserver(() => { if (now.days) drawHours(); }).observe(byId("demo-hours"));

  const events = new EventSource(root.dataset.events);
  events.addEventListener("all", (event) => take(JSON.parse(event.data), true));
  events.addEventListener("more", (event) => take(JSON.parse(event.data), false));
  events.addEventListener("error", () => say("demo-status", "The demo has ended, or can't be reached: this is its last state."));
})();
