// The lines of one metric over the runs shown: a run each, or a band where runs differ only in their seed.

import { metricsOf } from "./metric_store.js";
import { band, fromTheStart } from "./series.js";
import { visibleLine } from "./visible_text.js";

export const AXES = [["step", "steps"], ["seconds", "seconds"], ["tokens", "tokens"], ["samples", "answers"]];

/** The place of a step on an axis, for one run; null where it is not known. */
function placeOf(run, axis) {
  if (axis === "step") return (step) => step;
  if (axis === "samples") return (step) => (run.samples_per_step ? step * run.samples_per_step : null);
  const series = metricsOf(run).series[`elapsed/${axis}`];
  if (!series) return () => null;
  const known = new Map(series.steps.map((step, i) => [step, series.mean[i]]));
  return (step) => (step === 0 ? 0 : known.get(step) ?? null);
}

/** Axes that every run shown can be drawn over: what a run lacks is not offered. */
export function axesOf(runs) {
  return AXES.filter(([axis]) => axis === "step" || runs.every((run) => (axis === "samples" ? run.samples_per_step : metricsOf(run).series[`elapsed/${axis}`])));
}

/** Each run's own lines of a metric: {run, kind, series}. A run that is evaluated has up to two. */
function parts(run, name) {
  const { series, heldOut } = metricsOf(run);
  const own = series[name];
  if (!name.startsWith("eval/")) return own ? [{ run, kind: "", series: own }] : [];
  const [before, after] = [heldOut.before?.[name.slice(5)], heldOut.after?.[name.slice(5)]];
  const lines = [];
  if (own) lines.push({ run, kind: "validation", exact: true, series: fromTheStart(own, before) });
  if (before !== undefined && (after !== undefined || !own)) {
    const [steps, mean] = after === undefined ? [[0], [before]] : [[0, run.last_step], [before, after]];
    lines.push({ run, kind: "test", exact: true, dashed: Boolean(own), series: { steps, mean } });
  }
  return lines;
}

/** [{label, colour, place, steps, x, mean, low, high, exact, dashed}] */
export function metricLines(frame, name, { bands, axis }) {
  const families = new Map();
  for (const part of frame.shown().flatMap((run) => parts(run, name))) {
    const key = `${bands ? part.run.family : part.run.id} ${part.kind}`;
    families.set(key, [...(families.get(key) || []), part]);
  }
  const alone = frame.shown().length === 1;
  return [...families.values()].map((members) => {
    const [{ run, kind, exact, dashed }] = members;
    const named = visibleLine(run.name) + (members.length > 1 ? ` and ${members.length - 1} more` : "");
    const label = kind ? (alone ? kind : `${named}, ${kind}`) : named;
    const series = members.length === 1 ? members[0].series : band(members.map((member) => member.series));
    return { label, colour: frame.colour(run), place: frame.place(run), exact, dashed, ...onAxis(series, members.map((member) => placeOf(member.run, axis))) };
  });
}

/** The series without the points that have no place on the axis. */
function onAxis(series, places) {
  const x = series.steps.map((step) => {
    const known = places.map((place) => place(step)).filter((value) => value !== null);
    return known.length ? known.reduce((a, b) => a + b, 0) / known.length : null;
  });
  const kept = x.flatMap((value, i) => (value === null ? [] : [i]));
  const pick = (values) => (values ? kept.map((i) => values[i]) : null);
  return { steps: pick(series.steps), x: pick(x), mean: pick(series.mean), low: pick(series.low), high: pick(series.high) };
}
