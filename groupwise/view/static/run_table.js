// All runs in a table: search, sort, group by a setting, hide, notes and tags. Notes stay in this browser.

import { ask } from "./api.js";
import { el, labelled, number, percent, redraw, select } from "./dom.js";
import { ago, standing } from "./standing.js";
import { visibleLine } from "./visible_text.js";

const KEPT = "groupwise.notes";
const COLUMNS = [
  ["name", "run", (run) => run.name],
  ["status", "status", standing],
  ["last_step", "steps", (run) => run.last_step],
  ["reward", "reward", (run) => run.latest?.reward ?? null],
  ["before", "test before", (run) => tested(run, "before")[0]],
  ["after", "test after", (run) => tested(run, "after")[0]],
  ["model", "model", (run) => run.model || ""],
  ["seed", "seed", (run) => run.seed],
  ["idle_seconds", "last logged", (run) => run.idle_seconds],
];

/** [0.27, "27 %"]: the accuracy on the test problems, or their reward where nothing judges answers. */
function tested(run, moment) {
  const { accuracy, reward } = run.test || {};
  if (accuracy?.[moment] !== undefined) return [accuracy[moment], percent(accuracy[moment])];
  return reward?.[moment] === undefined ? [null, "–"] : [reward[moment], `reward ${number(reward[moment], 2)}`];
}

function kept() {
  try {
    return JSON.parse(localStorage.getItem(KEPT) || "{}") || {};
  } catch {
    return {};
  }
}

function keep(id, changes) {
  const all = kept();
  all[id] = { ...all[id], ...changes };
  localStorage.setItem(KEPT, JSON.stringify(all));
}

export function isHidden(run) {
  return Boolean(kept()[run.id]?.hidden);
}

/** sorted(runs, "reward", true) puts what is unknown last, either way. */
export function sorted(runs, key, down) {
  const value = COLUMNS.find(([name]) => name === key)?.[2] || ((run) => run.name);
  const order = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
  return [...runs].sort((one, other) => {
    const [a, b] = [value(one), value(other)];
    if (a === null || b === null) return (a === null) - (b === null);
    return down ? order(b, a) : order(a, b);
  });
}

export function runTable(frame, _, query) {
  const view = { sort: query.get("sort") || "name", down: query.has("down"), by: query.get("by") || "", q: query.get("q") || "" };
  const holder = el("div", { class: "scroll" });
  const search = el("input", { type: "search", placeholder: "run, model, tag, note (/)", "aria-label": "Search runs", value: view.q, on: { input: () => { view.q = search.value; frame.put({ q: view.q }); draw(); } } });
  const group = el("span", {});
  let settings = new Map();

  async function loadSettings() {
    const runs = frame.runs().slice(0, 50);
    const { rows } = await ask("settings", { run: runs.map((run) => run.id) });
    settings = new Map(rows.filter((row) => row.differs).map((row) => [row.name, new Map(runs.map((run, i) => [run.id, row.values[i]]))]));
    const names = [["", "nothing"], ...[...settings.keys()].map((name) => [name, visibleLine(name)])];
    redraw(group, select(names, view.by, (value) => { view.by = value; frame.put({ by: value }); draw(); }, "Group by"));
    draw();
  }

  function draw() {
    const notes = kept();
    const text = view.q.toLowerCase();
    const found = frame.runs().filter((run) => [run.name, run.model, run.task, notes[run.id]?.note, notes[run.id]?.tags].join(" ").toLowerCase().includes(text));
    const ordered = sorted(found, view.sort, view.down);
    const groups = new Map();
    for (const run of ordered) {
      const key = view.by ? settings.get(view.by)?.get(run.id) ?? "–" : "";
      groups.set(key, [...(groups.get(key) || []), run]);
    }
    const bodies = [...groups].map(([key, runs]) => el("tbody", {}, view.by ? el("tr", { class: "group" }, el("th", { colspan: COLUMNS.length + 3, scope: "rowgroup" }, `${visibleLine(view.by)} = ${visibleLine(key)}`, el("small", {}, `${runs.length} ${runs.length === 1 ? "run" : "runs"}, mean test accuracy after training ${percent(mean(runs.map((run) => run.test?.accuracy?.after)))}`))) : null, runs.map((run) => row(run, notes[run.id] || {}))));
    redraw(holder, el("table", { class: "table runs-table" }, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, ""), COLUMNS.map(heading), el("th", { scope: "col" }, "tags"), el("th", { scope: "col" }, "note"))), bodies));
  }

  function heading([key, label]) {
    const on = view.sort === key;
    return el("th", { scope: "col", "aria-sort": on ? (view.down ? "descending" : "ascending") : "none" }, el("button", { class: "plain", "data-key": `sort ${key}`, on: { click: () => {
      view.down = on ? !view.down : false;
      view.sort = key;
      frame.put({ sort: key, down: view.down ? "yes" : null });
      draw();
    } } }, label, on ? (view.down ? " ↓" : " ↑") : ""));
  }

  function row(run, own) {
    const box = el("input", { type: "checkbox", "data-key": `show ${run.id}`, "aria-label": `Show ${visibleLine(run.name)}`, checked: frame.isShown(run), on: { change: () => frame.show(run.id, box.checked) } });
    const hide = el("button", { class: "plain", "data-key": `hide ${run.id}`, on: { click: () => { keep(run.id, { hidden: !own.hidden }); if (!own.hidden) frame.show(run.id, false); frame.redrawRuns(); draw(); } } }, own.hidden ? "unhide" : "hide");
    const field = (name, label) => {
      const input = el("input", { class: "inline", "data-key": `${name} ${run.id}`, "aria-label": `${label} of ${visibleLine(run.name)}`, placeholder: label, value: own[name] || "", maxlength: 500, on: { change: () => keep(run.id, { [name]: input.value }) } });
      return el("td", {}, input);
    };
    return el("tr", { class: own.hidden ? "hidden-run" : "", tabindex: "-1", "data-stop": "" }, el("td", {}, box),
      el("th", { scope: "row" }, el("span", { class: `swatch line-${frame.place(run)}`, "aria-hidden": "true" }), " ", el("a", { href: `#/rollouts/${run.id}`, title: visibleLine(run.name), "data-key": `open ${run.id}` }, visibleLine(run.name)), " ", hide, run.problem ? el("p", { class: "problem" }, visibleLine(run.problem)) : null),
      el("td", {}, standing(run)), el("td", {}, run.planned_steps ? `${run.last_step} / ${run.planned_steps}` : String(run.last_step)), el("td", {}, number(run.latest?.reward)),
      el("td", {}, tested(run, "before")[1]), el("td", {}, tested(run, "after")[1]), el("td", {}, visibleLine(run.model || "")), el("td", {}, run.seed ?? "–"),
      el("td", {}, ago(run.idle_seconds)), field("tags", "tags"), field("note", "note"));
  }

  draw();
  loadSettings().catch(() => {});
  return { element: el("div", {}, el("div", { class: "bar" }, search, labelled("Group by", group)), holder, el("p", { class: "faint" }, "Notes, tags and what is hidden are kept in this browser; run folders are only read.")),
    changed: () => { if (!holder.contains(document.activeElement) || document.activeElement.tagName !== "INPUT" || document.activeElement.type === "checkbox") draw(); } };
}

function mean(values) {
  const known = values.filter((value) => value !== null && value !== undefined);
  return known.length ? known.reduce((a, b) => a + b, 0) / known.length : null;
}
