// What the metrics are called and what they mean, in the order in which they are shown.

export const SECTIONS = [
  ["Reward and accuracy", /^(reward|reward_std|accuracy|no_spread|rewards\/.*|spread\/.*|varied\/.*)$/],
  ["Evaluations", /^eval\//],
  ["Policy", /^(loss|kl|entropy|ratio|clip_low|clip_high|grad_norm|lr|updates|skipped|entropy_weight)$/],
  ["Episodes", /^episode\//],
  ["Sampler against trainer", /^(sampler_gap|mismatch|off_policy|staleness)/],
  ["Lengths", /^(tokens|tokens_max|truncated|problems_drawn)$/],
  ["Time", /^(seconds.*|tokens_per_second)$/],
  ["Memory and devices", /memory|cpu|gpu/],
  ["Other", /./],
];

export const HEADLINES = 6;
const FIRST = ["eval/accuracy", "eval/reward", "reward", "accuracy", "entropy", "tokens", "kl", "no_spread", "episode/turns", "truncated", "grad_norm", "seconds", "loss"];
const SHARES = /^((eval\/)?(accuracy|format|truncated|sampled|sampled_format|pass@\d+|maj@\d+)|no_spread|clip_low|clip_high|varied\/.*|rewards\/(correct|format|answer)|eval\/rewards\/(correct|format|answer)|episode\/(turn_limit|failed|split|waiting)|gpu_busy)$/;

const WORDS = {
  reward: ["Reward", "mean reward of a step's answers"],
  reward_std: ["Spread of rewards", "standard deviation of rewards within a group, averaged over groups"],
  accuracy: ["Training accuracy", "share of a step's answers judged right"],
  "eval/accuracy": ["Evaluation accuracy", "share of greedy answers judged right, on problems that are not trained on; the first point is before training"],
  "eval/reward": ["Evaluation reward", "mean reward of greedy answers to problems that are not trained on"],
  "eval/sampled": ["Evaluation accuracy, sampled", "share of sampled answers judged right, on problems that are not trained on"],
  no_spread: ["No-spread groups", "share of groups whose answers all scored the same: nothing to learn from"],
  kl: ["KL to the reference", "distance from the reference model, per token"],
  entropy: ["Entropy", "how undecided the policy is, in nats per token"],
  ratio: ["Ratio", "policy now over policy that sampled, per token"],
  clip_low: ["Clipped from below", "share of tokens clipped from below"],
  clip_high: ["Clipped from above", "share of tokens clipped from above"],
  sampler_gap: ["Sampler gap", "mean difference between the sampler's and the trainer's log-probs"],
  grad_norm: ["Gradient norm", "size of the gradient before clipping"],
  lr: ["Learning rate", ""],
  loss: ["Loss", ""],
  truncated: ["Cut off", "share of answers cut off at the length limit"],
  tokens: ["Tokens per answer", "tokens that the model wrote per answer"],
  seconds: ["Seconds per step", ""],
  tokens_per_second: ["Tokens per second", ""],
  memory_gb: ["Peak memory, GB", ""],
  cpu_cores: ["CPU cores in use", "cores that the trainer's threads kept busy during the step"],
  gpu_busy: ["GPU in use", "share of the time in which a kernel ran on the GPU"],
  "episode/turns": ["Turns per episode", ""],
  "episode/calls": ["Tool calls per episode", ""],
  "episode/malformed": ["Malformed calls per episode", ""],
  "episode/failed": ["Failed episodes", "share of episodes whose environment failed"],
  "episode/waiting": ["Waiting for tools", "share of the episodes' time in which their environment was waited for"],
};

export function title(name) {
  return WORDS[name]?.[0] || name;
}

export function hint(name) {
  if (WORDS[name]) return WORDS[name][1] || name;
  if (name.startsWith("rewards/")) return `mean of the reward ${name.slice(8)}, before its weight`;
  if (name.startsWith("spread/")) return `spread of the reward ${name.slice(7)} within a group`;
  if (name.startsWith("varied/")) return `share of groups in which the reward ${name.slice(7)} differs between answers`;
  if (name.startsWith("seconds/")) return `seconds a step spent in ${name.slice(8)}`;
  return name.startsWith("eval/") ? "on problems that are not trained on; the first point is before training" : "";
}

/** Whether a metric is a share, which is drawn as a percentage from 0. */
export function isShare(name) {
  return SHARES.test(name);
}

const rank = (name) => (FIRST.includes(name) ? FIRST.indexOf(name) : FIRST.length);
const inOrder = (names) => [...names].sort((a, b) => rank(a) - rank(b) || a.localeCompare(b));

/** The few charts that come first. */
export function headlines(names) {
  const known = inOrder(names.filter((name) => FIRST.includes(name)));
  // The reward of evaluations is for runs in which nothing judges answers.
  return known.filter((name) => name !== "eval/reward" || !known.includes("eval/accuracy")).slice(0, HEADLINES);
}

/** Names -> [[section, names in order]], only sections that have some. */
export function grouped(names) {
  const left = new Set(names);
  const sections = [];
  for (const [heading, pattern] of SECTIONS) {
    const own = inOrder([...left].filter((name) => pattern.test(name)));
    own.forEach((name) => left.delete(name));
    if (own.length) sections.push([heading, own]);
  }
  return sections;
}
