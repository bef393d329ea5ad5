// Building elements. Data only ever becomes text: nothing here parses markup.

/** el("a", {href: "#/x", class: "link", on: {click: f}}, "text", child) */
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    } else if (value === true) {
      element.setAttribute(name, "");
    } else if (value !== false && value !== null && value !== undefined) {
      element.setAttribute(name, String(value));
    }
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** A control with its visible name. */
export function labelled(name, control, kind = "field") {
  return el("label", { class: kind }, el("span", {}, name), control);
}

export function select(options, value, change, name) {
  const control = el("select", { "aria-label": name, on: { change: () => change(control.value) } });
  for (const [key, label] of options) {
    control.append(el("option", { value: key, selected: key === value }, label));
  }
  return control;
}

/** 25.4251 -> "25.43": three decimals, fewer where the number is large */
export function number(value, wanted = 3) {
  if (value === null || value === undefined) return "–";
  if (Number.isInteger(value)) return String(value);
  const size = Math.abs(value);
  const digits = Math.min(wanted, size >= 100 ? 1 : size >= 10 ? 2 : 3);
  return size !== 0 && (size < 1e-3 || size >= 1e5) ? value.toExponential(2) : value.toFixed(digits);
}

/** 0.273 -> "27.3 %", which is never broken over two lines */
export function percent(value) {
  if (value === null || value === undefined) return "–";
  const shown = value * 100;
  return `${Math.abs(shown) >= 10 || Number.isInteger(shown) ? Number(shown.toFixed(1)) : Number(shown.toPrecision(2))}\u00a0%`;
}

/** 95 -> "95 s", 600 -> "10 min" */
export function duration(seconds) {
  if (seconds < 10) return `${Number(seconds.toFixed(1))} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${(seconds / 3600).toFixed(1)} h` : `${(seconds / 86400).toFixed(1)} days`;
}

/** Replace what an element holds; whoever had the focus (by data-key) has it still. */
export function redraw(element, ...children) {
  const key = element.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  element.replaceChildren(...children.flat().filter((child) => child !== null));
  if (key !== undefined) element.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus({ preventScroll: true });
}

export function signed(value, digits = 2) {
  return value === null || value === undefined ? "–" : (value >= 0 ? "+" : "−") + Math.abs(value).toFixed(digits);
}

/** For people who do not see the page: what just happened. */
export function announce(text) {
  document.getElementById("announcer").textContent = text;
}

/** Call `seen` once, when the element comes near the visible part of the page. */
export function whenSeen(element, seen) {
  const observer = new IntersectionObserver((entries) => {
    if (entries.some((entry) => entry.isIntersecting)) {
      observer.disconnect();
      seen();
    }
  }, { rootMargin: "300px" });
  observer.observe(element);
}
