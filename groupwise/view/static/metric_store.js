// The metrics of the runs shown: fetched once, then only what was added.

import { ask } from "./api.js";
import { merge, unpack, widthFor } from "./series.js";

const runs = new Map();

/** Bring the metrics of the runs up to date for a range of steps; resolves to whether any changed. */
export async function update(shown, range) {
  const last = Math.max(1, ...shown.map((run) => run.last_step));
  const [from, to] = range || [1, last];
  const width = widthFor(from, to);
  const begin = Math.floor((from - 1) / width) * width + 1;
  const changed = await Promise.all(shown.map((run) => updateOne(run, begin, range ? to : null, width)));
  return changed.some(Boolean);
}

async function updateOne(run, from, to, width) {
  const had = runs.get(run.id);
  const same = had && had.status === run.status && had.generation === run.generation && had.last_step <= run.last_step && had.from === from && had.to === to && had.width === width;
  if (same && had.last_step === run.last_step) return false;
  // The last bucket may have been incomplete: it is asked for again.
  const start = same ? Math.floor(had.last_step / width) * width + 1 : from;
  const window = await ask(`runs/${run.id}/metrics`, { start: Math.max(start, from), stop: to, width });
  const fresh = unpack(window);
  const heldOut = await ask(`runs/${run.id}/summary`).catch(() => ({}));
  runs.set(run.id, {
    heldOut,
    generation: window.generation, status: run.status, from, to, width,
    last_step: window.last_step,
    latest: window.latest,
    broken: window.broken_lines,
    series: same && window.generation === had.generation ? merge(had.series, fresh, start) : fresh,
  });
  return true;
}

export function metricsOf(run) {
  return runs.get(run.id) || { series: {}, latest: {}, broken: 0, heldOut: {} };
}

/** Metrics that the runs have; those of evaluations too, where they were made only before and after. */
export function namesOf(shown) {
  const names = shown.flatMap((run) => {
    const { series, heldOut } = metricsOf(run);
    const evaluated = Object.keys(heldOut.before || {}).filter((name) => name !== "problems");
    return [...Object.keys(series).filter((name) => !name.startsWith("elapsed/") && name !== "eval/problems"), ...evaluated.map((name) => `eval/${name}`)];
  });
  return [...new Set(names)];
}
