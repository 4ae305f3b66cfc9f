// The page of a coordinator of sites: polls its status and draws it.
"use strict";

const EVERY_MS = 2000;
const SVG = "http://www.w3.org/2000/svg";
const rounds = [];  // [number, seconds], as seen since the page was opened

function drawn(name, attributes, text) {
  const element = document.createElementNS(SVG, name);
  for (const key in attributes) element.setAttribute(key, attributes[key]);
  if (text !== undefined) element.textContent = text;
  return element;
}

function siteCell(row, text, kind) {
  const element = document.createElement(kind || "td");
  element.textContent = text;
  row.append(element);
}

function drawSites(status, place) {
  const names = Object.keys(status.sites).sort();
  const picture = drawn("svg", {viewBox: "0 0 400 400", width: "100%", height: "100%"});
  const at = {};
  names.forEach((name, k) => {
    const turn = 2 * Math.PI * k / names.length;
    at[name] = [200 + 150 * Math.sin(turn), 200 - 150 * Math.cos(turn)];
  });
  const most = Math.max(1e-9, ...status.links.map((link) => link.mbps));
  for (const link of status.links) {
    const from = at[link.from], to = at[link.to];
    if (!from || !to) continue;
    const across = [to[1] - from[1], from[0] - to[0]], length = Math.hypot(...across) || 1;
    const by = [3 * across[0] / length, 3 * across[1] / length];  // the two directions lie beside each other
    const line = drawn("line", {x1: from[0] + by[0], y1: from[1] + by[1], x2: to[0] + by[0], y2: to[1] + by[1],
      stroke: "#a78bfa", "stroke-width": 0.5 + 4 * link.mbps / most, "stroke-opacity": 0.7});
    const words = `${link.from} to ${link.to}: ${link.mbps.toFixed(1)} Mbit/s, ${link.round_trip_ms.toFixed(1)} ms`;
    line.append(drawn("title", {}, words));
    picture.append(line);
  }
  for (const name of names) {
    const site = status.sites[name], late = status.waits_for.includes(name);
    picture.append(drawn("circle", {cx: at[name][0], cy: at[name][1], r: 9,
      fill: late ? "#d73a49" : site.takes_part ? "#1f77b4" : "#8a94a3"}));
    picture.append(drawn("text", {x: at[name][0], y: at[name][1] - 14, "text-anchor": "middle",
      fill: "currentColor", "font-size": 12}, name));
  }
  place.replaceChildren(picture);
}

function listSites(status, place) {
  const table = document.createElement("table"), head = document.createElement("tr");
  for (const words of ["site", "address", "part", "round"]) siteCell(head, words, "th");
  table.append(head);
  for (const name of Object.keys(status.sites).sort()) {
    const site = status.sites[name], row = document.createElement("tr");
    const part = status.waits_for.includes(name) ? "waited for" : site.takes_part ? "takes part" : "has joined";
    for (const words of [name, site.address, part, site.round === null ? "-" : site.round]) siteCell(row, words);
    table.append(row);
  }
  place.replaceChildren(table);
}

function drawRounds(status, place) {
  const last = status.last;
  if (last && last.round !== undefined && (!rounds.length || rounds[rounds.length - 1][0] !== last.round)) {
    rounds.push([last.round, last.seconds]);
    rounds.splice(0, rounds.length - 120);
  }
  const picture = drawn("svg", {viewBox: "0 0 600 160", width: "100%", preserveAspectRatio: "xMinYMin meet"});
  const most = Math.max(1e-9, ...rounds.map((each) => each[1]));
  const caption = document.createElement("small");
  if (rounds.length) caption.textContent = `seconds of each round: last ${rounds[rounds.length - 1][1].toFixed(3)}, longest ${most.toFixed(3)}`;
  rounds.forEach((each, k) => {
    const height = 140 * each[1] / most;
    const bar = drawn("rect", {x: 5 * k, y: 150 - height, width: 4, height: height, fill: "#1f77b4"});
    bar.append(drawn("title", {}, `round ${each[0]}: ${each[1].toFixed(3)} s`));
    picture.append(bar);
  });
  place.replaceChildren(caption, picture);
}

function siteSummary(status) {
  const all = Object.values(status.sites), part = all.filter((site) => site.takes_part).length;
  let words = `${all.length} sites, ${part} take part; round ${status.round}`;
  if (!status.begun) words += `; waits for ${status.waits_for_sites} more sites`;
  else if (status.waits_for.length) words += `; waits for ${status.waits_for.join(", ")}`;
  for (const task of status.under_way) words += `; round ${task.round}: ${task.without_result.length} of ${task.sites} have no result yet`;
  if (status.measuring) words += "; the network is being measured";
  return words;
}

function events(status) {
  const lines = status.events.map((event) => {
    const line = document.createElement("li"), at = document.createElement("time"), words = document.createElement("span");
    at.textContent = new Date(1000 * event.at).toLocaleTimeString();
    words.textContent = event.line;
    line.append(at, words);
    return line;
  });
  document.getElementById("events").replaceChildren(...lines.reverse());
}

async function look() {
  const state = document.getElementById("state");
  try {
    const answer = await fetch("api/status");
    if (!answer.ok) throw new Error(answer.status);
    const status = await answer.json();
    document.getElementById("summary").textContent = siteSummary(status);
    drawSites(status, document.getElementById("network"));
    listSites(status, document.getElementById("jobs"));
    drawRounds(status, document.getElementById("rates"));
    events(status);
    state.textContent = status.acts ? "live" : "waits for sites";
    state.className = "";
  } catch (error) {
    state.textContent = "the coordinator does not answer";
    state.className = "bad";
  }
  setTimeout(look, EVERY_MS);
}

look();
