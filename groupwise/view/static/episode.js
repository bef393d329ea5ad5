// An answer that was a conversation: the model's turns with their tokens and rewards, and what came back.

import { ask } from "./api.js";
import { longText, tokenSpan } from "./answer_text.js";
import { duration, el, number, signed } from "./dom.js";
import { visibleLine } from "./visible_text.js";

const MOST_PAGES = 30;

/** conversation(answer, where) is {element, colour(measure)}: turns in plain text until they are coloured. */
export function conversation(answer, where) {
  const { episode } = answer;
  const turns = new Map();
  const messages = episode.messages.map((message, i) => {
    const body = message.content || !message.calls.length ? longText(message.content, message.chars, where, answer.index, i) : el("div", {});
    if (message.turn !== null) turns.set(message.turn, body);
    return el("li", { class: `message ${message.turn === null ? "given" : "sampled"} role-${["user", "tool", "system"].includes(message.role) ? message.role : message.turn === null ? "user" : "assistant"}` },
      head(message, episode), body, message.calls.map(([name, text]) => el("p", { class: "call" }, el("b", {}, visibleLine(name)), el("code", {}, visibleLine(text)))));
  });
  const rest = episode.total_messages - messages.length;
  const element = el("div", { class: "conversation" }, facts(answer), el("ol", {}, messages), rest > 0 ? el("p", { class: "faint" }, `${rest} more messages are not shown`) : null,
    episode.error ? el("p", { class: "problem" }, `The environment failed: ${visibleLine(episode.error)}`) : null);

  /** The model's turns as the tokens that it sampled, in shades of a measure. */
  async function colour(measure) {
    const tokens = await sampledTokens(answer, where, measure);
    let at = 0;
    episode.turns.forEach((count, turn) => {
      const own = tokens.slice(at, at + count);
      at += count;
      if (own.length === count && count && turns.has(turn)) turns.get(turn).replaceChildren(el("bdi", { class: "text tokens" }, own));
    });
  }

  return { element, colour };
}

function head(message, episode) {
  if (message.turn === null) return el("p", { class: "who" }, el("b", {}, message.role === "tool" ? `tool ${visibleLine(message.name)}` : visibleLine(message.role)), el("span", { class: "faint" }, "not sampled"));
  const reward = episode.rewards[message.turn];
  const tokens = episode.turns[message.turn];
  return el("p", { class: "who" }, el("b", {}, `model, turn ${message.turn + 1}`), tokens === undefined ? null : el("span", { class: "faint" }, `${tokens} tokens sampled`),
    reward === null || reward === undefined ? null : el("span", { class: `badge ${reward > 0 ? "good" : reward < 0 ? "bad" : ""}` }, `reward ${signed(reward)}`));
}

function facts(answer) {
  const { episode } = answer;
  const parts = [`${episode.turns.length} ${episode.turns.length === 1 ? "turn" : "turns"}`, `${episode.calls ?? 0} ${episode.calls === 1 ? "call" : "calls"}`];
  if (episode.malformed) parts.push(`${episode.malformed} malformed`);
  if (answer.given_tokens) parts.push(`${answer.given_tokens} tokens of replies`);
  if (answer.segments.length > 1) parts.push(`${answer.segments.length} segments (the chat template rewrote the past)`);
  if (episode.seconds) parts.push(`${duration(episode.seconds)}, of which ${duration(episode.waited || 0)} waiting`);
  const scores = Object.entries(episode.scores).map(([name, value]) => el("span", { class: "badge" }, `${visibleLine(name)} ${number(value)}`));
  return el("p", { class: "facts faint" }, parts.join(" · "), " ", scores);
}

/** The spans of all sampled tokens of an episode, over its segments, in order. */
async function sampledTokens(answer, where, measure) {
  const spans = [];
  let pages = 0;
  for (const segment of answer.segments) {
    let first = 0;
    let total = 1;
    while (first < total && pages < MOST_PAGES) {
      const page = (await ask(`${where}/tokens`, { answer: segment, first })).answers[0];
      page.texts.forEach((text, i) => { if (!page.sampled || page.sampled[i]) spans.push(tokenSpan(text, page, i, measure)); });
      total = page.total;
      first = page.texts.length ? first + page.texts.length : total;
      pages += 1;
    }
  }
  return spans;
}
