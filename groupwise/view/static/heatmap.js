// Histograms over steps of the first run shown: where rewards, lengths, advantages and pass rates lie.

import { ask } from "./api.js";
import { shortNumber } from "./chart.js";
import { el, percent, redraw, whenSeen } from "./dom.js";
import { hideTooltip, showTooltip } from "./tooltip.js";
import { visibleLine } from "./visible_text.js";

const TITLES = { reward: "Rewards", "pass rate": "Pass rates of problems", advantage: "Advantages", tokens: "Tokens per answer" };

export function distributions(frame) {
  const holder = el("div", { class: "charts small" });
  const heading = el("small", {});
  const element = el("details", { class: "section", open: true }, el("summary", { "data-key": "distributions" }, "Distributions over training", heading), holder);
  let seen = false;
  let last = "";
  let gone = false;

  async function changed() {
    const run = frame.shown()[0];
    if (!seen || !run) return;
    const now = `${run.id} ${run.last_step} ${run.generation} ${getComputedStyle(document.documentElement).colorScheme}`;
    if (now === last) return;
    last = now;
    heading.textContent = visibleLine(run.name);
    let reply = { read: 0, wanted: 1 };
    while (!gone && reply.read < reply.wanted) {
      const before = reply.read;
      reply = await ask(`runs/${run.id}/histograms`).catch(() => ({ read: 0, wanted: 0, histograms: {}, steps: [] }));
      if (now !== last) return;
      redraw(holder, Object.entries(reply.histograms).filter(([, one]) => one.high > one.low).map(([name, one]) => figure(name, one, reply.steps)));
      if (reply.read === before) break;
    }
    element.hidden = !holder.childElementCount;
  }

  whenSeen(element, () => { seen = true; changed(); });
  return { element, changed, leave: () => { gone = true; hideTooltip(); } };
}

/** Columns are steps, rows are values, the shade is the share of the step's answers. */
function figure(name, { low, high, counts }, steps) {
  const title = TITLES[name] || name;
  const canvas = el("canvas", { role: "img", "aria-label": `${title} from step ${steps[0]} to ${steps.at(-1)}` });
  const rows = counts[0].length;
  canvas.width = steps.length;
  canvas.height = rows;
  const pen = canvas.getContext("2d");
  pen.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--line-0");
  counts.forEach((column, x) => {
    const most = Math.max(1, ...column);
    column.forEach((count, y) => {
      if (!count) return;
      pen.globalAlpha = 0.12 + 0.88 * (count / most);
      pen.fillRect(x, rows - 1 - y, 1, 1);
    });
  });
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const x = Math.min(steps.length - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * steps.length)));
    const y = Math.min(rows - 1, Math.max(0, rows - 1 - Math.floor(((event.clientY - box.top) / box.height) * rows)));
    const width = (high - low) / rows;
    const total = counts[x].reduce((a, b) => a + b, 0);
    showTooltip(canvas, `step ${steps[x]}`, [[`${shortNumber(low + y * width)} to ${shortNumber(low + (y + 1) * width)}`, `${counts[x][y]} (${percent(total ? counts[x][y] / total : 0)})`]]);
  });
  canvas.addEventListener("pointerleave", hideTooltip);
  return el("figure", { class: "chart heatmap", "aria-label": `${title} over steps` }, el("figcaption", {}, el("b", {}, title)),
    el("div", { class: "grid" }, el("span", { class: "faint high" }, shortNumber(high)), canvas, el("span", { class: "faint low" }, shortNumber(low)),
      el("span", { class: "faint from" }, `step ${steps[0]}`), el("span", { class: "faint to" }, `${steps.at(-1)}`)));
}
