// How one run is going, in words, and what to do next.

import { ask } from "./api.js";
import { duration, el, number, percent, redraw } from "./dom.js";
import { metricsOf } from "./metric_store.js";
import { standing } from "./standing.js";
import { visibleLine } from "./visible_text.js";

const MOODS = { finished: "good", training: "accent", "cannot be read": "bad" };

export function story(frame, run) {
  const element = el("section", { class: "story", "aria-label": `How ${visibleLine(run.name)} is going` });
  let last = "";
  let findings = [];

  async function update(now) {
    const key = JSON.stringify([frame.shown().length > 1, now.last_step, now.status, now.generation, standing(now)]);
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

  function mood(now) {
    const worst = ["error", "warning"].find((severity) => findings.some((one) => one.severity === severity));
    return worst ? { error: "bad", warning: "warn" }[worst] : MOODS[standing(now)] || "warn";
  }

  function draw(now) {
    const alone = frame.shown().length === 1;
    const { figure, lead, rest } = told(now, metricsOf(now));
    redraw(element,
      el("header", {}, el("h2", { title: visibleLine(now.name) }, visibleLine(now.name)), el("span", { class: `badge ${mood(now)}` }, standing(now)), el("small", { class: "faint" }, [now.model, now.task].filter(Boolean).map(visibleLine).join(" · "))),
      el("p", { class: "lead" }, figure ? el("b", { class: "figure" }, figure) : null, figure ? " " : null, lead),
      rest.length ? el("p", { class: "rest" }, rest.join(" ")) : null,
      alone ? next(now) : brief(now));
  }

  /** What to do next: what is wrong first, then what is worth a look. */
  function next(now) {
    const wrong = findings.slice(0, 2).map((one) => el("li", { class: one.severity }, el("b", {}, `${visibleLine(one.title)}. `), `Try: ${visibleLine(one.advice)}. `,
      el("a", { href: "#/findings", "data-key": `finding ${one.code}` }, "Why"), " · ", el("a", { href: `#/rollouts/${now.id}/${one.step}`, "data-key": `answers ${one.code}` }, `answers of step ${one.step}`)));
    const items = [...wrong, ...worthALook(now, metricsOf(now).heldOut)];
    return items.length ? el("div", { class: "next" }, el("h3", {}, "What to do next"), el("ul", {}, items)) : null;
  }

  /** Beside other runs: only what is wrong, by name. */
  function brief() {
    return findings.length ? el("ul", { class: "next" }, findings.slice(0, 2).map((one) => el("li", { class: one.severity }, el("a", { href: "#/findings", "data-key": `finding ${one.code}` }, visibleLine(one.title))))) : null;
  }

  return { element, update };
}

function worthALook(run, heldOut) {
  const items = [];
  if (heldOut.after) items.push(el("li", {}, el("a", { href: `#/held-out/${run.id}`, "data-key": "held-out" }, "See which test answers changed"), ", or ", el("a", { href: `#/rollouts/${run.id}?filter=wrong_but_rewarded&everywhere=yes`, "data-key": "rewarded" }, "look for wrong answers that were rewarded"), "."));
  else if (run.last_step) items.push(el("li", {}, el("a", { href: `#/rollouts/${run.id}`, "data-key": "latest" }, "Read the latest answers"), standing(run) === "training" ? " while it trains." : "."));
  if (heldOut.has_report) items.push(el("li", {}, el("a", { href: `/report/${run.id}`, target: "_blank", rel: "noopener", "data-key": "report" }, "Open the report"), ", one page to send to somebody."));
  if (heldOut.models?.length && heldOut.folder) items.push(el("li", {}, "Try the model: ", el("code", {}, `groupwise sample ${visibleLine(heldOut.folder)}`)));
  return items;
}

/** {figure: "95.5 %", lead: "of 200 test problems right, up from 27 %.", rest: ["Finished all 60 steps in 2 min.", ...]} */
export function told(run, { series, latest, heldOut }) {
  const said = outcome(heldOut, latest);
  const rest = [course(run, series["elapsed/seconds"]?.mean.at(-1))];
  const reward = series.reward?.mean.filter((value) => value !== null) || [];
  if (reward.length > 3) {
    const part = Math.max(1, Math.floor(reward.length / 10));
    const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
    const [from, to] = [mean(reward.slice(0, part)), mean(reward.slice(-part))];
    rest.push(Math.abs(to - from) < 0.02 * Math.max(Math.abs(from), Math.abs(to), 1e-9) ? `The reward of training answers stayed at ${number(to, 2)}.` : `The reward of training answers went from ${number(from, 2)} to ${number(to, 2)}.`);
  }
  return said ? { ...said, rest } : { figure: "", lead: rest.join(" "), rest: [] };
}

/** How far it is: "At step 20 of 60, about 40 s left." */
function course(run, spent) {
  const of = run.planned_steps ? ` of ${run.planned_steps}` : "";
  if (run.problem) return `${visibleLine(run.problem)}.`;
  if (!run.last_step) return "No step has been logged yet.";
  const time = spent ? ` in ${duration(spent)}` : "";
  if (run.status === "finished") return `Finished ${run.planned_steps === run.last_step ? `all ${run.last_step} steps` : `at step ${run.last_step}${of}`}${time}.`;
  if (run.status.startsWith("stopped")) return `Stopped at step ${run.last_step}${of}${visibleLine(run.status.slice("stopped".length))}.`;
  if (standing(run) === "silent") return `At step ${run.last_step}${of}, and nothing was logged for ${duration(run.idle_seconds)}. If the run has ended, the same command goes on from its last checkpoint.`;
  const left = (run.planned_steps || 0) - run.last_step;
  return `At step ${run.last_step}${of}${spent && left > 0 ? `, about ${duration((spent / run.last_step) * left)} left` : ""}.`;
}

/** How well it does on problems that it does not train on. */
function outcome({ before, after }, latest) {
  const name = before?.accuracy === undefined ? "reward" : "accuracy";
  const shown = (value) => (name === "accuracy" ? percent(value) : number(value, 2));
  const [start, end, now] = [before?.[name], after?.[name], latest[`eval/${name}`]];
  const what = (problems) => (name === "accuracy" ? `of ${problems} answered right` : `mean reward on ${problems}`);
  if (end !== undefined) {
    const change = start === undefined ? "" : Math.abs(end - start) < 1e-9 ? ", the same as before training" : `, ${end > start ? "up" : "down"} from ${shown(start)} before training`;
    return { figure: shown(end), lead: `${what(`${after.problems} test ${after.problems === 1 ? "problem" : "problems"}`)}${change}.` };
  }
  if (now !== undefined) return { figure: shown(now), lead: `${what("the validation problems")} at the last evaluation${start === undefined ? "" : `; ${shown(start)} of the test problems before training`}.` };
  return start === undefined ? null : { figure: shown(start), lead: `${what("the test problems")} before training.` };
}
