// Two texts beside each other, with what differs marked.

import { diff } from "./diff.js";
import { el } from "./dom.js";
import { putText } from "./visible_text.js";

/** sideBySide([heading, text], [heading, text]); a heading is what stands above a text. */
export function sideBySide([leftHead, left], [rightHead, right]) {
  const parts = diff(left, right);
  const column = (side, heading) => {
    const block = el("bdi", { class: "text" });
    for (const part of parts) {
      if (part.side === 0) putText(block, part.text);
      else if (part.side === side) putText(block.appendChild(el(side < 0 ? "del" : "ins", {})), part.text);
    }
    return el("div", { class: "side" }, el("p", { class: "side-head" }, heading), block);
  };
  return el("div", { class: "pair" }, column(-1, leftHead), column(1, rightHead));
}
