// Two answers side by side: of one group, of two groups, or of two steps. Which two is in the address.

import { groupData } from "./addresses.js";
import { ask } from "./api.js";
import { el, number, redraw } from "./dom.js";
import { sideBySide } from "./side_by_side.js";
import { visibleLine } from "./visible_text.js";

const NAME = /^[\w-]+:\d+:\d+:\d+$/;

/** pair.toggle({run, step, group, answer}) marks an answer; with two marked they are shown. */
export function answerPair(frame) {
  const element = el("section", { class: "comparing", "aria-label": "Two answers side by side", hidden: true });
  let chosen = [];

  const nameOf = ({ run, step, group, answer }) => [run, step, group, answer].join(":");

  function toggle(place) {
    const name = nameOf(place);
    chosen = chosen.includes(name) ? chosen.filter((one) => one !== name) : [...chosen, name].slice(-2);
    frame.put({ diff: chosen.join(",") });
    draw();
  }

  function open(text) {
    const wanted = (text || "").split(",").filter((name) => NAME.test(name)).slice(0, 2);
    if (wanted.join() === chosen.join()) return;
    chosen = wanted;
    draw();
  }

  async function draw() {
    for (const button of document.querySelectorAll("[data-compare]")) button.setAttribute("aria-pressed", chosen.includes(button.dataset.compare));
    element.hidden = !chosen.length;
    if (!chosen.length) return;
    const close = el("button", { "data-key": "close", on: { click: () => { chosen = []; frame.put({ diff: null }); draw(); } } }, "Close");
    if (chosen.length === 1) return redraw(element, el("header", {}, el("h3", {}, "One answer is marked"), close), el("p", { class: "faint" }, "Mark another, in this step or in any other one, to see both side by side."));
    try {
      const answers = await Promise.all(chosen.map(load));
      redraw(element, el("header", {}, el("h3", {}, "Side by side"), close), sideBySide(...answers));
    } catch (error) {
      redraw(element, el("header", {}, close), el("p", { class: "problem" }, error.message));
    }
  }

  async function load(name) {
    const [run, step, group, place] = name.split(":");
    const card = await ask(groupData(run, step, group));
    const answer = card.answers.find((one) => one.index === Number(place));
    if (!answer) throw new Error("This answer is not stored any more.");
    const heading = [el("a", { href: `#/rollouts/${run}/${step}?group=${group}&answer=${place}` }, `step ${step}`), ` ${visibleLine(card.problem).slice(0, 60)} · reward ${number(answer.reward)}`];
    return [el("span", {}, heading), transcript(answer)];
  }

  return { element, toggle, open, nameOf, isChosen: (place) => chosen.includes(nameOf(place)) };
}

/** An answer as one text; of an episode, all that was said. */
export function transcript(answer) {
  if (!answer.episode) return answer.text;
  return answer.episode.messages.map((one) => `[${one.role}${one.name ? ` ${one.name}` : ""}]\n${one.content}${one.calls.map(([name, text]) => `\n${name}(${text})`).join("")}`).join("\n\n");
}
