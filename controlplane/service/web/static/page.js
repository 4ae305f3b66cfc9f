// Fetches a snapshot every second while the page can be seen, and puts it into the figures and lists.
"use strict";

const PERIOD_MS = 1000;
const BAD = /lost|silent|denied|refused|gone|fail|not |reconnecting|abort|gave up/i;
const sources = {};
let links = null, lights = {}, lit = "", opened = new Set(), seen = new Set(), failures = 0;

function element(tag, text, attributes = {}) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  Object.assign(made, attributes);
  return made;
}

function models() {
  return Bokeh.documents.flatMap((document) => [...document._all_models.values()]);
}

// -- light and dark ----------------------------------------------------------------------------------------------

const dark = matchMedia("(prefers-color-scheme: dark)");
let chosen = new URLSearchParams(location.search).get("theme") ?? "";

function applyTheme() {
  const theme = chosen || (dark.matches ? "dark" : "light");
  document.documentElement.dataset.theme = theme;
  document.getElementById("theme").textContent = chosen || "theme: system";
  const soft = getComputedStyle(document.documentElement).getPropertyValue("--soft").trim();
  for (const model of models()) {
    if (model.type.endsWith("Axis")) {
      Object.assign(model, { major_label_text_color: soft, axis_label_text_color: soft, axis_line_color: soft,
        major_tick_line_color: soft, minor_tick_line_color: null });
    } else if (model.type === "Text") {
      model.text_color = { value: soft };
    }
  }
}

dark.addEventListener("change", applyTheme);
document.getElementById("theme").addEventListener("click", () => {
  chosen = { "": "light", light: "dark", dark: "" }[chosen];
  applyTheme();
});

// -- what lights up under the pointer ----------------------------------------------------------------------------

function light(key) {
  lit = key;
  const wanted = lights[key];
  const numbers = wanted ? wanted.links : [];
  const live = models().find((model) => model.name === "live");
  live.glyph.line_alpha = wanted ? { value: 0 } : { field: "live" };
  sources.lit.data = { xs: numbers.map((n) => links.xs[n]), ys: numbers.map((n) => links.ys[n]),
    colour: numbers.map(() => wanted.colour) };
}

function lightsUp(node, key) {
  node.addEventListener("mouseenter", () => light(key));
  node.addEventListener("mouseleave", () => light(""));
}

// -- lists -------------------------------------------------------------------------------------------------------

const rate = (mbps) => mbps >= 99.95 ? mbps.toFixed(0) : mbps.toPrecision(3);

function jobElement(job) {
  const made = element("details", undefined, { className: "job", open: opened.has(job.name) });
  made.style.borderLeftColor = job.colour;
  made.dataset.job = job.name;
  made.addEventListener("toggle", () => opened[made.open ? "add" : "delete"](job.name));
  const summary = element("summary");
  const title = element("div", undefined, { className: "title" });
  title.append(element("span", job.name),
    element("span", `${rate(job.measured_mbps)} of ${rate(job.planned_mbps)} Mbit/s`, { className: "rate" }));
  const bar = element("div", undefined, { className: "bar" });
  const fill = element("i");
  fill.style.width = `${Math.min(100, 100 * job.measured_mbps / (job.planned_mbps || 1))}%`;
  fill.style.background = job.colour;
  bar.append(fill);
  const bottleneck = job.bottleneck.name ? `; bottleneck ${job.bottleneck.kind.replace("_", " ")} ${job.bottleneck.name}` +
    ` (${Math.round(100 * job.bottleneck.used)} %` +
    `${job.bottleneck.share < 0.995 ? `, ${Math.round(100 * job.bottleneck.share)} % of that its own` : ""})` : "";
  const agents = Object.keys(job.agents).length;
  summary.append(title, bar, element("div", `${job.strategy}, version ${job.version}, ${job.trees.length} trees, ` +
    `${job.workers.length} workers, servers ${job.parameter_servers.join(", ")}${bottleneck}`, { className: "about" }));
  if (job.missing.length) {
    summary.append(element("div", `waiting for ${job.missing.slice(0, 8).join(", ")}` +
      `${job.missing.length > 8 ? " and others" : ""} (${agents - job.missing.length} of ${agents} agents there)`,
      { className: "waits" }));
  }
  if (job.update) summary.append(element("div", job.update, { className: "about" }));
  for (const tree of job.trees.filter((tree) => tree.waits_for.length && tree.waiting_seconds >= 1).slice(0, 3)) {
    summary.append(element("div", `tree ${tree.tree} (root ${tree.root}) waits for ${tree.waits_for.join(", ")} ` +
      `for ${tree.waiting_seconds.toFixed(1)} s`, { className: "waits" }));
  }
  lightsUp(summary, job.name);
  made.append(summary, treeTable(job));
  return made;
}

