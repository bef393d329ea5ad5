// Curves of the runs shown, laid over each other; runs that differ only in their seed as one band.

import { chart } from "./chart.js";
import { el, labelled, number, whenSeen } from "./dom.js";
import { grouped, hint } from "./metric_words.js";
import { metricsOf, namesOf, update } from "./metric_store.js";
import { band } from "./series.js";
import { visibleLine } from "./visible_text.js";

const TILES = ["reward", "accuracy", "eval/accuracy", "kl", "entropy", "tokens", "truncated", "seconds"];

export function overview(frame) {
  const view = { smoothing: Number(localStorage.getItem("groupwise.smoothing") ?? 0.5), bands: true, range: null };
  const tiles = el("div", { class: "tiles" });
  const sections = el("div", {});
  const problem = el("p", { class: "problem", role: "alert" });
  const charts = new Map();
  let layout = "";

  const slider = el("input", { type: "range", min: 0, max: 0.98, step: 0.01, value: view.smoothing, on: { input: () => {
    view.smoothing = Number(slider.value);
    localStorage.setItem("groupwise.smoothing", view.smoothing);
    drawAll();
  } } });
  const bands = el("input", { type: "checkbox", checked: true, on: { change: () => { view.bands = bands.checked; drawAll(); } } });
  const whole = el("button", { hidden: true, on: { click: () => zoom(null) } }, "Show all steps");
  const bar = el("div", { class: "bar" }, labelled("Smoothing", slider), labelled("Seeds as a band", bands, "tick"), whole,
    el("span", { class: "faint wide" }, "drag on a chart to zoom, double-click to go back"));

  /** The lines of one metric: a run each, or a band where several runs are one experiment. */
  function lines(name) {
    const families = new Map();
    for (const run of frame.shown()) {
      const series = metricsOf(run).series[name];
      if (!series) continue;
      const key = view.bands ? run.family : run.id;
      families.set(key, [...(families.get(key) || []), { run, series }]);
    }
    return [...families.values()].map((members) => {
      const label = visibleLine(members[0].run.name);
      const colour = frame.colour(members[0].run);
      if (members.length === 1) return { label, colour, ...members[0].series };
      return { label: `${label} and ${members.length - 1} more`, colour, ...band(members.map((member) => member.series)) };
    });
  }

  function drawAll() {
    for (const [name, one] of charts) if (one.seen) draw(name, one);
  }

  function draw(name, one) {
    const [from, to] = view.range || [null, null];
    one.draw(lines(name), { smoothing: view.smoothing, from, to });
  }

  function zoom(range) {
    view.range = range && range[1] > range[0] ? range : null;
    whole.hidden = !view.range;
    changed();
  }

  function layOut() {
    const groups = grouped(namesOf(frame.shown()));
    const wanted = JSON.stringify(groups);
    if (wanted === layout) return;
    layout = wanted;
    charts.forEach((one) => one.destroy());
    charts.clear();
    sections.replaceChildren(...groups.map(([title, names]) => {
      const figures = names.map((name) => {
        const one = chart(visibleLine(name), hint(name), { zoomed: (from, to) => zoom([from, to]), reset: () => zoom(null) });
        charts.set(name, one);
        whenSeen(one.figure, () => { one.seen = true; draw(name, one); });
        return one.figure;
      });
      return el("section", {}, el("h2", {}, title), el("div", { class: "charts" }, figures));
    }));
  }

  function drawTiles() {
    const run = frame.shown()[0];
    const { latest, broken } = run ? metricsOf(run) : { latest: {}, broken: 0 };
    const names = TILES.filter((name) => name in latest);
    const title = run ? [el("div", { class: "tile" }, el("b", {}, `step ${run.last_step}`), el("span", {}, visibleLine(run.name)))] : [];
    tiles.replaceChildren(...title, ...names.map((name) => el("div", { class: "tile", title: hint(name) }, el("b", {}, number(latest[name])), el("span", {}, name))));
    problem.textContent = broken ? `${broken} lines of metrics.jsonl could not be read and are left out.` : "";
  }

  async function changed() {
    try {
      await update(frame.shown(), view.range);
      drawTiles();
      layOut();
      drawAll();
    } catch (error) {
      problem.textContent = error.message;
    }
  }

  changed();
  return { element: el("div", {}, problem, tiles, bar, sections), changed, leave: () => charts.forEach((one) => one.destroy()) };
}
