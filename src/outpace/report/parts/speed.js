/* How acceptance, draft length and cost make the speed-up. Costs are in forwards of the target over one row. */

const MOST = 16; // the longest draft that is looked at
const SLIDERS = {
  alpha: { min: 0, max: 1, step: 0.01, value: 0.8 },
  k: { min: 0, max: MOST, step: 1, value: 4 },
  cost: { min: 0, max: 1, step: 0.01, value: 0.05 },
  row: { min: 0, max: 0.3, step: 0.005, value: 0.02 },
};
const speed = { values: Object.fromEntries(Object.entries(SLIDERS).map(([name, one]) => [name, one.value])), trace: null };

/** Expected tokens of a turn: (1 - α^(K+1)) / (1 - α), and K + 1 at α = 1. Leviathan et al. 2023, equation 1. */
const expectedTokens = (alpha, k) => (alpha === 1 ? k + 1 : (1 - alpha ** (k + 1)) / (1 - alpha));

/** What a forward over some rows costs. */
const verifyCost = (row, rows) => 1 + row * (rows - 1);

/** What a turn costs: K draft steps, and a forward over K + 1 rows. */
const turnCost = ({ cost, row }, k) => k * cost + verifyCost(row, k + 1);

/** Tokens a second against plain decoding. */
const speedUp = (values, k) => expectedTokens(values.alpha, k) / turnCost(values, k);

/** The draft length of the largest speed-up, 0 included; the shorter one on ties. */
function bestK(values) {
  let best = 0;
  for (let k = 1; k <= MOST; k += 1) if (speedUp(values, k) > speedUp(values, best) + 1e-12) best = k;
  return best;
}

/** The acceptance from which a draft of K is no slower than plain decoding; null where even a perfect one is. */
function breakEven(values, k) {
  if (k === 0 || speedUp({ ...values, alpha: 1 }, k) < 1) return null;
  let [low, high] = [0, 1];
  for (let turn = 0; turn < 60; turn += 1) {
    const middle = (low + high) / 2;
    if (speedUp({ ...values, alpha: middle }, k) >= 1) high = middle;
    else low = middle;
  }
  return high;
}

function openSpeed() {
  const rows = Object.entries(SLIDERS).map(([name, { min, max, step }]) => el("div", {},
    el("label", { for: `slide-${name}` }, el("span", { "data-word": `slide.${name}` }), el("output", { id: `shown-${name}`, for: `slide-${name}` })),
    el("input", { type: "range", id: `slide-${name}`, min, max, step, oninput: (event) => {
      speed.values[name] = Number(event.target.value);
      drawSpeed();
    } })));
  const take = el("button", { type: "button", id: "take", "data-word": "take", onclick: takeTrace });
  const best = el("button", { type: "button", id: "take-best", "data-word": "take.best", onclick: () => {
    speed.values.k = bestK(speed.values);
    drawSpeed();
  } });
  refill(byId("sliders"), ...rows, el("div", { class: "buttons" }, best, take), el("p", { class: "hint", id: "taken" }));
  byId("sliders").addEventListener("submit", (event) => event.preventDefault());
  onChange(drawSpeed);
}

/** The shown trace's own acceptance, usual draft length and measured costs, where it tells them. */
function takeTrace() {
  const found = speed.trace && speedOf(speed.trace);
  if (!found) return;
  Object.assign(speed.values, found.values);
  drawSpeed();
  byId("taken").textContent = found.words;
}