function treeTable(job) {
  const table = element("table"), head = element("tr"), body = element("tbody");
  for (const name of ["tree", "root", "adds at", "Mbit/s", "slowest hop", "waits for"]) head.append(element("th", name));
  for (const tree of job.trees) {
    const row = element("tr");
    const waits = tree.waits_for.length ? `${tree.waits_for.join(", ")}, ${tree.waiting_seconds.toFixed(1)} s` : "";
    for (const text of [tree.tree, tree.root, tree.points.join(", ") || "the server",
      `${rate(tree.measured_mbps)} of ${rate(tree.planned_mbps)}`, tree.slowest, waits]) row.append(element("td", text));
    row.dataset.tree = `${job.name}/${tree.tree}`;
    lightsUp(row, row.dataset.tree);
    body.append(row);
  }
  const top = element("thead");
  top.append(head);
  table.append(top, body);
  return table;
}

function showJobs(jobs) {
  const place = document.getElementById("jobs");
  for (const job of jobs) {
    if (!seen.has(job.name) && jobs.length === 1 && job.trees.length <= 12) opened.add(job.name);
    seen.add(job.name);
  }
  const scrolled = place.scrollTop;
  place.replaceChildren(...jobs.map(jobElement));
  if (!jobs.length) place.append(element("p", "no job: add one with `inart job add`", { className: "none" }));
  place.scrollTop = scrolled;
}

function showEvents(events) {
  const place = document.getElementById("events");
  const latestFirst = [...events].sort((one, other) => other.time - one.time);
  place.replaceChildren(...latestFirst.map((event) => {
    const line = element("li", undefined, { className: BAD.test(event.text) ? "bad" : "" });
    line.append(element("time", new Date(1000 * event.time).toTimeString().slice(0, 8)), element("span", event.text));
    return line;
  }));
}

function showLegend(steps) {
  document.getElementById("legend").replaceChildren(...steps.map(([words, colour, kind]) => {
    const item = element("li"), mark = element("i", undefined, { className: kind });
    mark.style[kind === "ring" ? "borderColor" : "background"] = colour;
    item.append(mark, words);
    return item;
  }));
}

// The rates' figure begins where there is something to show, unless somebody has chosen another part of it.
let began = null;
function fitHistory(seconds) {
  const ago = models().find((model) => model.name === "ago");
  if (began !== null && (ago.start !== began || ago.end !== 0)) return;
  began = -Math.ceil(seconds / 15) * 15;
  Object.assign(ago, { start: began, end: 0 });
}

// -- again and again ---------------------------------------------------------------------------------------------

function show(page) {
  document.getElementById("topology").textContent = page.topology;
  document.getElementById("summary").textContent = page.summary;
  for (const [name, data] of Object.entries(page.columns)) sources[name].data = data;
  fitHistory(page.history_seconds);
  links = page.columns.links;
  lights = page.lights;
  showJobs(page.jobs);
  showEvents(page.events);
  light(lights[lit] ? lit : "");
  const under = document.querySelector(".job > summary:hover, tbody tr:hover");
  if (under) light(under.dataset.tree ?? under.parentElement.dataset.job);
  const state = document.getElementById("state");
  state.textContent = `as of ${new Date(1000 * page.time).toTimeString().slice(0, 8)}`;
  state.className = "";
  document.documentElement.dataset.time = page.time;
}

async function refresh() {
  if (!document.hidden) {
    try {
      const answer = await fetch("api/page", { signal: AbortSignal.timeout(15000) });
      if (!answer.ok) throw new Error(`${answer.status} ${await answer.text()}`);
      show(await answer.json());
      failures = 0;
    } catch (error) {
      failures += 1;
      const state = document.getElementById("state");
      state.textContent = `the controller does not answer (${error.message}); what is shown is old`;
      state.className = "bad";
    }
  }
  setTimeout(refresh, PERIOD_MS * Math.min(1 + failures, 10));
}

async function begin() {
  const figures = await (await fetch("api/figures")).json();
  for (const item of figures.items) await Bokeh.embed.embed_item(item);
  for (const model of models()) if (model.type === "ColumnDataSource") sources[model.name] = model;
  showLegend(figures.legend);
  applyTheme();
  await refresh();
}

begin().catch((error) => {
  const state = document.getElementById("state");
  state.textContent = error.message;
  state.className = "bad";
});
