// Curves of the action chunk (SVG) and the timeline of steps (canvas).
const STAGES = [
  ["prefill", "prefill: read pictures and prompt", (ms) => (ms.prefill || 0) + (ms.prefill_text || 0)],
  ["act", "act: make the actions", (ms) => ms.act || 0],
  ["decode", "decode: write text", (ms) => ms.decode || 0],
  ["other", "other: plan, deliver, commit", (ms) => (ms.plan || 0) + (ms.deliver || 0) + (ms.commit || 0) + (ms.deliver_text || 0)],
];
const SVG = "http://www.w3.org/2000/svg";
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

export function drawLegend(list) {
  list.replaceChildren(...STAGES.map(([variable, label]) => {
    const item = document.createElement("li"), key = document.createElement("i");
    key.style.background = `var(--${variable})`;
    item.append(key, label);
    return item;
  }));
}

// One {name, unit} per action dimension, from the robot's description.
function dimensions(parts, dim) {
  const name = (part, i) => (part.dim > 1 ? `${part.name} ${i + 1}` : part.name);
  const all = parts.flatMap((part) => Array.from({ length: part.dim }, (_, i) => ({ name: name(part, i), unit: part.unit })));
  return Array.from({ length: dim }, (_, i) => all[i] || { name: `dimension ${i + 1}`, unit: "" });
}

// actions: rows of a chunk. The first `executed` are drawn strong, the rest pale.
export function drawCurves(host, actions, parts, executed) {
  const dim = actions[0].length, labels = dimensions(parts, dim);
  while (host.children.length > dim) host.lastChild.remove();
  while (host.children.length < dim) host.append(newCurve());
  for (let d = 0; d < dim; d++) {
    const values = actions.map((row) => row[d]);
    const low = Math.min(0, ...values), high = Math.max(0, ...values), span = high - low || 1;
    const y = (v) => 44 - (42 * (v - low)) / span;
    const x = (i) => (100 * i) / Math.max(1, values.length - 1);
    const line = (from, to) => values.slice(from, to).map((v, i) => `${i ? "L" : "M"}${x(from + i).toFixed(1)} ${y(v).toFixed(1)}`).join("");
    const curve = host.children[d], [name, value] = curve.querySelectorAll(".name span"), unit = curve.querySelector(".unit");
    name.textContent = name.title = labels[d].name;
    value.textContent = values[0].toFixed(3);
    unit.textContent = unit.title = labels[d].unit;
    const [now, later] = curve.querySelectorAll("path");
    now.setAttribute("d", line(0, executed));
    later.setAttribute("d", line(Math.max(0, executed - 1), values.length));
    const zero = curve.querySelector("line");
    zero.setAttribute("y1", y(0));
    zero.setAttribute("y2", y(0));
    curve.title = `${labels[d].name}: ${values.map((v) => v.toFixed(2)).join(", ")}`;
  }
}

function newCurve() {
  const curve = document.createElement("div");
  curve.className = "curve";
  const name = document.createElement("div");
  name.className = "name";
  name.append(document.createElement("span"), document.createElement("span"));
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 100 46");
  svg.setAttribute("preserveAspectRatio", "none");
  const zero = document.createElementNS(SVG, "line");
  zero.setAttribute("class", "zero");
  zero.setAttribute("x1", 0);
  zero.setAttribute("x2", 100);
  const now = document.createElementNS(SVG, "path"), later = document.createElementNS(SVG, "path");
  later.setAttribute("class", "later");
  svg.append(zero, now, later);
  const unit = document.createElement("div");
  unit.className = "unit";
  curve.append(name, svg, unit);
  return curve;
}

export function drawSteps(canvas, steps) {
  const ratio = devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight;
  if (!width || !height) return;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  const left = 46, bottom = 20, plotWidth = width - left, plotHeight = height - bottom - 6;
  const slot = Math.max(4, Math.min(14, plotWidth / Math.max(1, steps.length)));
  const shown = steps.slice(-Math.floor(plotWidth / slot));
  const total = (step) => STAGES.reduce((sum, [, , read]) => sum + read(step.ms), 0);
  // One slow step must not flatten all others: the axis fits nearly all of them, and what passes it is marked.
  const totals = shown.map(total), sorted = [...totals].sort((a, b) => a - b);
  const usual = sorted[Math.floor(0.96 * (sorted.length - 1))] || 0;
  const top = niceTop(Math.max(1e-3, Math.min(sorted[sorted.length - 1] || 0, 1.5 * usual)));
  drawAxis(pen, left, plotWidth, plotHeight, top);
  shown.forEach((step, i) => {
    let y = plotHeight + 6;
    const x = left + i * slot;
    for (const [variable, , read] of STAGES) {
      const h = Math.min((plotHeight * read(step.ms)) / top, y - 6);
      if (h <= 0) continue;
      pen.fillStyle = color(variable);
      pen.fillRect(x, y - h, slot - 1, Math.max(h - (h > 3 ? 1 : 0), 0.5));
      y -= h;
    }
    if (totals[i] > top) {
      pen.fillStyle = color("ink");
      pen.fillRect(x, 2, slot - 1, 3);
    }
  });
  pen.fillStyle = color("soft");
  pen.fillText(shown.length ? `one bar per step, ${shown[0].step} to ${shown[shown.length - 1].step}; a mark on top: longer than the axis` : "no steps yet", left, height - 4);
}

function drawAxis(pen, left, width, height, top) {
  pen.font = "11px system-ui, sans-serif";
  pen.textBaseline = "alphabetic";
  for (const part of [0, 0.5, 1]) {
    const y = Math.round(6 + height * (1 - part)) + 0.5;
    pen.strokeStyle = color("line");
    pen.beginPath();
    pen.moveTo(left, y);
    pen.lineTo(left + width, y);
    pen.stroke();
    pen.fillStyle = color("soft");
    pen.textAlign = "right";
    pen.fillText(`${+(top * part).toPrecision(2)} ms`, left - 6, y + 4);
  }
  pen.textAlign = "left";
}

function niceTop(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((n) => n * power).find((n) => n >= value);
}
