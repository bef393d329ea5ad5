// One problem over training: its rewards as a curve, and its answers at two moments side by side.

import { groupData, problemIn } from "./addresses.js";
import { explainTokens } from "./answer_text.js";
import { ask } from "./api.js";
import { chart } from "./chart.js";
import { el, labelled, number, select } from "./dom.js";
import { groupCard } from "./group_card.js";
import { visibleLine } from "./visible_text.js";

export function problem(frame, parts, query) {
  const run = frame.run(parts[0]);
  const id = problemIn(query);
  const status = el("p", { class: "faint", role: "status" });
  const curve = chart("reward of its answers", "mean, lowest and highest reward at each appearance", { zoomed: () => {}, reset: () => {} });
  const sides = el("div", { class: "sides" });
  const element = el("div", {}, el("p", {}, el("a", { href: `#/problems/${run.id}` }, "← all problems")), el("h2", {}, visibleLine(id).slice(0, 200)), status, curve.figure, sides);
  let gone = false;

  async function load() {
    const { seen, indexed, steps } = await ask(`runs/${run.id}/problem`, { id: JSON.stringify(id) });
    if (gone) return;
    const partly = indexed < steps ? ` (read ${indexed} of ${steps} steps so far)` : "";
    status.textContent = `seen ${seen.length === 1 ? "once" : `${seen.length} times`}${partly}`;
    if (seen.length) {
      const column = (name) => seen.map((one) => one[name]);
      curve.draw([{ label: "reward", colour: frame.colour(run), steps: column("step"), mean: column("mean"), low: column("low"), high: column("high") }], { smoothing: 0 });
      const once = seen.length === 1;
      sides.replaceChildren(side(seen, 0, once ? "Its answers" : "Before"), ...(once ? [] : [side(seen, seen.length - 1, "After")]));
    }
    if (partly) await load();
  }

  /** The answers at one appearance, which can be changed. */
  function side(seen, place, title) {
    const holder = el("div", {}, "…");
    const options = seen.map((one, i) => [String(i), `step ${one.step}, mean ${number(one.mean)}`]);
    const show = async (chosen) => {
      const one = seen[Number(chosen)];
      try {
        const group = await ask(groupData(run.id, one.step, one.group));
        const measure = localStorage.getItem("groupwise.measure") ?? "logprob";
        holder.replaceChildren(groupCard(group, { run: run.id, step: one.step, measure }));
      } catch (error) {
        holder.replaceChildren(el("p", { class: "problem" }, error.message));
      }
    };
    show(place);
    return el("section", {}, labelled(title, select(options, String(place), show, `${title}: which step`)), holder);
  }

  explainTokens(sides);
  load().catch((error) => { status.textContent = error.message; });
  return { element, leave: () => { gone = true; curve.destroy(); } };
}
