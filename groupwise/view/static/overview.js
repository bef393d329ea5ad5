// How the runs shown are going: in words, then in six charts, then in all the others.

import { chart, shortNumber } from "./chart.js";
import { el, labelled, number, percent, redraw, select, whenSeen } from "./dom.js";
import { distributions } from "./heatmap.js";
import { axesOf, metricLines } from "./metric_lines.js";
import { grouped, headlines, hint, isShare, title } from "./metric_words.js";
import { metricsOf, namesOf, update } from "./metric_store.js";
import { isConstant } from "./series.js";
import { story } from "./story.js";
import { visibleLine } from "./visible_text.js";

const MOST_TOLD = 4;

export function overview(frame, _, query) {
  const view = {
    smoothing: Number(query.get("smooth") ?? localStorage.getItem("groupwise.smoothing") ?? 0.5),
    bands: query.get("bands") !== "no",
    axis: query.get("x") || "step",
    log: query.has("log"),
    q: query.get("q") || "",
    range: (query.get("range") || "").split("-").map(Number).filter(Number.isFinite),
  };
  if (view.range.length !== 2 || view.range[1] <= view.range[0]) view.range = null;
  const open = new Set((query.get("open") || "").split(",").filter(Boolean));
  const stories = el("div", { class: "stories" });
  const sections = el("div", {});
  const others = el("p", { class: "faint others" });
  const nothing = el("p", { class: "empty" }, "No run is ticked. Tick one in the list of runs to see how it is going.");
  const problem = el("p", { class: "problem", role: "alert" });
  const histograms = distributions(frame);
  const charts = new Map();
  const told = new Map();
  let layout = "";

  const slider = el("input", { type: "range", min: 0, max: 0.98, step: 0.01, value: view.smoothing, on: { input: () => {
    view.smoothing = Number(slider.value);
    localStorage.setItem("groupwise.smoothing", view.smoothing);
    drawAll();
  }, change: () => frame.put({ smooth: view.smoothing }) } });
  const bands = el("input", { type: "checkbox", checked: view.bands, on: { change: () => { view.bands = bands.checked; frame.put({ bands: view.bands ? null : "no" }); drawAll(); } } });
  const log = el("input", { type: "checkbox", checked: view.log, on: { change: () => { view.log = log.checked; frame.put({ log: view.log ? "yes" : null }); drawAll(); } } });
  const search = el("input", { type: "search", placeholder: "find a metric (/)", "aria-label": "Find a metric", value: view.q, on: { input: () => { view.q = search.value; frame.put({ q: view.q || null }); layOut(); drawAll(); } } });
  const seeds = labelled("Seeds as a band", bands, "tick");
  const axisHolder = el("span", {});
  const whole = el("button", { hidden: !view.range, on: { click: () => zoom(null) } }, "Show all steps");
  const bar = el("div", { class: "bar" }, search, labelled("Over", axisHolder), labelled("Smoothing", slider), labelled("Log scale", log, "tick"), seeds, whole,
    el("span", { class: "faint wide hint" }, "drag a chart to zoom"));

  function drawAxes() {
    const known = axesOf(frame.shown());
    const families = frame.shown().map((run) => run.family);
    seeds.hidden = new Set(families).size === families.length;
    if (!known.some(([axis]) => axis === view.axis)) view.axis = "step";
    const keys = known.map(([axis]) => axis).join();
    if (axisHolder.dataset.keys === keys) return;
    axisHolder.dataset.keys = keys;
    redraw(axisHolder, select(known, view.axis, (value) => { view.axis = value; frame.put({ x: value === "step" ? null : value }); zoom(null); }, "Axis"));
  }

  function drawAll() {
    for (const [name, one] of charts) if (one.seen) draw(name, one);
  }

  function draw(name, one) {
    one.draw(metricLines(frame, name, view), view);
  }

  function zoom(range) {
    const steps = range && view.axis === "step" ? [Math.max(0, Math.round(range[0])), Math.round(range[1])] : range;
    view.range = steps && steps[1] > steps[0] ? steps : null;
    whole.hidden = !view.range;
    frame.put({ range: view.range ? view.range.join("-") : null });
    changed();
  }

  function figure(name) {
    const one = chart({ name: visibleLine(name), title: visibleLine(title(name)), hint: hint(name), share: isShare(name) }, { zoomed: (from, to) => zoom([from, to]), reset: () => zoom(null) });
    charts.set(name, one);
    whenSeen(one.figure, () => { one.seen = true; draw(name, one); });
    return one.figure;
  }

  const figures = (names) => el("div", { class: "charts" }, names.map(figure));

  function layOut() {
    const names = namesOf(frame.shown());
    const [moving, still] = parted(names, (name) => !isConstant(metricLines(frame, name, { bands: false, axis: "step" })));
    const found = view.q ? moving.filter((name) => `${name} ${title(name)}`.toLowerCase().includes(view.q.toLowerCase())) : null;
    const wanted = JSON.stringify([moving, still, found, frame.shown().length]);
    if (wanted === layout) return;
    layout = wanted;
    charts.forEach((one) => one.destroy());
    charts.clear();
    if (found) return redraw(sections, found.length ? figures(found) : el("p", { class: "faint" }, "No metric has this in its name."));
    const first = headlines(moving);
    const rest = grouped(moving.filter((name) => !first.includes(name)));
    if (!frame.shown().length) return redraw(sections);
    if (!names.length) return redraw(sections, el("p", { class: "empty" }, "Charts appear with the first step."));
    redraw(sections, figures(first), histograms.element, ...rest.map(([heading, own]) => section(heading, own)), constants(still));
  }

  function section(heading, names) {
    const holder = el("details", { class: "section", open: open.has(heading), on: { toggle: () => {
      if (holder.open) open.add(heading);
      else open.delete(heading);
      frame.put({ open: [...open].join(",") || null });
    } } }, el("summary", { "data-key": heading }, heading, el("small", {}, `${names.length} ${names.length === 1 ? "chart" : "charts"}`)), figures(names));
    return holder;
  }

  function constants(names) {
    if (!names.length) return null;
    const value = (name) => metricLines(frame, name, { bands: false, axis: "step" })[0]?.mean.find((one) => one !== null);
    return el("p", { class: "faint constants" }, el("b", {}, "Did not change: "), names.map((name) => `${visibleLine(name)} ${written(name, value(name))}`).join(" · "));
  }

  async function tell() {
    const runs = [...frame.shown()].sort((a, b) => (a.idle_seconds ?? 0) - (b.idle_seconds ?? 0));
    for (const run of runs.slice(0, MOST_TOLD)) {
      if (!told.has(run.id)) told.set(run.id, story(frame, run));
      told.get(run.id).update(run);
    }
    const wanted = runs.slice(0, MOST_TOLD).map((run) => told.get(run.id).element);
    if (runs.length > MOST_TOLD) wanted.push(others);
    if (!runs.length) wanted.push(nothing);
    others.replaceChildren(`The ${MOST_TOLD} that logged last are told here; all ${runs.length} are drawn below and are in `, el("a", { href: "#/runs" }, "the table of runs"), ".");
    bar.hidden = !runs.length;
    if (wanted.some((one, i) => stories.children[i] !== one) || stories.childElementCount !== wanted.length) redraw(stories, wanted);
    const broken = runs.map((run) => metricsOf(run).broken || 0).reduce((a, b) => a + b, 0);
    problem.textContent = broken ? `${broken} lines of metrics.jsonl could not be read and are left out.` : "";
  }

  async function changed() {
    try {
      await update(frame.shown(), view.axis === "step" ? view.range : null);
      tell();
      drawAxes();
      layOut();
      drawAll();
      histograms.changed();
    } catch (error) {
      problem.textContent = error.message;
    }
  }

  changed();
  return { element: el("div", { class: "overview" }, problem, stories, bar, sections), changed, leave: () => { histograms.leave(); charts.forEach((one) => one.destroy()); } };
}

function written(name, value) {
  if (value === undefined) return "–";
  return isShare(name) ? percent(value) : Math.abs(value) >= 1e4 ? shortNumber(value) : number(value);
}

function parted(list, keep) {
  return [list.filter(keep), list.filter((one) => !keep(one))];
}
