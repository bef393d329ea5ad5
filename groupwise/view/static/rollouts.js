// The answers of a step, or those of all steps that match a search or a filter.

import { explainTokens } from "./answer_text.js";
import { ask } from "./api.js";
import { answerPair } from "./answer_pair.js";
import { announce, el, labelled, redraw, select, whenSeen } from "./dom.js";
import { groupCard } from "./group_card.js";
import { MEASURES } from "./measures.js";
import { searchResults } from "./search_results.js";
import { visibleLine } from "./visible_text.js";

const FILTERS = [
  ["", "all answers"],
  ["wrong_but_rewarded", "wrong but rewarded"],
  ["truncated", "cut off"],
  ["no_spread", "no spread"],
  ["new_best", "new best for its problem"],
  ["failed", "failed episodes"],
];

export function rollouts(frame, parts, query) {
  let run = frame.run(parts[0]);
  let steps = [];
  let step = Number(parts[1]) || null;
  let asked = 0;
  const view = { measure: query.get("colour") ?? localStorage.getItem("groupwise.measure") ?? "logprob", filter: query.get("filter") || "", q: query.get("q") || "", everywhere: query.has("everywhere") };
  if (view.measure === "nothing") view.measure = "";

  const list = el("div", { class: "cards" });
  const problem = el("p", { class: "problem", role: "alert" });
  const place = el("output", { class: "place" });
  const slider = el("input", { type: "range", min: 0, value: 0, "aria-label": "Step", on: { input: () => { place.textContent = `step ${steps[slider.value]}`; }, change: () => goTo(steps[slider.value]) } });
  const search = el("input", { type: "search", placeholder: "search (/)", "aria-label": "Search prompts and answers", value: view.q, on: { change: () => { view.q = search.value; choose(); } } });
  const scope = el("input", { type: "checkbox", checked: view.everywhere, on: { change: () => { view.everywhere = scope.checked; choose(); } } });
  const colours = el("span", {});
  const pair = answerPair(frame);
  const runs = select(frame.runs().map((one) => [one.id, visibleLine(one.name)]), run.id, (id) => frame.go(`#/rollouts/${id}`), "Run");
  const legend = el("span", { class: "legend" });
  const filter = select(FILTERS, view.filter, (value) => { view.filter = value; choose(); }, "Which answers");
  const bar = el("div", { class: "bar" }, labelled("Run", runs),
    el("span", { class: "stepper" }, el("button", { "aria-label": "Previous step", on: { click: () => moveBy(-1) } }, "←"), slider,
      el("button", { "aria-label": "Next step", on: { click: () => moveBy(1) } }, "→"), place),
    el("span", { class: "stepper" }, labelled("Colour by", colours), legend),
    labelled("Show", filter), search, labelled("in all steps", scope, "tick"));
  let offered = null;

  /** Only what the run stored can be chosen. */
  function offerColours(names) {
    const known = [...new Set(names)].join();
    if (known === offered) return;
    offered = known;
    const measures = Object.entries(MEASURES).filter(([key]) => known.split(",").includes(key)).map(([key, one]) => [key, one.label]);
    redraw(colours, select([...measures, ["", "nothing"]], view.measure, (value) => { view.measure = value; localStorage.setItem("groupwise.measure", value); choose(); }, "Colour tokens by"));
  }

  function choose() {
    frame.put({ filter: view.filter, q: view.q, everywhere: view.everywhere ? "yes" : null, colour: view.measure || "nothing", group: null, answer: null });
    show();
  }

  function goTo(wanted) {
    // The choices stay, those of one answer do not.
    const kept = new URLSearchParams(location.hash.split("?")[1] || "");
    ["group", "answer"].forEach((name) => kept.delete(name));
    if (wanted !== undefined) frame.go(`#/rollouts/${run.id}/${wanted}${kept.size ? `?${kept}` : ""}`);
  }

  function moveBy(by) {
    const now = steps.indexOf(step);
    const next = steps[Math.min(Math.max(now + by, 0), steps.length - 1)];
    if (next !== step) goTo(next);
  }

  async function loadSteps() {
    const now = frame.run(run.id);
    if (now.generation !== run.generation) steps = []; // the run went back to a checkpoint
    run = now;
    let reply = { more: true };
    while (reply.more) {
      reply = await ask(`runs/${run.id}/steps`, { after: steps.at(-1) || 0 });
      const last = steps.at(-1) || 0; // somebody else may have asked meanwhile
      steps = [...steps, ...reply.steps.filter((one) => one > last)];
    }
    if (step === null) step = steps.at(-1) ?? null;
    slider.max = Math.max(steps.length - 1, 0);
    slider.value = Math.max(steps.indexOf(step), 0);
    place.textContent = step === null ? "no answers stored" : `step ${step} of ${steps.at(-1)}`;
  }

  async function show(group = null, answer = null) {
    const mine = (asked += 1);
    problem.textContent = "";
    const measure = MEASURES[view.measure];
    legend.replaceChildren(...(measure ? [measure.legend[0], el("i", { class: "scale", "aria-hidden": "true" }), measure.legend[1]] : []));
    list.replaceChildren();
    try {
      await loadSteps();
      if (mine !== asked) return;
      if (view.everywhere && (view.q || view.filter)) {
        list.replaceChildren(searchResults(run.id, view, () => mine === asked));
      } else if (step !== null) {
        if (group) list.append(el("p", {}, el("button", { on: { click: () => show() } }, `Show the ${group} groups before this one too`)));
        await page(group || 0, mine, group, answer);
      }
    } catch (error) {
      problem.textContent = error.message;
    }
  }

  /** A page of cards; the next is fetched when its end comes into sight. */
  async function page(first, mine, group, answer) {
    const reply = await ask(`runs/${run.id}/steps/${step}/groups`, { first, filter: view.filter, q: view.q });
    if (mine !== asked) return;
    if (reply.indexed !== undefined) {
      problem.textContent = `Reading earlier steps to compare with: ${reply.indexed} of ${reply.steps} …`;
      return page(first, mine, group, answer);
    }
    problem.textContent = "";
    offerColours([...(offered || "").split(",").filter(Boolean), ...reply.groups.flatMap((one) => (one.answers || []).flatMap((answer) => answer.measures))]);
    const cards = reply.groups.map((one) => groupCard(one, { run: run.id, step, measure: view.measure, marked: one.index === group ? answer : null, pair }));
    list.append(...cards);
    const begins = first === (group || 0);
    if (begins) announce(`step ${step}, ${cards.length} groups`);
    if (begins && !cards.length) list.append(el("p", { class: "empty" }, "No answer of this step matches."));
    if (reply.next !== null) {
      const end = el("p", { class: "faint" }, "…");
      list.append(end);
      whenSeen(end, async () => { await page(reply.next, mine, group, answer); end.remove(); });
    }
    if (begins && group !== null) {
      const place = list.querySelector(".marked") || list.querySelector(".card");
      place?.scrollIntoView({ block: "center", behavior: "instant" });
    }
  }

  function moved(newParts, newQuery) {
    const [id, newStep] = newParts;
    if (id !== run.id) return false;
    step = Number(newStep) || step;
    const one = newQuery.has("group"); // a link to one answer shows all of its step
    view.everywhere = scope.checked = !one && newQuery.has("everywhere");
    view.filter = filter.value = (!one && newQuery.get("filter")) || "";
    view.q = search.value = (!one && newQuery.get("q")) || "";
    pair.open(newQuery.get("diff"));
    show(numberIn(newQuery, "group"), numberIn(newQuery, "answer"));
    return true;
  }

  explainTokens(list);
  show(numberIn(query, "group"), numberIn(query, "answer"));
  pair.open(query.get("diff"));
  return { element: el("div", {}, bar, problem, pair.element, list), moved, step: moveBy, changed: () => loadSteps().catch(() => {}), leave: () => { asked += 1; } };
}

function numberIn(query, name) {
  return query.has(name) ? Number(query.get(name)) : null;
}
