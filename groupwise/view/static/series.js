// Numbers over steps: smoothing, joining what came later, and the band of several seeds. No page here.

/** Exponential average that starts unbiased; gaps (null) stay gaps. weight 0 changes nothing. */
export function smooth(values, weight) {
  let total = 0;
  let mass = 0;
  return values.map((value) => {
    if (value === null) return null;
    total = weight * total + (1 - weight) * value;
    mass = weight * mass + (1 - weight);
    return total / mass;
  });
}

/** The window that the server sent, as {name: {steps, mean, low, high}}. */
export function unpack(window) {
  const columns = {};
  for (const [name, one] of Object.entries(window.series)) {
    columns[name] = { steps: window.grids[one.grid], mean: one.mean, low: one.low || null, high: one.high || null };
  }
  return columns;
}

/** Replace everything from step `start` on by what is newer. */
export function merge(old, newer, start) {
  const joined = { ...old };
  for (const [name, later] of Object.entries(newer)) {
    const before = old[name];
    if (!before) {
      joined[name] = later;
      continue;
    }
    let keep = before.steps.length;
    while (keep > 0 && before.steps[keep - 1] >= start) keep -= 1;
    const join = (a, b) => (a && b ? [...a.slice(0, keep), ...b] : null);
    joined[name] = {
      steps: join(before.steps, later.steps),
      mean: join(before.mean, later.mean),
      low: join(before.low, later.low),
      high: join(before.high, later.high),
    };
  }
  return joined;
}

/** Several runs of one experiment as one: the mean, and the lowest and highest, at each step. */
export function band(list) {
  const at = new Map();
  for (const { steps, mean } of list) {
    steps.forEach((step, i) => {
      if (mean[i] === null) return;
      const seen = at.get(step);
      if (seen) seen.push(mean[i]);
      else at.set(step, [mean[i]]);
    });
  }
  const steps = [...at.keys()].sort((a, b) => a - b);
  const values = steps.map((step) => at.get(step));
  return {
    steps,
    mean: values.map((v) => v.reduce((a, b) => a + b, 0) / v.length),
    low: values.map((v) => Math.min(...v)),
    high: values.map((v) => Math.max(...v)),
  };
}

/**
 * The ends of a value axis. A share goes from 0 to 1, or to somewhat above its highest value where all
 * are small, so that a change of one percent never fills the chart. Others get a margin.
 */
export function axisRange(low, high, share) {
  if (low === null || high === null || low === undefined) return [0, 1];
  if (share && low >= 0 && high <= 1) return [0, high > 0.25 ? 1 : Math.max(0.05, Math.ceil(high * 1.2 * 20) / 20)];
  const margin = (high - low) * 0.08 || Math.abs(high) * 0.1 || 1;
  // A line that comes near zero is drawn from zero on.
  return [low >= 0 && low < (high - low) * 0.5 ? 0 : low - margin, high + margin];
}

/** Whether a metric says something: a line that never changes needs no chart. */
export function isConstant(list) {
  let first;
  for (const { mean, low, high } of list) {
    for (const values of [mean, low || [], high || []]) {
      for (const value of values) {
        if (value === null) continue;
        if (first === undefined) first = value;
        if (value !== first) return false;
      }
    }
  }
  return true;
}

/** An evaluation curve: the value before training comes first, at step 0. */
export function fromTheStart(series, before) {
  if (before === undefined || before === null) return { steps: series.steps, mean: series.mean };
  const at = series.steps.findIndex((step) => step > 0);
  const rest = at < 0 ? series.steps.length : at;
  return { steps: [0, ...series.steps.slice(rest)], mean: [before, ...series.mean.slice(rest)] };
}

/** Bucket width that keeps a range of steps at some hundreds of points, about one a pixel or two. */
export function widthFor(first, last) {
  return Math.max(1, Math.ceil((last - first + 1) / 600));
}

/** Lines on their own steps -> one shared grid and a column for each. */
export function onOneGrid(columns) {
  const grid = [...new Set(columns.flatMap((column) => column.steps))].sort((a, b) => a - b);
  const place = new Map(grid.map((step, i) => [step, i]));
  return [
    grid,
    ...columns.map(({ steps, values }) => {
      const spread = new Array(grid.length).fill(null);
      steps.forEach((step, i) => { spread[place.get(step)] = values[i]; });
      return spread;
    }),
  ];
}
