// A chart as a file: its numbers as CSV, its picture as PNG or SVG. Nothing leaves this machine.

import { axisRange } from "./series.js";

function download(name, kind, content) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type: kind }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

const fileName = (name, ending) => `${name.replaceAll(/[^\w.@-]+/g, "-")}.${ending}`;

/** A cell that no spreadsheet takes for a formula. */
const cell = (text) => `"${String(text).replace(/^[=+\-@\t]/, "'$&").replaceAll('"', '""')}"`;

/** csv([{label, steps, x, mean}], "seconds") -> one row a point. */
export function csv(lines, axis) {
  const rows = lines.flatMap((line) => line.steps.map((step, i) => [cell(line.label), step, line.x[i], line.mean[i] ?? ""].join(",")));
  return [`line,step,${axis},value`, ...rows].join("\n") + "\n";
}

export function saveCsv({ name, lines, axis }) {
  download(fileName(name, "csv"), "text/csv", csv(lines, axis === "step" ? "x" : axis));
}

export function savePng({ name, title, canvas, style }) {
  const margin = 34;
  const copy = document.createElement("canvas");
  copy.width = canvas.width;
  copy.height = canvas.height + margin;
  const pen = copy.getContext("2d");
  pen.fillStyle = style("--paper");
  pen.fillRect(0, 0, copy.width, copy.height);
  pen.fillStyle = style("--ink");
  pen.font = "600 15px system-ui, sans-serif";
  pen.fillText(title, 12, 22);
  pen.drawImage(canvas, 0, margin);
  copy.toBlob((blob) => download(fileName(name, "png"), "image/png", blob));
}

const escaped = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll('"', "&quot;");

/** The lines as an SVG text, 640 x 320. */
export function svg(title, lines, colours) {
  const points = lines.flatMap((line) => line.x.map((x, i) => [x, line.mean[i]])).filter(([, y]) => y !== null);
  if (!points.length) return "";
  const [x0, x1] = [Math.min(...points.map(([x]) => x)), Math.max(...points.map(([x]) => x))];
  const [y0, y1] = axisRange(Math.min(...points.map(([, y]) => y)), Math.max(...points.map(([, y]) => y)), false);
  const at = ([x, y]) => `${(50 + (570 * (x - x0)) / (x1 - x0 || 1)).toFixed(1)},${(280 - (230 * (y - y0)) / (y1 - y0 || 1)).toFixed(1)}`;
  const drawn = lines.map((line) => `<polyline fill="none" stroke="${escaped(line.colour)}" stroke-width="1.8"${line.dashed ? ' stroke-dasharray="5 5"' : ""} points="${line.x.map((x, i) => [x, line.mean[i]]).filter(([, y]) => y !== null).map(at).join(" ")}"><title>${escaped(line.label)}</title></polyline>`);
  const tick = (x, y, anchor, text) => `<text x="${x}" y="${y}" text-anchor="${anchor}" font-size="11" fill="${colours.ink}">${escaped(text)}</text>`;
  const short = (value) => Number(value.toPrecision(4));
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 320" font-family="system-ui, sans-serif"><rect width="640" height="320" fill="${colours.paper}"/>`
    + `<text x="50" y="26" font-size="14" font-weight="600" fill="${colours.ink}">${escaped(title)}</text><path d="M50 50V280H620" fill="none" stroke="${colours.ink}" stroke-opacity=".3"/>`
    + tick(44, 284, "end", short(y0)) + tick(44, 54, "end", short(y1)) + tick(50, 298, "middle", short(x0)) + tick(620, 298, "end", short(x1)) + drawn.join("") + "</svg>\n";
}

export function saveSvg({ name, title, lines, style }) {
  download(fileName(name, "svg"), "image/svg+xml", svg(title, lines, { ink: style("--ink"), paper: style("--paper") }));
}
