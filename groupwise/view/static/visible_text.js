// What a model wrote, made safe to look at: characters that hide, reorder or control text are shown
// as their code points.

// Controls except tab and newline, DEL and C1, soft hyphen, marks that set direction, zero-width
// characters, line separators, lone surrogates, tag characters.
const HIDDEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|\p{Surrogate}|[\u{e0000}-\u{e007f}]/gu;

/** "a\u202eb" -> [{text: "a"}, {text: "U+202E", hidden: true}, {text: "b"}] */
export function visibleParts(text) {
  const parts = [];
  let end = 0;
  for (const match of text.matchAll(HIDDEN)) {
    if (match.index > end) parts.push({ text: text.slice(end, match.index), hidden: false });
    const code = match[0].codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    parts.push({ text: `U+${code}`, hidden: true });
    end = match.index + match[0].length;
  }
  if (end < text.length) parts.push({ text: text.slice(end), hidden: false });
  return parts;
}

/** "gsm8k/train/7"; of a dataset's row, which has a number alone, "row 7" */
export function problemName(name) {
  return visibleLine(/^\d+$/.test(name) ? `row ${name}` : name);
}

/** The text on one line, for titles and short labels. */
export function visibleLine(text) {
  return visibleParts(text).map((part) => part.text).join("");
}

/** Put text into an element, isolated from the direction of what stands around it. */
export function putText(element, text) {
  for (const part of visibleParts(text)) {
    if (part.hidden) {
      const mark = document.createElement("span");
      mark.className = "hidden-character";
      mark.textContent = part.text;
      element.append(mark);
    } else {
      element.append(document.createTextNode(part.text));
    }
  }
  return element;
}

export function textBlock(text, kind = "text") {
  const block = document.createElement("bdi");
  block.className = kind;
  return putText(block, text);
}
