// One chart: uPlot, with our colours, a readout in words, zoom by dragging, full screen and files.

import { saveCsv, savePng, saveSvg } from "./chart_export.js";
import { el, number, percent } from "./dom.js";
import { axisRange, onOneGrid, smooth } from "./series.js";

const HEIGHT = 180;

/** The colour of the n-th line, from the style sheet. */
export function lineColour(n) {
  return style(`--line-${n % 8}`);
}

function style(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/**
 * chart({name, title, hint, share}, {zoomed, reset}) is a figure with draw(lines, view):
 * lines: [{label, colour, steps, x, mean, low, high, exact, dashed}], view: {smoothing, range, log, axis}.
 * `exact` lines are evaluations: few points, drawn as they are and never smoothed.
 */
export function chart({ name, title, hint, share }, { zoomed, reset }) {
  const readout = el("output", { class: "readout", title: "as drawn (as logged)" });
  const plot = el("div", { class: "plot" });
  const legend = el("p", { class: "lines" });
  const full = el("button", { class: "plain", "aria-label": `${title}: full screen`, title: "Full screen", on: { click: () => enlarge() } }, "⤢");
  const saved = (save) => () => { save({ name, title, lines: shownLines, canvas: plot.querySelector("canvas"), style, axis: shownView.axis }); menu.open = false; };
  const menu = el("details", { class: "menu" }, el("summary", { "aria-label": `${title}: save`, title: "Save" }, "⤓"),
    el("div", {}, el("button", { on: { click: saved(savePng) } }, "PNG"), el("button", { on: { click: saved(saveSvg) } }, "SVG"), el("button", { on: { click: saved(saveCsv) } }, "CSV")));
  const figure = el("figure", { class: "chart", role: "group", "aria-label": name },
    el("figcaption", {}, el("b", { title: hint }, title), readout, el("span", { class: "tools" }, full, menu)), plot, legend);
  const written = share ? percent : number;
  let current = null;
  let shape = "";
  let shownLines = [];
  let shownView = {};
  let values = [];

  function enlarge(wanted = !figure.classList.contains("full")) {
    figure.classList.toggle("full", wanted);
    full.setAttribute("title", wanted ? "Back (Esc)" : "Full screen");
    if (wanted) document.addEventListener("keydown", leaveFull);
    else document.removeEventListener("keydown", leaveFull);
  }

  function leaveFull(event) {
    if (event.key === "Escape") enlarge(false);
  }

  function draw(lines, view) {
    shownLines = lines.filter((line) => line.steps.length).map((line) => ({ ...line, drawn: smooth(line.mean, line.exact ? 0 : view.smoothing) }));
    shownView = view;
    const { data, series, bands } = columns(shownLines, view);
    values = shownLines.map(() => el("b", {}));
    legend.replaceChildren(...(shownLines.length > 1 ? shownLines.slice(0, 8).map((line, i) => el("span", { class: line.dashed ? "dashed" : "" }, el("i", { class: `swatch line-${line.place}`, "aria-hidden": "true" }), line.label, values[i])) : []));
    latest();
    const wanted = JSON.stringify([shownLines.map((l) => [l.label, l.colour]), series.length, data[0].length < 60, view.range, view.log, view.axis, view.smoothing > 0, style("--ink")]);
    if (current && wanted === shape) return current.setData(data);
    current?.destroy();
    shape = wanted;
    current = new uPlot(options(series, bands, view), data, plot);
  }

  function options(series, bands, view) {
    const axis = { stroke: style("--faint"), grid: { stroke: style("--grid"), width: 1 }, ticks: { show: false } };
    const font = "11px system-ui, sans-serif";
    return {
      width: Math.max(plot.clientWidth, 200),
      height: Math.max(plot.clientHeight, HEIGHT),
      legend: { show: false },
      cursor: { sync: { key: "steps" }, drag: { x: true, y: false, setScale: false }, points: { size: 6 } },
      scales: {
        x: { time: false, range: view.range || ((_, low, high) => [low, Math.max(high, low + 1)]) },
        y: view.log ? { distr: 3 } : { range: (_, low, high) => axisRange(low, high, share) },
      },
      axes: [
        { ...axis, size: 28, font, values: (_, ticks) => ticks.map((t) => (view.axis === "step" ? (Number.isInteger(t) ? t : "") : shortNumber(t))) },
        { ...axis, size: 50, font, values: (_, ticks) => ticks.map((t) => (t === null ? "" : share ? percent(t) : shortNumber(t))) },
      ],
      series: [{}, ...series],
      bands,
      hooks: {
        setCursor: [(u) => { if (u.cursor.idx === null || u.cursor.idx === undefined) latest(); else at(u); }],
        setSelect: [(u) => {
          if (u.select.width < 8) return;
          zoomed(u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x"));
          u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
        }],
        ready: [(u) => u.over.addEventListener("dblclick", reset)],
      },
    };
  }

  /** What each line says at these places, in the legend; of a single line, beside the title. */
  function say(where, places) {
    const texts = shownLines.map((line, i) => {
      const [drawn, logged] = [line.drawn[places[i]] ?? null, line.mean[places[i]] ?? null];
      // The number that the line shows comes first; what was logged follows where smoothing changed it.
      return written(drawn) === written(logged) ? [written(drawn)] : [written(drawn), `(${written(logged)})`];
    });
    texts.forEach(([drawn, logged], i) => { values[i].textContent = [drawn, logged].filter(Boolean).join(" "); values[i].title = logged ? "smoothed (as logged)" : ""; });
    // What does not fit beside the title is left out: first what was logged, then the rest.
    readout.replaceChildren(...[where, ...(shownLines.length === 1 ? texts[0] : [])].filter(Boolean).map((text) => el("span", {}, text)));
  }

  function latest() {
    say("", shownLines.map((line) => lastPlace(line.mean)));
  }

  function at(u) {
    const place = u.data[0][u.cursor.idx];
    const where = place === 0 ? "before training" : shownView.axis === "step" ? `step ${place}` : `${shortNumber(place)} ${shownView.axis}`;
    say(where, shownLines.map((line) => line.x.indexOf(place)));
  }

  new ResizeObserver(() => current?.setSize({ width: Math.max(plot.clientWidth, 200), height: Math.max(plot.clientHeight, HEIGHT) })).observe(plot);
  return { figure, draw, destroy: () => { enlarge(false); current?.destroy(); } };
}

/** The table that uPlot draws: for each line its band, its raw values (faint) and its smoothed ones. */
function columns(lines, { smoothing, log }) {
  const table = [];
  const series = [];
  const bands = [];
  const few = lines.every((line) => line.steps.length < 40);
  const drawn = (values) => (log ? values.map((v) => (v === null || v <= 0 ? null : v)) : values);
  for (const line of lines) {
    const add = (values, look, points = false) => {
      table.push({ steps: line.x, values: drawn(values) });
      series.push({ spanGaps: true, points: { show: points, size: 5, fill: look.stroke }, ...look });
    };
    if (line.low && line.high) {
      bands.push({ series: [series.length + 2, series.length + 1], fill: `${line.colour}2a` });
      add(line.low, { width: 0 });
      add(line.high, { width: 0 });
    }
    if (smoothing > 0 && !line.exact) add(line.mean, { stroke: `${line.colour}55`, width: 1 });
    add(line.drawn, { stroke: line.colour, width: 1.8, ...(line.dashed ? { dash: [5, 5] } : {}) }, line.exact || few);
  }
  return { data: onOneGrid(table), series, bands };
}

/** 12500 -> "12.5k" */
export function shortNumber(value) {
  const size = Math.abs(value);
  if (size >= 1e9) return `${Number((value / 1e9).toPrecision(3))}G`;
  if (size >= 1e6) return `${Number((value / 1e6).toPrecision(3))}M`;
  if (size >= 1e4) return `${Number((value / 1e3).toPrecision(3))}k`;
  return Number(value.toPrecision(4)).toString();
}

function lastPlace(values) {
  for (let i = values.length - 1; i >= 0; i -= 1) if (values[i] !== null) return i;
  return -1;
}
