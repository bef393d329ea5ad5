// How one run is going, in words, and what to do next.

import { ask } from "./api.js";
import { duration, el, number, percent, redraw } from "./dom.js";
import { metricsOf } from "./metric_store.js";
import { visibleLine } from "./visible_text.js";

const SILENT = 900;

export function story(frame, run) {
  const element = el("section", { class: "story", "aria-label": `How ${visibleLine(run.name)} is going` });
  let last = "";
  let findings = [];

  async function update(now) {
    const key = JSON.stringify([frame.shown().length > 1, now.last_step, now.status, now.generation, now.idle_seconds > SILENT]);
    if (key === last) return;
    last = key;
    draw(now);
    try {
      let reply = await ask(`runs/${now.id}/findings`);
      while (reply.read < reply.rows) reply = await ask(`runs/${now.id}/findings`);
      findings = reply.findings;
    } catch {
      findings = [];
    }
    draw(now);
  }

  function draw(now) {
    const worst = findings.find((one) => one.severity !== "info");
    const mood = now.problem ? "bad" : worst ? (worst.severity === "error" ? "bad" : "warn") : "good";
    redraw(element, el("h2", {}, el("span", { class: `dot ${mood}`, "aria-hidden": "true" }), visibleLine(now.name), el("small", {}, [now.model, now.task].filter(Boolean).map(visibleLine).join(" · "))),
      el("p", { class: "lead" }, sentences(now, metricsOf(now)).join(" ")), next(now, worst));
  }

  function next(now, worst) {
    const { heldOut } = metricsOf(now);
    const items = findings.slice(0, 2).map((one) => el("li", {}, el("b", {}, `${visibleLine(one.title)}. `), visibleLine(one.advice), " ", el("a", { href: `#/findings`, "data-key": `finding ${one.code}` }, "Why")));
    if (now.problem) items.unshift(el("li", {}, visibleLine(now.problem)));
    // Beside others a run that does well needs no more words.
    if (!worst && frame.shown().length === 1) items.push(...unhurried(now, heldOut));
    return items.length ? el("ul", { class: "next" }, items) : null;
  }

  return { element, update };
}

/** What to do when nothing is wrong. */
function unhurried(run, heldOut) {
  const items = [];
  if (heldOut.after) items.push(el("li", {}, el("a", { href: `#/held-out/${run.id}`, "data-key": "held-out" }, "See which held-out answers changed"), ", or ", el("a", { href: `#/rollouts/${run.id}?filter=wrong_but_rewarded&everywhere=yes` }, "look for wrong answers that were rewarded"), "."));
  else if (run.last_step) items.push(el("li", {}, el("a", { href: `#/rollouts/${run.id}`, "data-key": "latest" }, "Read the latest answers"), " while it goes on."));
  if (heldOut.has_report) items.push(el("li", {}, el("a", { href: `/report/${run.id}`, target: "_blank", rel: "noopener" }, "Open the report"), " to send to somebody."));
  if (heldOut.models?.length && heldOut.folder) items.push(el("li", {}, "Try the model: ", el("code", {}, `groupwise sample ${visibleLine(heldOut.folder)}`)));
  return items;
}

/** "Finished all 60 steps in 2 min." and so on. */
export function sentences(run, { series, latest, heldOut }) {
  const of = run.planned_steps ? ` of ${run.planned_steps}` : "";
  const spent = series["elapsed/seconds"]?.mean.at(-1);
  const told = [];
  if (!run.last_step) told.push("No step has been logged yet.");
  else if (run.status === "finished") told.push(`Finished${run.planned_steps === run.last_step ? ` all ${run.last_step} steps` : ` at step ${run.last_step}${of}`}${spent ? ` in ${duration(spent)}` : ""}.`);
  else if (run.idle_seconds !== null && run.idle_seconds > Math.max(SILENT, 20 * (latest.seconds || 0))) told.push(`Stopped at step ${run.last_step}${of}: nothing was logged for ${duration(run.idle_seconds)}. The same command goes on from its last checkpoint.`);
  else told.push(`At step ${run.last_step}${of}${left(run, spent)}.`);
  told.push(...outcome(heldOut, latest));
  const reward = series.reward?.mean.filter((value) => value !== null) || [];
  if (reward.length > 3) {
    const part = Math.max(1, Math.floor(reward.length / 10));
    const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
    const [from, to] = [mean(reward.slice(0, part)), mean(reward.slice(-part))];
    told.push(Math.abs(to - from) < 0.02 * Math.max(Math.abs(from), Math.abs(to), 1e-9) ? `The reward of its training answers stayed at ${number(to, 2)}.` : `The reward of its training answers went from ${number(from, 2)} to ${number(to, 2)}.`);
  }
  return told;
}

function left(run, spent) {
  const rest = (run.planned_steps || 0) - run.last_step;
  return spent && rest > 0 ? `, about ${duration((spent / run.last_step) * rest)} left` : "";
}

function outcome({ before, after }, latest) {
  const name = before?.accuracy === undefined ? "reward" : "accuracy";
  const shown = (value) => (name === "accuracy" ? percent(value) : number(value, 2));
  const start = before?.[name];
  if (start === undefined) return [];
  const what = name === "accuracy" ? "answers right" : "mean reward";
  if (after?.[name] !== undefined) {
    const change = after[name] - start;
    const word = Math.abs(change) < 1e-9 ? "the same as before training" : `${change > 0 ? "up" : "down"} from ${shown(start)} before training`;
    return [`On ${after.problems} held-out test problems: ${shown(after[name])} ${what}, ${word}.`];
  }
  const now = latest[`eval/${name}`];
  return [`On held-out problems: ${shown(start)} ${what} before training${now === undefined ? "" : `, ${shown(now)} at the last evaluation`}.`];
}
