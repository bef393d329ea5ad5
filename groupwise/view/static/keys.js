// The keyboard. Single letters, and never while somebody is typing.

import { el } from "./dom.js";

const KEYS = [
  ["1 … 6", "the pages"],
  ["j  k", "next and previous group, problem or finding"],
  ["←  →", "previous and next step"],
  ["/", "search"],
  ["t", "light or dark"],
  ["?", "this list"],
  ["Esc", "leave a field, close this"],
];

export function bindKeys({ pages, go, theme, page }) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = event.target.closest?.("input, select, textarea");
    if (event.key === "Escape" && typing) return typing.blur();
    if (typing && typing.type !== "checkbox") return;
    const action = actionFor(event.key, { pages, go, theme, page });
    if (action) {
      event.preventDefault();
      action();
    }
  });
}

function actionFor(key, { pages, go, theme, page }) {
  if (key >= "1" && key <= String(pages.length)) return () => go(`#/${pages[key - 1]}`);
  const search = document.querySelector("main input[type=search]");
  return {
    "?": showHelp,
    t: theme,
    "/": search ? () => search.focus() : null,
    j: () => moveFocus(1),
    k: () => moveFocus(-1),
    ArrowLeft: page()?.step ? () => page().step(-1) : null,
    ArrowRight: page()?.step ? () => page().step(1) : null,
  }[key];
}

/** To the next or previous thing that a page marks as one (data-stop). */
function moveFocus(by) {
  const stops = [...document.querySelectorAll("main [data-stop]")];
  if (!stops.length) return;
  const now = stops.findIndex((stop) => stop.contains(document.activeElement));
  const next = stops[Math.min(Math.max(now + by, 0), stops.length - 1)];
  next.focus({ preventScroll: true });
  next.scrollIntoView({ block: "start" });
}

export function showHelp() {
  const dialog = document.getElementById("help");
  if (dialog.open) return dialog.close();
  const rows = KEYS.map(([key, meaning]) => el("tr", {}, el("th", { scope: "row" }, el("kbd", {}, key)), el("td", {}, meaning)));
  dialog.replaceChildren(el("h2", {}, "Keys"), el("table", {}, el("tbody", {}, rows)),
    el("button", { on: { click: () => dialog.close() } }, "Close"));
  dialog.showModal();
}
