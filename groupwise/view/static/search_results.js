// What a search over all steps has found so far, and how far it got.

import { ask } from "./api.js";
import { el, number, signed } from "./dom.js";
import { textBlock, visibleLine } from "./visible_text.js";

const STOP_AFTER = 200;

/** A list that fills while the server searches; `wanted` turns false when somebody asked otherwise. */
export function searchResults(run, { q, filter }, wanted) {
  const progress = el("p", { class: "faint", role: "status" });
  const list = el("ul", { class: "found" });
  const go = el("button", { hidden: true }, "Search on");
  go.addEventListener("click", () => look());
  let next = [0, 0];
  let shown = 0;

  async function look() {
    go.hidden = true;
    const limit = shown + STOP_AFTER;
    while (next && wanted() && shown < limit) {
      const page = await ask(`runs/${run}/search`, { q, filter, step: next[0], group: next[1] });
      if (!wanted()) return;
      if (page.indexed !== undefined) {
        progress.textContent = `Reading earlier steps to compare with: ${page.indexed} of ${page.steps} …`;
        continue;
      }
      list.append(...page.found.map((one) => line(run, one)));
      shown += page.found.length;
      next = page.next;
      const damaged = page.damaged.length ? ` · ${page.damaged.length} damaged files left out` : "";
      progress.textContent = `${shown} found · ${next ? `searched ${page.searched} of ${page.steps} steps` : `all ${page.steps} steps searched`}${damaged}`;
    }
    go.hidden = next === null;
  }

  look().catch((error) => { progress.textContent = error.message; });
  return el("div", {}, progress, list, go);
}

function line(run, one) {
  const address = `#/rollouts/${run}/${one.step}?group=${one.group}&answer=${one.answer}`;
  return el("li", { tabindex: "-1", "data-stop": "" },
    el("a", { href: address }, `step ${one.step}`), " ", el("span", { class: "faint" }, visibleLine(one.problem).slice(0, 80)), " ",
    el("span", { class: "badge" }, `reward ${number(one.reward)}`), el("span", { class: "badge" }, `advantage ${signed(one.advantage)}`),
    textBlock(one.text, "text excerpt"));
}
