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
    return el("section", {}, el("h2", {}, visibleLine(run.name)), body);
  }

  async function changed() {
    const shown = frame.shown();
    const now = JSON.stringify(shown.map((run) => [run.id, run.last_step, run.generation]));
    if (now === last) return;
    last = now;
    holder.replaceChildren(...(await Promise.all(shown.map(section))));
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
  const none = reply.rows < ENOUGH ? `Too early to tell, after ${reply.rows} steps.` : "Nothing looks wrong.";
  return [
    ...(now.length ? now : [el("p", { class: "faint" }, none)]),
    ...(past.length ? [el("details", {}, el("summary", {}, `${past.length} earlier, gone since`), past)] : []),
  ];
}

function card(run, one) {
  const when = one.until === undefined ? `since step ${one.step}` : `step ${one.step} to ${one.until}`;
  return el("article", { class: `card finding ${one.severity}`, tabindex: "-1", "data-stop": "" },
    el("h3", {}, el("span", { "aria-hidden": "true" }, `${MARKS[one.severity] || "●"} `), one.title, " ",
      el("a", { href: `#/rollouts/${run.id}/${one.step}`, class: "faint" }, when)),
    el("p", {}, visibleLine(one.evidence)), el("p", {}, el("b", {}, "Try: "), visibleLine(one.advice)));
}
