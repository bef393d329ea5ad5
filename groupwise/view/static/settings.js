// The settings of the runs shown, side by side; of several, at first only where they differ.

import { ask } from "./api.js";
import { el, labelled } from "./dom.js";
import { textBlock, visibleLine } from "./visible_text.js";

export function settings(frame, _, query) {
  const holder = el("div", { class: "scroll" });
  const only = el("input", { type: "checkbox", on: { change: () => { frame.put({ only: only.checked ? "yes" : "no" }); draw(); } } });
  const search = el("input", { type: "search", placeholder: "setting (/)", "aria-label": "Search settings", value: query.get("q") || "", on: { input: () => { frame.put({ q: search.value }); draw(); } } });
  const problem = el("p", { class: "problem", role: "alert" });
  let rows = [];
  let runs = [];

  function draw() {
    const text = search.value.toLowerCase();
    const shown = rows.filter((row) => (!only.checked || row.differs) && row.name.toLowerCase().includes(text));
    const head = el("tr", {}, el("th", { scope: "col" }, "setting"), runs.map((run) => el("th", { scope: "col", title: visibleLine(run.name) }, visibleLine(run.name))));
    const lines = shown.map((row) => el("tr", {},
      el("th", { scope: "row" }, visibleLine(row.name)), row.values.map((value) => el("td", { class: value === row.values[0] ? "" : "other" }, value === null ? "–" : textBlock(value.slice(0, 2000), "")))));
    holder.replaceChildren(el("table", { class: "table settings" }, el("thead", {}, head), el("tbody", {}, lines)));
    if (!lines.length) holder.replaceChildren(el("p", { class: "empty" }, !runs.length ? "No run is ticked." : text ? "No setting has this in its name." : "These runs have the same settings."));
  }

  async function load() {
    runs = frame.shown();
    problem.textContent = runs.filter((run) => run.problem).map((run) => `${visibleLine(run.name)}: ${run.problem}`).join(" · ");
    rows = runs.length ? (await ask("settings", { run: runs.map((run) => run.id) })).rows : [];
    draw();
  }

  let last = "";
  function changed() {
    const now = frame.shown().map((run) => run.id).join();
    if (now !== last) load().catch((error) => { problem.textContent = error.message; });
    last = now;
  }

  only.checked = query.has("only") ? query.get("only") === "yes" : frame.shown().length > 1;
  changed();
  return { element: el("div", {}, el("div", { class: "bar" }, labelled("only differences", only, "tick"), search), problem, holder), changed };
}