/** A trace's values for the sliders; null where no draft of it was judged. */
function speedOf(trace) {
  if (trace.acceptance === null) return null;
  const { verify, draft_step: step } = trace.costs;
  const sizes = Object.keys(verify).map(Number);
  const values = { alpha: trace.acceptance, k: Math.min(MOST, trace.usual_depth) };
  if (!sizes.length || step === null) return { values, words: say("taken.alpha") };
  const [least, most] = [Math.min(...sizes), Math.max(...sizes)];
  const slope = most > least ? Math.max(0, (verify[most] - verify[least]) / (most - least)) : 0;
  const one = verify[least] - slope * (least - 1);
  values.cost = Math.min(SLIDERS.cost.max, step / one);
  values.row = Math.min(SLIDERS.row.max, slope / one);
  const words = say(most > least ? "taken.slope" : "taken.flat", { step: step.toFixed(1), one: one.toFixed(1), least, most });
  return { values, words };
}

function drawSpeed() {
  const { values } = speed;
  for (const name of Object.keys(SLIDERS)) {
    const input = byId(`slide-${name}`);
    input.value = values[name];
    byId(`shown-${name}`).textContent = name === "k" ? values.k : values[name].toFixed(name === "row" ? 3 : 2);
  }
  byId("taken").textContent = "";
  byId("take").hidden = !(speed.trace && speedOf(speed.trace));
  const best = bestK(values);
  const now = speedUp(values, values.k);
  const even = breakEven(values, values.k);
  const results = [
    ["tokens", expectedTokens(values.alpha, values.k).toFixed(2), ""],
    ["turn", `${turnCost(values, values.k).toFixed(2)}`, ""],
    ["speed", `${now.toFixed(2)}×`, values.k === 0 ? "" : now > 1 ? "wins" : "loses"],
    ["best", best === 0 ? say("best.plain") : `K = ${best}`, ""],
    ["even", values.k === 0 ? "–" : even === null ? say("even.never") : `α ≥ ${even.toFixed(2)}`, ""],
  ];
  refill(byId("results"), ...results.map(([name, value, kind]) =>
    el("div", { class: kind || null }, el("dt", { text: say(`result.${name}`) }), el("dd", { id: `result-${name}`, text: value }))));
  drawCurve(values, best);
  drawMap(values);
}

/** What the trace's own accepted lengths say, had its drafts been cut: [K, speed-up], for chains. */
function replayed(values) {
  const cut = speed.trace?.chain ? speed.trace.cut : [];
  return cut.map((tau, k) => [k, tau / turnCost(values, k), tau]).filter(([k]) => k > 0 && k <= MOST);
}

function drawCurve(values, best) {
  const [width, height, left, right, top, bottom] = [520, 330, 44, 508, 34, 278];
  const points = Array.from({ length: MOST + 1 }, (_, k) => [k, speedUp(values, k)]);
  const replays = replayed(values);
  const peak = Math.max(1.4, ...points.map((one) => one[1]), ...replays.map((one) => one[1])) * 1.12;
  const x = scale(0, MOST, left + 8, right);
  const y = scale(0, peak, bottom, top);
  const place = ([k, value]) => [x(k), y(value)];
  const [bestX, bestY] = place(points[best]);
  const chart = byId("curve");
  chart.setAttribute("viewBox", `0 0 ${width} ${height}`);
  chart.setAttribute("aria-label", say("curve.ear", { now: points[values.k][1].toFixed(2), k: values.k, best, most: points[best][1].toFixed(2) }));
  refill(chart,
    svg("rect", { class: "zone", x: left, y: y(1), width: right - left, height: bottom - y(1) }),
    frame({ x, y, xTicks: ticks(0, MOST, 8), yTicks: ticks(0, peak, 5), left, right, top, bottom, xLabel: say("curve.x"), yLabel: say("curve.y"), format: (value) => `${value}×` }),
    svg("line", { class: "even-line", x1: left, x2: right, y1: y(1), y2: y(1) }),
    svg("text", { class: "zone-word", x: right - 6, y: Math.min(y(1) + 18, bottom - 6), "text-anchor": "end", text: say("zone") }),
    svg("path", { class: "curve", d: line(points.map(place)) }),
    ...points.map((one) => svg("circle", { class: one[0] === values.k ? "dot now" : "dot", cx: place(one)[0], cy: place(one)[1], r: one[0] === values.k ? 6 : 3.5 })),
    ...replays.map((one) => svg("rect", { class: "square", x: place(one)[0] - 5, y: place(one)[1] - 5, width: 10, height: 10 })),
    svg("circle", { class: "dot best", cx: bestX, cy: bestY, r: 11 }),
    svg("text", { class: "best-word", x: Math.min(Math.max(bestX, left + 50), right - 50), y: Math.max(bestY - 18, 12), "text-anchor": "middle", text: best === 0 ? say("best.plain") : say("best.at", { k: best, value: points[best][1].toFixed(2) }) }));
  const own = replays.find(([k]) => k === values.k);
  byId("curve-hint").textContent = say("curve.hint") + (replays.length ? ` ${say("curve.replay")}` : "")
    + (own ? ` ${say("curve.own", { k: values.k, tau: own[2].toFixed(2), formula: expectedTokens(values.alpha, values.k).toFixed(2) })}` : "");
}

