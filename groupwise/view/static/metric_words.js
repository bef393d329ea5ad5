// What the metrics are called and what they mean, in the order in which they are shown.

export const SECTIONS = [
  ["Reward and accuracy", /^(reward|reward_std|accuracy|no_spread|rewards\/.*|eval\/.*)$/],
  ["Policy", /^(loss|kl|entropy|ratio|clip_low|clip_high|grad_norm|lr|updates|entropy_weight)$/],
  ["Sampler against trainer", /^(sampler_gap|mismatch|off_policy)/],
  ["Lengths", /^(tokens|tokens_max|truncated|problems_drawn)$/],
  ["Time", /^(seconds.*|tokens_per_second)$/],
  ["Memory", /memory/],
  ["Other", /./],
];

const FIRST = ["reward", "accuracy", "eval/accuracy", "kl", "entropy", "loss", "tokens", "seconds"];

const HINTS = {
  reward: "mean reward of a step's answers",
  reward_std: "spread of rewards within a group, averaged over groups",
  accuracy: "share of training answers judged right",
  "eval/accuracy": "greedy accuracy on held-out problems",
  no_spread: "share of groups whose answers all scored the same: nothing to learn from",
  kl: "distance from the reference model, per token",
  entropy: "how undecided the policy is, per token",
  ratio: "policy now over policy that sampled, per token",
  clip_low: "share of tokens clipped from below",
  clip_high: "share of tokens clipped from above",
  sampler_gap: "mean difference between the sampler's and the trainer's log-probs",
  grad_norm: "size of the gradient before clipping",
  truncated: "share of answers cut off at the length limit",
  tokens: "tokens per answer",
  memory_gb: "peak memory",
};

export function hint(name) {
  if (HINTS[name]) return HINTS[name];
  if (name.startsWith("rewards/")) return `mean of the reward ${name.slice(8)}, before its weight`;
  if (name.startsWith("seconds/")) return `seconds a step spent in ${name.slice(8)}`;
  return name.startsWith("eval/") ? "on held-out problems" : "";
}

/** Names -> [[section, names in order]], only sections that have some. */
export function grouped(names) {
  const left = new Set(names);
  const rank = (name) => (FIRST.includes(name) ? FIRST.indexOf(name) : FIRST.length);
  const found = [];
  for (const [title, pattern] of SECTIONS) {
    const own = [...left].filter((name) => pattern.test(name)).sort((a, b) => rank(a) - rank(b) || a.localeCompare(b));
    own.forEach((name) => left.delete(name));
    if (own.length) found.push([title, own]);
  }
  return found;
}
