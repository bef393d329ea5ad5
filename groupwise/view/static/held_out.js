// Test problems: the greedy answer before training beside that after, those that changed first.

import { ask } from "./api.js";
import { el, labelled, number, percent, select, signed } from "./dom.js";
import { problemTabs } from "./problems.js";
import { sideBySide } from "./side_by_side.js";
import { textBlock, visibleLine } from "./visible_text.js";

export function heldOut(frame, parts, query) {
  const run = frame.run(parts[0]);
  const status = el("p", { class: "faint", role: "status" });
  const table = el("div", {});
  const list = el("div", { class: "cards" });
  const more = el("button", { hidden: true, on: { click: () => load(list.childElementCount) } }, "More");
  const search = el("input", { type: "search", placeholder: "problem or answer (/)", "aria-label": "Search test problems", value: query.get("q") || "", on: { change: () => { frame.put({ q: search.value }); load(0); } } });
  const runs = select(frame.runs().map((one) => [one.id, visibleLine(one.name)]), run.id, (id) => frame.go(`#/held-out/${id}`), "Run");
  let asked = 0;

  async function load(first) {
    const mine = (asked += 1);
    try {
      const page = await ask(`runs/${run.id}/held_out`, { first, q: search.value });
      if (mine !== asked) return;
      if (first === 0) list.replaceChildren();
      list.append(...page.problems.map(card));
      more.hidden = list.childElementCount >= page.total;
      status.textContent = page.total ? `${page.total} problems: ${page.gained} better after training, ${page.lost} worse` : search.value ? "No problem or answer has this in it." : "No test answers are stored yet: they are written before and after training.";
    } catch (error) {
      status.textContent = error.message;
    }
  }

  async function compare() {
    const shown = frame.shown();
    try {
      table.replaceChildren(comparison(await ask("compare", { run: shown.length > 1 ? shown.map((one) => one.id) : [run.id] })));
    } catch (error) {
      // Runs that cannot be compared with each other: this one, before against after.
      table.replaceChildren(comparison(await ask("compare", { run: [run.id] })), el("p", { class: "faint" }, visibleLine(error.message)));
    }
  }

  load(0);
  compare().catch(() => table.replaceChildren());
  return { element: el("div", {}, problemTabs(run.id, "held-out"), el("div", { class: "bar" }, labelled("Run", runs), search), table, el("h2", {}, "Answers before and after training"), status, list, more), moved: (next) => next[0] === run.id, leave: () => { asked += 1; } };
}

function card(one) {
  const way = one.change > 0 ? "good" : one.change < 0 ? "bad" : "";
  const word = one.change === null ? "" : one.change > 0 ? "better" : one.change < 0 ? "worse" : "unchanged";
  const body = one.before && one.after ? sideBySide([verdict("before", one.before), one.before.text], [verdict("after", one.after), one.after.text])
    : el("div", {}, verdict(one.before ? "before" : "after", one.before || one.after), textBlock((one.before || one.after).text));
  return el("article", { class: "card", tabindex: "-1", "data-stop": "" }, el("header", {}, el("h3", {}, visibleLine(one.id).slice(0, 160)), word ? el("span", { class: `badge ${way}` }, word) : null), body);
}

function verdict(moment, answer) {
  const right = answer.correct === null ? null : el("span", { class: `badge ${answer.correct > 0.5 ? "good" : "bad"}` }, answer.correct > 0.5 ? "✓ right" : "✗ wrong");
  return el("span", {}, `${moment} `, right, answer.reward === null ? null : el("span", { class: "badge" }, `reward ${number(answer.reward, 2)}`), answer.truncated ? el("span", { class: "badge warn" }, "cut off") : null);
}

const SHARES = ["correct", "sampled", "format", "truncated"];
const LABELS = { correct: "accuracy (greedy)", sampled: "accuracy (sampled)", truncated: "cut off", tokens: "tokens per answer" };

/** Runs, or before and after, on the same problems, with 95 % intervals. */
function comparison({ names, problems, rows, notes }) {
  const head = el("tr", {}, el("th", { scope: "col" }, ""), names.map((name) => el("th", { scope: "col" }, visibleLine(name))), el("th", { scope: "col" }, "difference"));
  const lines = rows.map((row) => {
    const written = (value) => (SHARES.includes(row.metric) ? percent(value) : number(value, 2));
    const points = (value) => (SHARES.includes(row.metric) ? `${signed(value * 100, 1)} points` : signed(value, 2));
    const interval = (one, written) => [el("b", {}, written(one.value)), one.low === one.high ? null : el("span", { class: "faint interval" }, ` ${[one.low, one.high].map((end) => written(end).replace(/\spoints$/, "")).join(" to ").replace(/\s%(?= to)/, "")}`)];
    const last = row.differences.at(-1);
    return el("tr", {}, el("th", { scope: "row" }, LABELS[row.metric] || visibleLine(row.metric).replace("rewards/", "reward: ")), row.values.map((one) => el("td", {}, interval(one, written))),
      el("td", { class: { better: "up", worse: "down" }[last?.word] || "" }, last ? [...interval(last, points), el("span", { class: "interval word" }, ` ${last.word}`)] : "–"));
  });
  return el("section", {}, el("h2", {}, `On the same ${problems} test problems`), el("div", { class: "scroll" }, el("table", { class: "table nowrap" }, el("thead", {}, head), el("tbody", {}, lines))),
    el("p", { class: "faint" }, `The ranges are 95 % intervals over problems, paired.${notes.length ? ` ${notes.map(visibleLine).join(" ")}` : ""}`));
}
