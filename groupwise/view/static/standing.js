// Where a run stands, in the same words on every page.

import { duration } from "./dom.js";

const SILENT = 120;

/** "finished", "stopped", "silent", "training", "not started" or "cannot be read". */
export function standing(run) {
  if (run.problem) return "cannot be read";
  if (run.status === "finished") return "finished";
  if (run.status.startsWith("stopped")) return "stopped";
  if (isSilent(run)) return "silent";
  return run.last_step ? "training" : "not started";
}

/** A run that logged nothing for long, for its pace: it was stopped, or it hangs, or evaluates. */
function isSilent(run) {
  return run.status !== "finished" && run.idle_seconds !== null && run.idle_seconds > Math.max(SILENT, 20 * (run.latest?.seconds || 0));
}

/** "40/60 · training, 3 s ago", for the list of runs */
export function progress(run) {
  const word = standing(run);
  if (word === "cannot be read" || word === "not started") return word;
  const steps = run.planned_steps ? `${run.last_step}/${run.planned_steps}` : `${run.last_step}`;
  return `${steps} · ${word}${word === "finished" || run.idle_seconds === null ? "" : `, ${ago(run.idle_seconds)}`}`;
}

/** "3 s ago" */
export function ago(seconds) {
  return seconds === null ? "–" : `${duration(seconds < 10 ? Math.round(seconds) : seconds)} ago`;
}
