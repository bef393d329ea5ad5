// Two texts word by word: what both have, what only the first has, what only the second has. No page here.

const MOST = 4000;

/** "a  b\n" -> ["a", "  ", "b", "\n"] */
function words(text) {
  return text.match(/\s+|[\p{L}\p{N}_]+|[^\s\p{L}\p{N}_]/gu) || [];
}

/** diff("a b", "a c") -> [{text: "a ", side: 0}, {text: "b", side: -1}, {text: "c", side: 1}] */
export function diff(before, after) {
  const [a, b] = [words(before), words(after)];
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start += 1;
  let end = 0;
  while (end < a.length - start && end < b.length - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end += 1;
  const middle = between(a.slice(start, a.length - end), b.slice(start, b.length - end));
  return joined([...a.slice(0, start).map((text) => ({ text, side: 0 })), ...middle, ...a.slice(a.length - end).map((text) => ({ text, side: 0 }))]);
}

/** By the longest common subsequence; of texts that are too long for that, all of both. */
function between(a, b) {
  if (a.length * b.length > MOST * MOST / 4) return [...a.map((text) => ({ text, side: -1 })), ...b.map((text) => ({ text, side: 1 }))];
  const width = b.length + 1;
  const longest = new Uint16Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      longest[i * width + j] = a[i] === b[j] ? longest[(i + 1) * width + j + 1] + 1 : Math.max(longest[(i + 1) * width + j], longest[i * width + j + 1]);
    }
  }
  const parts = [];
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      parts.push({ text: a[i], side: 0 });
      i += 1;
      j += 1;
    } else if (j >= b.length || (i < a.length && longest[(i + 1) * width + j] >= longest[i * width + j + 1])) {
      parts.push({ text: a[i], side: -1 });
      i += 1;
    } else {
      parts.push({ text: b[j], side: 1 });
      j += 1;
    }
  }
  return parts;
}

function joined(parts) {
  const whole = [];
  for (const part of parts) {
    if (whole.at(-1)?.side === part.side) whole.at(-1).text += part.text;
    else whole.push({ ...part });
  }
  return whole;
}
