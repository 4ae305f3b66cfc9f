// The page of a coordinator of sites: asks for its status again and again, and shows it (sites.js draws).
"use strict";

const EVERY_MS = 2000;

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
    state.textContent = status.acts ? "live" : "stands by";
    state.className = "";
  } catch (error) {
    state.textContent = "the coordinator does not answer";
    state.className = "bad";
  }
  setTimeout(look, EVERY_MS);
}

look();
