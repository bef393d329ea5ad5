// One chart: uPlot, with our colours, a readout in words, and zoom by dragging.

import { el, number } from "./dom.js";
import { onOneGrid, smooth } from "./series.js";

const HEIGHT = 190;

/** The colour of the n-th line, from the style sheet. */
export function lineColour(n) {
  return style(`--line-${n % 8}`);
}

function style(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/**
 * chart("reward", "mean reward of the step's answers", {zoomed, reset}) is a figure with draw(lines, view):
 * lines: [{label, colour, steps, mean, low, high}], view: {smoothing, from, to}.
 */
export function chart(title, hint, { zoomed, reset }) {
  const readout = el("output", { class: "readout" });
  const plot = el("div", { class: "plot" });
  const figure = el("figure", { class: "chart", role: "group", "aria-label": title },
    el("figcaption", { title: hint }, el("b", {}, title), " ", readout), plot);
  let current = null;
  let shape = "";

  function draw(lines, view) {
    const known = lines.filter((line) => line.steps.length);
    const { data, series, bands } = columns(known, view.smoothing);
    readout.textContent = latest(known);
    const gapless = data[0].length < 60 ? "points" : "";
    const wanted = JSON.stringify([known.map((l) => [l.label, l.colour]), series.length, gapless, view.from, view.to, style("--ink")]);
    if (current && wanted === shape) {
      current.setData(data);
      return;
    }
    current?.destroy();
    shape = wanted;
    current = new uPlot(options(series, bands, view), data, plot);
  }

  function options(series, bands, view) {
    const axis = { stroke: style("--faint"), grid: { stroke: style("--grid"), width: 1 }, ticks: { show: false } };
    return {
      width: Math.max(plot.clientWidth, 200),
      height: HEIGHT,
      legend: { show: false },
      cursor: { sync: { key: "steps" }, drag: { x: true, y: false, setScale: false }, points: { size: 5 } },
      scales: { x: { time: false, range: view.from ? [view.from, view.to] : (_, low, high) => [low, Math.max(high, low + 1)] } },
      axes: [
        { ...axis, size: 26, font: "11px system-ui", values: (_, ticks) => ticks.map((t) => (Number.isInteger(t) ? t : "")) },
        { ...axis, size: 52, font: "11px system-ui", values: (_, ticks) => ticks.map((t) => Number(t.toPrecision(4)).toString()) },
      ],
      series: [{}, ...series],
      bands,
      hooks: {
        setCursor: [(u) => { readout.textContent = u.cursor.idx === null || u.cursor.idx === undefined ? latest(shownLines) : at(u); }],
        setSelect: [(u) => {
          if (u.select.width < 8) return;
          zoomed(Math.max(1, Math.round(u.posToVal(u.select.left, "x"))), Math.round(u.posToVal(u.select.left + u.select.width, "x")));
          u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
        }],
        ready: [(u) => u.over.addEventListener("dblclick", reset)],
      },
    };
  }

  let shownLines = [];
  function latest(lines) {
    shownLines = lines;
    return lines.slice(0, 4).map((line) => `${lines.length > 1 ? line.label + " " : ""}${number(lastOf(line.mean))}`).join(" · ");
  }

  function at(u) {
    const step = u.data[0][u.cursor.idx];
    const values = shownLines.slice(0, 4).map((line) => {
      const place = line.steps.indexOf(step);
      return `${shownLines.length > 1 ? line.label + " " : ""}${place < 0 ? "–" : number(line.mean[place])}`;
    });
    return `step ${step}: ${values.join(" · ")}`;
  }

  new ResizeObserver(() => current?.setSize({ width: Math.max(plot.clientWidth, 200), height: HEIGHT })).observe(plot);
  return { figure, draw, destroy: () => current?.destroy() };
}

/** The table that uPlot draws: for each line its band, its raw values (faint) and its smoothed ones. */
function columns(lines, smoothing) {
  const table = [];
  const series = [];
  const bands = [];
  const few = lines.every((line) => line.steps.length < 40);
  for (const line of lines) {
    const add = (values, look) => {
      table.push({ steps: line.steps, values });
      series.push({ spanGaps: true, points: { show: few && look.width > 1, size: 4 }, ...look });
    };
    if (line.low && line.high) {
      bands.push({ series: [series.length + 2, series.length + 1], fill: line.colour + "2a" });
      add(line.low, { width: 0 });
      add(line.high, { width: 0 });
    }
    if (smoothing > 0) add(line.mean, { stroke: line.colour + "55", width: 1 });
    add(smooth(line.mean, smoothing), { stroke: line.colour, width: 1.8 });
  }
  return { data: onOneGrid(table), series, bands };
}

function lastOf(values) {
  for (let i = values.length - 1; i >= 0; i -= 1) if (values[i] !== null) return values[i];
  return null;
}
