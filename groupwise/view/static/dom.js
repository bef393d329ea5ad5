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

export function number(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (Number.isInteger(value)) return String(value);
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-3 || size >= 1e5) ? value.toExponential(2) : value.toFixed(digits);
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
