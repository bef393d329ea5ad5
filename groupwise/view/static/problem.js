// One problem over training: its rewards as a curve, and its answers at two moments side by side.

import { groupData, problemIn } from "./addresses.js";
import { answerPair } from "./answer_pair.js";
import { explainTokens } from "./answer_text.js";
import { ask } from "./api.js";
import { chart } from "./chart.js";
import { el, labelled, number, select } from "./dom.js";
import { groupCard } from "./group_card.js";
import { problemName } from "./visible_text.js";

export function problem(frame, parts, query) {
  const run = frame.run(parts[0]);
  const id = problemIn(query);
  const status = el("p", { class: "faint", role: "status" });
  const curve = chart({ name: "reward of its answers", title: "Reward of its answers", hint: "mean, lowest and highest reward at each appearance", share: false }, { zoomed: () => {}, reset: () => {} });
  const pair = answerPair(frame);
  const sides = el("div", { class: "sides" });
  const element = el("div", {}, el("a", { href: `#/problems/${run.id}` }, "← all problems"), el("h2", { class: "wrap" }, problemName(id).slice(0, 200)), status, curve.figure, pair.element, sides);
  pair.open(query.get("diff"));
  let gone = false;

  async function load() {
    const { seen, indexed, steps } = await ask(`runs/${run.id}/problem`, { id: JSON.stringify(id) });
    if (gone) return;
    const partly = indexed < steps ? ` (read ${indexed} of ${steps} steps so far)` : "";
    status.textContent = `Seen ${seen.length === 1 ? `once, at step ${seen[0].step}` : `${seen.length} times`}${partly}`;
    curve.figure.hidden = seen.length < 2;
    if (seen.length) {
      const column = (name) => seen.map((one) => one[name]);
      curve.draw([{ label: "reward", colour: frame.colour(run), place: frame.place(run), steps: column("step"), x: column("step"), mean: column("mean"), low: column("low"), high: column("high") }], { smoothing: 0, axis: "step", range: null, log: false });
      const once = seen.length === 1;
      const from = (name, place) => { const at = seen.findIndex((one) => String(one.step) === query.get(name)); return at < 0 ? place : at; };
      sides.replaceChildren(side(seen, from("before", 0), once ? "Its answers" : "Before", "before"), ...(once ? [] : [side(seen, from("after", seen.length - 1), "After", "after")]));
    }
    if (partly) await load();
  }

  /** The answers at one appearance, which can be changed. */
  function side(seen, place, title, name) {
    const holder = el("div", {}, "…");
    const options = seen.map((one, i) => [String(i), `step ${one.step}, mean ${number(one.mean)}`]);
    const show = async (chosen) => {
      const one = seen[Number(chosen)];
      try {
        const group = await ask(groupData(run.id, one.step, one.group));
        const measure = localStorage.getItem("groupwise.measure") ?? "logprob";
        holder.replaceChildren(groupCard(group, { run: run.id, step: one.step, measure, pair }));
      } catch (error) {
        holder.replaceChildren(el("p", { class: "problem" }, error.message));
      }
    };
    const choose = (chosen) => { frame.put({ [name]: seen[Number(chosen)].step }); show(chosen); };
    show(place);
    return el("section", {}, labelled(title, select(options, String(place), choose, `${title}: which step`)), holder);
  }

  explainTokens(sides);
  load().catch((error) => { status.textContent = error.message; });
  return { element, leave: () => { gone = true; curve.destroy(); } };
}