/** The best draft length over acceptance and draft cost, at this cost of a row. */
function drawMap(values) {
  const [width, height, left, right, top, bottom] = [520, 330, 44, 508, 34, 278];
  const [columns, lines] = [50, 25];
  const x = scale(0, 1, left, right);
  const y = scale(0, 1, bottom, top);
  const areas = new Map();
  for (let line_ = 0; line_ < lines; line_ += 1) {
    for (let column = 0; column < columns; column += 1) {
      const cell = { ...values, alpha: (column + 0.5) / columns, cost: (line_ + 0.5) / lines };
      const best = bestK(cell);
      if (!areas.has(best)) areas.set(best, { path: "", cells: [] });
      const area = areas.get(best);
      area.path += `M${x(column / columns).toFixed(1)},${y(line_ / lines).toFixed(1)} H${x((column + 1) / columns).toFixed(1)} V${y((line_ + 1) / lines).toFixed(1)} H${x(column / columns).toFixed(1)} Z`;
      area.cells.push([column, line_]);
    }
  }
  const drawn = [...areas].sort((one, other) => one[0] - other[0]).map(([best, area]) => {
    const path = svg("path", { d: area.path, class: best === 0 ? "zone" : "area" });
    if (best) {
      path.style.fill = "var(--accepted)";
      path.style.opacity = 0.1 + 0.6 * Math.sqrt(best / MOST);
    }
    return path;
  });
  const words = [...areas].filter(([best, area]) => area.cells.length > (best ? 22 : 60)).map(([best, area]) => {
    const [column, line_] = middle(area.cells);
    return svg("text", { class: best ? "cell-word" : "zone-word", "text-anchor": "middle", x: x((column + 0.5) / columns), y: y((line_ + 0.5) / lines) + 4, text: best ? best : say("zone") });
  });
  const chart = byId("map");
  chart.setAttribute("viewBox", `0 0 ${width} ${height}`);
  chart.setAttribute("aria-label", say("map.ear", { alpha: values.alpha.toFixed(2), cost: values.cost.toFixed(2), best: bestK(values) }));
  refill(chart, ...drawn,
    frame({ x, y, xTicks: ticks(0, 1), yTicks: ticks(0, 1), left, right, top, bottom, xLabel: say("map.x"), yLabel: say("map.y") }),
    ...words,
    svg("circle", { class: "dot", cx: x(values.alpha), cy: y(values.cost), r: 7 }),
    svg("circle", { class: "coin", cx: x(values.alpha), cy: y(values.cost), r: 3 }));
}

/** The cell of an area that lies nearest to its middle. */
function middle(cells) {
  const mean = [0, 1].map((axis) => cells.reduce((sum, cell) => sum + cell[axis], 0) / cells.length);
  const far = (cell) => (cell[0] - mean[0]) ** 2 + (cell[1] - mean[1]) ** 2;
  return cells.reduce((best, cell) => (far(cell) < far(best) ? cell : best));
}
