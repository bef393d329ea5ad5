// What the numbers say is wrong, in words, for each run shown.

import { ask } from "./api.js";
import { el } from "./dom.js";
import { visibleLine } from "./visible_text.js";

const ENOUGH = 5; // steps before which no symptom is looked for (START of groupwise/diagnose)
const MARKS = { error: "✖", warning: "▲", info: "●" };

export function findings(frame) {
  const holder = el("div", {});
  let last = "";

  async function section(run) {
    const body = await diagnosis(run).catch((error) => [el("p", { class: "problem" }, error.message)]);
    return el("section", { class: "run-findings" }, el("h2", {}, el("span", { class: `swatch line-${frame.place(run)}`, "aria-hidden": "true" }), " ", visibleLine(run.name)), body);
  }

  async function changed() {
    const shown = frame.shown();
    const now = JSON.stringify(shown.map((run) => [run.id, run.last_step, run.generation]));
    if (now === last) return;
    last = now;
    const sections = await Promise.all(shown.map(section));
    holder.replaceChildren(...(sections.length ? sections : [el("p", { class: "empty" }, "No run is ticked.")]));
  }

  changed();
  return { element: holder, changed };
}

/** What holds, then what is gone. A long run is looked at in slices until all of it is read. */
async function diagnosis(run) {
  let reply = await ask(`runs/${run.id}/findings`);
  while (reply.read < reply.rows) reply = await ask(`runs/${run.id}/findings`);
  const now = reply.findings.map((one) => card(run, one));
  const past = reply.gone.map((one) => card(run, one)).reverse();
  const none = reply.rows < ENOUGH ? `Too early to tell, after ${reply.rows} ${reply.rows === 1 ? "step" : "steps"}.` : `Nothing looks wrong in ${reply.rows} steps.`;
  return [
    ...(now.length ? now : [el("p", { class: "empty" }, none)]),
    ...(past.length ? [el("details", {}, el("summary", {}, `${past.length} earlier, gone since`), past)] : []),
  ];
}

function card(run, one) {
  const when = one.until !== undefined ? `step ${one.step} to ${one.until}` : one.step === run.last_step ? `at step ${one.step}` : `since step ${one.step}`;
  return el("article", { class: `card finding ${one.severity}`, tabindex: "-1", "data-stop": "" },
    el("header", {}, el("span", { class: "mark", "aria-hidden": "true" }, MARKS[one.severity] || "●"), el("h3", {}, visibleLine(one.title)),
      el("a", { href: `#/rollouts/${run.id}/${one.step}` }, when)),
    el("p", {}, sentence(one.evidence)), el("p", {}, el("b", {}, "Try: "), `${visibleLine(one.advice)}.`));
}

function sentence(text) {
  const line = visibleLine(text);
  return `${line.slice(0, 1).toUpperCase()}${line.slice(1)}.`;
}
