// Before against after: the held-out numbers, and how the answers to each problem changed.

import { problemAddress } from "./addresses.js";
import { ask } from "./api.js";
import { el, labelled, number, select, signed } from "./dom.js";
import { visibleLine } from "./visible_text.js";

export function problems(frame, parts) {
  const run = frame.run(parts[0]);
  const head = el("div", {});
  const status = el("p", { class: "faint", role: "status" });
  const body = el("tbody", {});
  const more = el("button", { hidden: true, on: { click: () => load(body.childElementCount) } }, "More");
  const search = el("input", { type: "search", placeholder: "problem (/)", "aria-label": "Search problems", on: { change: () => load(0) } });
  const runs = select(frame.runs().map((one) => [one.id, visibleLine(one.name)]), run.id, (id) => frame.go(`#/problems/${id}`), "Run");
  let asked = 0;

  async function load(first) {
    const mine = (asked += 1);
    try {
      const page = await ask(`runs/${run.id}/problems`, { first, q: search.value });
      if (mine !== asked) return;
      if (first === 0) body.replaceChildren();
      body.append(...page.problems.map((one) => row(run.id, one)));
      more.hidden = body.childElementCount >= page.total;
      const partly = page.indexed < page.steps ? ` · read ${page.indexed} of ${page.steps} steps so far` : "";
      status.textContent = `${page.total} problems, those whose answers changed most first${partly}`;
      if (partly) load(0);
    } catch (error) {
      status.textContent = error.message;
    }
  }

  ask(`runs/${run.id}/summary`).then((summary) => head.replaceChildren(...heldOut(summary)), () => {});
  load(0);
  const columns = ["problem", "seen", "first", "last", "change"];
  return {
    element: el("div", {}, el("div", { class: "bar" }, labelled("Run", runs), search), head,
      el("h2", {}, "Training problems, first answers against last"), status,
      el("div", { class: "scroll" }, el("table", { class: "table" }, el("thead", {}, el("tr", {}, columns.map((name) => el("th", { scope: "col" }, name)))), body)), more),
    moved: (newParts) => newParts[0] === run.id,
    leave: () => { asked += 1; },
  };
}

function heldOut({ before, after }) {
  if (!before || !after) return [];
  const names = Object.keys(after).filter((name) => name in before && name !== "problems");
  return [el("h2", {}, `Held-out problems (${number(after.problems)}), before against after`),
    el("div", { class: "tiles" }, names.map((name) => el("div", { class: "tile" },
      el("b", {}, `${number(before[name])} → ${number(after[name])}`), el("span", {}, visibleLine(name)))))];
}

function row(run, one) {
  return el("tr", { tabindex: "-1", "data-stop": "" },
    el("th", { scope: "row" }, el("a", { href: problemAddress(run, one.problem) }, visibleLine(one.problem).slice(0, 160) || "(no name)")),
    el("td", {}, String(one.seen)),
    el("td", {}, `${number(one.first.mean)} (step ${one.first.step})`),
    el("td", {}, `${number(one.last.mean)} (step ${one.last.step})`),
    el("td", { class: one.change > 0 ? "up" : one.change < 0 ? "down" : "" }, signed(one.change)));
}
