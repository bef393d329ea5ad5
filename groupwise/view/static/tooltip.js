// One tooltip for the whole page, filled with text.

import { el } from "./dom.js";

const box = document.getElementById("tooltip");

/** Show lines near an element: showTooltip(token, [["log-prob", "-0.12"], ...]) */
export function showTooltip(near, title, rows) {
  box.replaceChildren(el("b", {}, title), el("dl", {}, rows.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])));
  box.hidden = false;
  const place = near.getBoundingClientRect();
  const top = place.bottom + 6 + box.offsetHeight > innerHeight ? place.top - box.offsetHeight - 6 : place.bottom + 6;
  // Set through the object model, which the content policy allows.
  box.style.left = `${Math.max(4, Math.min(place.left, innerWidth - box.offsetWidth - 8))}px`;
  box.style.top = `${Math.max(4, top)}px`;
}

export function hideTooltip() {
  box.hidden = true;
}
