// What tokens can be coloured by: how each number is named, written, and turned into a shade.

const LEVELS = 9;

const clamp = (share) => Math.round(Math.min(Math.max(share, 0), 1) * LEVELS);

export const MEASURES = {
  logprob: {
    label: "log-prob",
    legend: ["sure", "surprised"],
    shade: (value) => `heat-${clamp(1 - Math.exp(value))}`,
    written: (value) => `${value.toFixed(3)} (p = ${Math.exp(value).toFixed(3)})`,
  },
  entropy: {
    label: "entropy",
    legend: ["decided", "undecided"],
    shade: (value) => `heat-${clamp(value / 3)}`,
    written: (value) => `${value.toFixed(3)} nats`,
  },
  ratio: {
    label: "ratio (trainer over sampler)",
    legend: ["less likely now", "more likely now"],
    // The log of the ratio, so that half and double are as far from one.
    shade: (value) => {
      const way = Math.log(Math.max(value, 1e-12));
      return `${way < 0 ? "cold" : "heat"}-${clamp(Math.abs(way) / 0.5)}`;
    },
    written: (value) => value.toFixed(4),
  },
  kl: {
    label: "KL to the reference",
    legend: ["near", "far"],
    shade: (value) => `heat-${clamp(value / 0.5)}`,
    written: (value) => value.toFixed(4),
  },
};

MEASURES.advantage = {
  label: "advantage",
  legend: ["less likely", "more likely"],
  shade: (value) => `${value < 0 ? "cold" : "heat"}-${clamp(Math.abs(value) / 2)}`,
  written: (value) => value.toFixed(3),
};

export function shadeOf(measure, value) {
  return value === null || value === undefined ? "" : MEASURES[measure].shade(value);
}
