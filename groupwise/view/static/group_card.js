// A group as a card: the prompt once, then its answers, best advantage first, with why they scored.

import { ask } from "./api.js";
import { groupData, problemAddress } from "./addresses.js";
import { longText, tokenText } from "./answer_text.js";
import { transcript } from "./answer_pair.js";
import { el, number, signed, whenSeen } from "./dom.js";
import { conversation } from "./episode.js";
import { problemName, visibleLine } from "./visible_text.js";

const STOPS = { eos: "ended", stop: "stop string", length: "cut off", turns: "turn limit", environment: "environment failed" };

/** groupCard(group, {run, step, measure, marked}): marked is the answer to point out, if any. */
export function groupCard(group, { run, step, measure, marked = null, pair = null }) {
  if (group.unreadable) return el("article", { class: "card", tabindex: "-1", "data-stop": "" }, el("p", { class: "problem" }, group.problem));
  const where = groupData(run, step, group.index);
  const hits = new Set(group.hits && group.hits.length < group.answers.length ? group.hits : []);
  const ranked = [...group.answers].sort((a, b) => (b.advantage ?? -Infinity) - (a.advantage ?? -Infinity));
  const farthest = Math.max(1e-9, ...ranked.map((answer) => Math.abs(answer.advantage ?? 0)));
  const rows = folded(ranked).map((same) => answerRow(same, { where, farthest, hit: same.some((one) => hits.has(one.index)), marked: same.some((one) => one.index === marked),
    mark: pair && { pair, place: { run, step, group: group.index, answer: same[0].index } } }));
  const card = el("article", { class: "card", tabindex: "-1", "data-stop": "", "data-group": group.index, "aria-label": `Group ${group.index + 1}: ${problemName(group.problem).slice(0, 80)}` },
    head(group, run), prompt(group, where), el("ol", { class: "answers" }, rows.map((row) => row.element)));
  if (measure) whenSeen(card, () => colour(rows, where, measure, group.prefill));
  return card;
}

/** Answers that are the same word for word, and scored the same, are shown once: [[answer, ...], ...] */
export function folded(answers) {
  const same = new Map();
  for (const answer of answers) {
    const key = JSON.stringify([transcript(answer), answer.chars, answer.reward, answer.scores, answer.stop, answer.advantage]);
    same.set(key, [...(same.get(key) || []), answer]);
  }
  return [...same.values()];
}

function head(group, run) {
  const rewards = group.answers.map((answer) => answer.reward).filter((reward) => reward !== null);
  const mean = rewards.length ? rewards.reduce((a, b) => a + b, 0) / rewards.length : null;
  const follow = problemAddress(run, group.problem);
  return el("header", {}, el("h3", {}, el("a", { href: follow, title: "Follow this problem over training" }, problemName(group.problem).slice(0, 120) || "problem")),
    el("span", { class: "badge" }, `mean reward ${number(mean)}`),
    group.has_spread ? null : el("span", { class: "badge warn", title: "Every answer scored the same, so nothing is learned from this group" }, "no spread"),
    Object.entries(group.columns).slice(0, 4).map(([name, value]) => el("span", { class: "badge", title: visibleLine(value) }, `${visibleLine(name)}: ${visibleLine(value).slice(0, 60)}`)));
}

function prompt(group, where) {
  const body = longText(group.prompt, group.prompt_chars, where, undefined);
  const open = group.prompt_chars < 600;
  return el("details", { class: "prompt", open }, el("summary", {}, "Prompt"), body);
}

function answerRow(same, { where, farthest, hit, marked, mark }) {
  const [answer] = same;
  const talk = answer.episode ? conversation(answer, where) : null;
  const holder = el("div", { class: "words" }, talk ? talk.element : longText(answer.text, answer.chars, where, answer.index));
  const times = same.length > 1 ? el("b", { class: "times", title: `${same.length} answers are the same word for word` }, `×${same.length}`) : null;
  const compare = mark ? el("button", { class: "plain compare", "data-compare": mark.pair.nameOf(mark.place), "aria-pressed": mark.pair.isChosen(mark.place), title: "Mark to see beside another answer", on: { click: () => mark.pair.toggle(mark.place) } }, "compare") : null;
  const size = Math.round((Math.abs(answer.advantage ?? 0) / farthest) * 10);
  const verdict = answer.right === null ? null
    : el("span", { class: `badge ${answer.right ? "good" : "bad"}` }, answer.right ? "✓ right" : "✗ wrong");
  const scores = Object.entries(answer.scores).map(([name, value]) => [el("dt", {}, visibleLine(name)), el("dd", {}, number(value))]).flat();
  const element = el("li", { class: `answer${hit ? " hit" : ""}${marked ? " marked" : ""}`, "data-answer": answer.index },
    el("div", { class: "numbers" },
      el("p", { class: "first" }, el("span", { class: `advantage ${way(answer.advantage)} size-${size}`, title: "advantage" }, signed(answer.advantage)), times, compare),
      el("dl", {}, el("dt", {}, "reward"), el("dd", {}, number(answer.reward)), scores),
      el("p", {}, verdict, el("span", { class: `badge ${answer.stop === "length" ? "warn" : ""}` }, STOPS[answer.stop] || visibleLine(answer.stop)), el("span", { class: "faint" }, `${answer.tokens} tokens`))),
    holder);
  return { element, holder, answer, talk };
}

function way(advantage) {
  return advantage > 0 ? "up" : advantage < 0 ? "down" : "";
}

/** Replace plain texts by shaded tokens where the run stored the numbers and has a tokenizer. */
async function colour(rows, where, measure, prefill) {
  if (!rows.some(({ answer }) => answer.measures.includes(measure))) return;
  try {
    const pages = (await ask(`${where}/tokens`)).answers;
    for (const { talk } of rows) await talk?.colour(measure);
    for (const page of pages) {
      const row = rows.find(({ answer, talk }) => answer.index === page.answer && !talk);
      if (row && page.total) row.holder.replaceChildren(tokenText(page, measure, where, prefill));
    }
  } catch {
    // No tokenizer at hand: the plain text stays.
  }
}
