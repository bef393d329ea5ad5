// The words of one answer: as tokens in shades, or as plain text; a long one a piece at a time.

import { ask } from "./api.js";
import { el } from "./dom.js";
import { MEASURES, shadeOf } from "./measures.js";
import { hideTooltip, showTooltip } from "./tooltip.js";
import { putText, textBlock, visibleLine } from "./visible_text.js";

/** Plain text that was cut for its card, with a button for the next piece. `where` names its address. */
export function longText(shown, chars, where, answer, message) {
  const block = textBlock(shown);
  const holder = el("div", { class: "long" }, block);
  let done = shown.length;
  if (done < chars) {
    const button = el("button", { class: "more", on: { click: more } });
    const label = () => { button.textContent = `Show more (${done.toLocaleString("en")} of ${chars.toLocaleString("en")} characters)`; };
    label();
    holder.append(button);
    async function more() {
      const page = await ask(`${where}/text`, { first: done, answer, message });
      putText(block, page.text);
      done += page.text.length;
      if (done < page.chars && page.text) label();
      else button.remove();
    }
  }
  return holder;
}

/** Tokens in shades of a measure. `page` is what the server sent; more pages on demand. */
export function tokenText(page, measure, where, prefill) {
  const block = el("bdi", { class: "text tokens" });
  const holder = el("div", { class: "long" }, block);
  if (prefill) putText(block.appendChild(el("span", { class: "prefill", title: "given, not sampled" })), prefill);
  let done = 0;
  const add = (one) => {
    one.texts.forEach((text, i) => block.append(tokenSpan(text, one, i, measure)));
    done = one.first + one.texts.length;
  };
  add(page);
  if (done < page.total) {
    const button = el("button", { class: "more", on: { click: async () => {
      const next = (await ask(`${where}/tokens`, { answer: page.answer, first: done })).answers[0];
      add(next);
      if (done < page.total && next.texts.length) label();
      else button.remove();
    } } });
    const label = () => { button.textContent = `Show more (${done} of ${page.total} tokens)`; };
    label();
    holder.append(button);
  }
  return holder;
}

/** One token. Those that the model was given, and did not sample, look like it. */
export function tokenSpan(text, page, i, measure) {
  const values = page.measures[measure];
  const given = page.sampled && !page.sampled[i];
  const span = el("span", { class: `token ${given ? "prefill" : values ? shadeOf(measure, values[i]) : ""}` });
  putText(span, text === "" ? "·" : text);
  span.numbers = () => {
    const rows = Object.entries(page.measures).map(([name, list]) => [MEASURES[name].label, list[i] === null ? "–" : MEASURES[name].written(list[i])]);
    return [`“${visibleLine(text).replaceAll("\n", "⏎")}”`, [...(given ? [["not sampled", "given to the model"]] : []), ["token", String(page.ids[i])], ["place", String(page.first + i)], ...rows]];
  };
  return span;
}

/** One listener for all tokens of a page: thousands of them stay cheap. */
export function explainTokens(element) {
  const show = (event) => {
    const span = event.target.closest(".token");
    if (span?.numbers) showTooltip(span, ...span.numbers());
    else hideTooltip();
  };
  element.addEventListener("pointerover", show);
  element.addEventListener("pointerleave", hideTooltip);
}
