/* The little that charts have in common: a frame with axes, and a straight scale. */

/** A scale from values to places. */
const scale = (low, high, from, to) => (value) => from + ((value - low) / (high - low || 1)) * (to - from);

/** Round steps between two values, about so many. */
function ticks(low, high, count = 5) {
  const raw = (high - low || 1) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => one >= raw);
  const found = [];
  for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + step * 1e-9; value += step) found.push(Number(value.toFixed(10)));
  return found;
}

/** Grid lines and numbers along both axes, and what the axes are of. */
function frame({ x, y, xTicks, yTicks, left, right, top, bottom, xLabel, yLabel, format = String }) {
  return svg("g", { "aria-hidden": "true" },
    ...yTicks.map((value) => svg("line", { class: "grid", x1: left, x2: right, y1: y(value), y2: y(value) })),
    ...yTicks.map((value) => svg("text", { x: left - 8, y: y(value) + 4, "text-anchor": "end", text: format(value) })),
    ...xTicks.map((value) => svg("text", { x: x(value), y: bottom + 17, "text-anchor": "middle", text: String(value) })),
    svg("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }),
    svg("text", { x: (left + right) / 2, y: bottom + 36, "text-anchor": "middle", text: xLabel }),
    svg("text", { x: left - 8, y: top - 12, "text-anchor": "start", dx: -26, text: yLabel }));
}

const line = (points) => points.map(([x, y], place) => `${place ? "L" : "M"}${x.toFixed(1)},${y.toFixed(1)}`).join(" ");
