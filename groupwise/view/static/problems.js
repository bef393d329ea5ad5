// Training problems: how their rewards changed, those that changed most first.

import { problemAddress } from "./addresses.js";
import { ask } from "./api.js";
import { el, labelled, number, select, signed } from "./dom.js";
import { problemName, visibleLine } from "./visible_text.js";

/** Training problems, or those of the test. */
export function problemTabs(run, current) {
  const tab = (key, label) => el("a", { href: `#/${key}/${run}`, "aria-current": key === current ? "page" : null }, label);
  return el("nav", { class: "tabs", "aria-label": "Which problems" }, tab("problems", "Training problems"), tab("held-out", "Test problems"));
}

const COLUMNS = ["problem", "over training", "seen", "first", "last", "change"];
const ONCE = ["problem", "mean reward", "step"];

export function problems(frame, parts, query) {
  const run = frame.run(parts[0]);
  const status = el("p", { class: "faint", role: "status" });
  const body = el("tbody", {});
  const more = el("button", { hidden: true, on: { click: () => load(body.childElementCount) } }, "More");
  const search = el("input", { type: "search", placeholder: "problem (/)", "aria-label": "Search problems", value: query.get("q") || "", on: { change: () => { frame.put({ q: search.value }); load(0); } } });
  const runs = select(frame.runs().map((one) => [one.id, visibleLine(one.name)]), run.id, (id) => frame.go(`#/problems/${id}`), "Run");
  const head = el("tr", {});
  const table = el("table", { class: "table nowrap", hidden: true }, el("thead", {}, head), body);
  let once = false;
  let asked = 0;

  async function load(first) {
    const mine = (asked += 1);
    try {
      const page = await ask(`runs/${run.id}/problems`, { first, q: search.value });
      if (mine !== asked) return;
      if (first === 0) body.replaceChildren();
      // Of problems that came up once there is nothing to compare.
      if (first === 0) once = page.problems.every((one) => one.seen === 1);
      head.replaceChildren(...(once ? ONCE : COLUMNS).map((name) => el("th", { scope: "col" }, name)));
      body.append(...page.problems.map((one) => row(run.id, one, once)));
      more.hidden = body.childElementCount >= page.total;
      const partly = page.indexed < page.steps ? ` · read ${page.indexed} of ${page.steps} steps so far` : "";
      const none = search.value ? "No problem has this in its name" : "No answers are stored yet";
      status.replaceChildren(...(!page.total ? [none] : once ? [`${page.total} problems, each seen once, the lowest reward first. `, el("a", { href: `#/held-out/${run.id}` }, "Test problems"), " show what changed."] : [`${page.total} problems, those whose answers changed most first`]), partly);
      table.hidden = !page.total;
      if (partly) load(0);
    } catch (error) {
      status.textContent = error.message;
    }
  }

  load(0);
  return {
    element: el("div", {}, problemTabs(run.id, "problems"), el("div", { class: "bar" }, labelled("Run", runs), search), status,
      el("div", { class: "scroll" }, table), more),
    moved: (newParts) => newParts[0] === run.id,
    leave: () => { asked += 1; },
  };
}

/** The mean reward at each appearance as a row of small bars, from the lowest of all to the highest. */
function strip(values) {
  const known = values.filter((value) => value !== null);
  const [low, high] = [Math.min(0, ...known), Math.max(...known, 1e-9)];
  const bars = values.map((value) => el("i", { class: value === null ? "" : `bar-${Math.round(((value - low) / (high - low)) * 9)}` }));
  return el("span", { class: "strip", role: "img", "aria-label": `mean rewards ${known.map((value) => number(value, 2)).join(", ")}` }, bars);
}

function row(run, one, once) {
  const name = el("th", { scope: "row" }, el("a", { href: problemAddress(run, one.problem) }, problemName(one.problem).slice(0, 160) || "(no name)"));
  if (once) return el("tr", { tabindex: "-1", "data-stop": "" }, name, el("td", {}, number(one.last.mean)), el("td", {}, String(one.last.step)));
  return el("tr", { tabindex: "-1", "data-stop": "" }, name,
    el("td", {}, strip(one.strip)),
    el("td", {}, String(one.seen)),
    el("td", {}, `${number(one.first.mean)} (step ${one.first.step})`),
    el("td", {}, `${number(one.last.mean)} (step ${one.last.step})`),
    el("td", { class: one.change > 0 ? "up" : one.change < 0 ? "down" : "" }, signed(one.change)));
}
