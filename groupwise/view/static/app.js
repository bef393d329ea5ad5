// The frame around the pages: which runs are shown, which page, the keys, and news every other second.

import { ask } from "./api.js";
import { lineColour } from "./chart.js";
import { announce, el, redraw } from "./dom.js";
import { findings } from "./findings.js";
import { heldOut } from "./held_out.js";
import { bindKeys, showHelp } from "./keys.js";
import { overview } from "./overview.js";
import { problem } from "./problem.js";
import { problems } from "./problems.js";
import { rollouts } from "./rollouts.js";
import { isHidden, runTable } from "./run_table.js";
import { settings } from "./settings.js";
import { progress } from "./standing.js";
import { hideTooltip } from "./tooltip.js";
import { visibleLine } from "./visible_text.js";

const NEWS_EVERY = 2000;
const SHOWN_AT_FIRST = 6;
const PAGES = [
  ["overview", "Overview", overview],
  ["rollouts", "Answers", rollouts],
  ["problems", "Problems", problems],
  ["settings", "Settings", settings],
  ["findings", "Findings", findings],
  ["runs", "Runs", runTable],
];
const ROUTES = { ...Object.fromEntries(PAGES.map(([key, , make]) => [key, make])), problem, "held-out": heldOut };
const UNDER = { problem: "problems", "held-out": "problems" };

const state = { runs: [], shown: null, chosen: false, page: null };

/** What pages may ask of the frame. */
const frame = {
  runs: () => state.runs,
  shown: () => state.runs.filter((run) => state.shown.has(run.id)),
  run: (id) => state.runs.find((run) => run.id === id) || frame.shown()[0] || state.runs[0],
  place: (run) => state.runs.findIndex((one) => one.id === run.id) % 8,
  colour: (run) => lineColour(frame.place(run)),
  isShown: (run) => state.shown.has(run.id),
  show: (id, wanted) => show(id, wanted),
  redrawRuns: () => drawRuns(),
  go: (hash) => { location.hash = hash; },
  /** What was chosen goes into the address, so that a link shows the same: put({x: "seconds", log: null}) */
  put: (changes) => {
    const [path, query = ""] = location.hash.split("?");
    const now = new URLSearchParams(query);
    for (const [name, value] of Object.entries(changes)) {
      if (value === null || value === undefined || value === "") now.delete(name);
      else now.set(name, value);
    }
    history.replaceState(null, "", `${path || "#/overview"}${now.size ? `?${now}` : ""}`);
  },
};

/** "#/rollouts/RUN/STEP?group=3" -> {page, parts, query} */
function route() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [page, ...parts] = path.split("/").map(decodeURIComponent);
  return { page: ROUTES[page] ? page : "overview", parts, query: new URLSearchParams(query) };
}

function openPage() {
  const { page, parts, query } = route();
  takeShown(query);
  if (!state.runs.length) return document.getElementById("main").replaceChildren(el("p", {}, "There are no runs here any more."));
  // A page that is open already may take the new address itself, keeping its place.
  if (state.page?.name === page && state.page.moved?.(parts, query)) return;
  state.page?.leave?.();
  hideTooltip();
  state.page = { name: page, ...ROUTES[page](frame, parts, query) };
  document.getElementById("main").replaceChildren(state.page.element);
  if (state.chosen) frame.put({ runs: [...state.shown].join(",") });
  drawNavigation(UNDER[page] || page);
  const title = PAGES.find(([key]) => key === page)?.[1] || { problem: "One problem", "held-out": "Test problems" }[page];
  document.title = `${title} – groupwise`;
  announce(title);
}

/** The runs that an address names, if it names any. */
function takeShown(query) {
  const named = (query.get("runs") || "").split(",").filter((id) => state.runs.some((run) => run.id === id));
  if (!named.length) return;
  state.shown = new Set(named);
  state.chosen = true;
  drawRuns();
}

function drawNavigation(current) {
  redraw(document.getElementById("pages"), PAGES.map(([key, label], i) =>
    el("a", { href: `#/${key}`, "data-key": key, "aria-current": key === current ? "page" : null, title: `${label} (${i + 1})` }, label)));
}

function drawRuns() {
  const listed = state.runs.filter((run) => !isHidden(run) || state.shown.has(run.id));
  const lines = listed.map((run) => {
    const box = el("input", { type: "checkbox", "data-key": run.id, checked: state.shown.has(run.id), on: { change: () => show(run.id, box.checked) } });
    const swatch = el("span", { class: `swatch line-${frame.place(run)}`, "aria-hidden": "true" });
    return el("label", { class: `run${run.problem ? " wrong" : ""}`, title: run.problem || visibleLine(run.name) }, box, swatch,
      el("span", { class: "run-name" }, visibleLine(run.name)), el("small", {}, progress(run)));
  });
  const hidden = state.runs.length - listed.length;
  redraw(document.getElementById("runs"), el("h2", {}, "Runs"), lines, hidden ? el("p", { class: "faint" }, el("a", { href: "#/runs", "data-key": "hidden" }, `${hidden} hidden`)) : null);
}

function show(id, wanted) {
  if (wanted) state.shown.add(id);
  else state.shown.delete(id);
  state.chosen = true;
  sessionStorage.setItem("groupwise.shown", JSON.stringify([...state.shown]));
  frame.put({ runs: [...state.shown].join(",") });
  drawRuns();
  state.page?.changed?.();
}

/** The list of runs; tells the page when something in it is new. */
async function news() {
  const before = JSON.stringify(state.runs.map((run) => [run.id, run.generation, run.last_step, run.status]));
  state.runs = (await ask("runs")).runs;
  if (!state.shown) {
    const kept = JSON.parse(sessionStorage.getItem("groupwise.shown") || "[]").filter((id) => state.runs.some((run) => run.id === id));
    const latest = state.runs.filter((run) => !isHidden(run) && !run.problem).sort((a, b) => (a.idle_seconds ?? 1e12) - (b.idle_seconds ?? 1e12)).slice(0, SHOWN_AT_FIRST);
    state.shown = new Set(kept.length ? kept : latest.map((run) => run.id));
  }
  drawRuns();
  const after = JSON.stringify(state.runs.map((run) => [run.id, run.generation, run.last_step, run.status]));
  return before !== after;
}

async function watch() {
  try {
    if (document.visibilityState === "visible" && (await news())) await state.page?.changed?.();
    document.body.classList.remove("offline");
  } catch (error) {
    document.body.classList.add("offline");
    document.getElementById("runs").dataset.problem = error.message;
  }
  setTimeout(watch, NEWS_EVERY);
}

function switchTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("groupwise.theme", root.dataset.theme);
  state.page?.changed?.();
}

document.getElementById("theme").addEventListener("click", switchTheme);
document.getElementById("help-button").addEventListener("click", showHelp);
document.getElementById("skip").addEventListener("click", () => document.getElementById("main").focus());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => state.page?.changed?.());
bindKeys({
  pages: PAGES.map(([key]) => key),
  go: frame.go,
  theme: switchTheme,
  page: () => state.page,
});

await news();
window.addEventListener("hashchange", openPage);
openPage();
setTimeout(watch, NEWS_EVERY);
document.body.dataset.ready = "yes";
