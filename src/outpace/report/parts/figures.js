/* What traces add up to, what bench has measured, and what a plan says: tables, and charts beside them. */

const orDash = (value, shown) => (value === null || value === undefined ? "–" : shown(value));
const within = (interval, shown) => (interval ? ` [${interval.map(shown).join(", ")}]` : "");

/** Totals of every trace, and the two charts of the trace that the figure shows. */
function drawFigures(place) {
  const shown = player.runs[place].trace;
  speed.trace = DATA.summaries[shown];
  const names = ["trace", "drafter", "rule", "temperature", "texts", "turns", "plain", "tau", "acceptance", "lossless"];
  const rows = DATA.stories.map((story, at) => {
    const one = DATA.summaries[at];
    const values = [story.drafter ?? say("run.plain"), one.rules.join(", ") || "–", story.sampling.temperature, one.texts, one.turns,
      orDash(one.plain_turn_share, percent), orDash(one.tau, (tau) => tau.toFixed(2)) + within(one.tau_interval, (tau) => tau.toFixed(2)),
      orDash(one.acceptance, percent), say(one.lossless ? "yes" : "no")];
    return el("tr", { class: at === shown ? "now" : null }, el("th", { scope: "row", text: story.name }), ...values.map((value) => el("td", { text: value })));
  });
  refill(byId("totals"), el("caption", { class: "sr", text: say("figures.title") }),
    el("thead", {}, el("tr", {}, ...names.map((name) => el("th", { scope: "col", text: say(`total.${name}`) })))), el("tbody", {}, ...rows));
  drawPositions(DATA.stories[shown], speed.trace);
  drawTime(DATA.stories[shown], speed.trace);
  drawSpeed();
}

function drawPositions(story, { positions }) {
  byId("positions-title").textContent = say("positions.title", { name: story.name });
  if (!positions.length) {
    refill(byId("positions"), el("p", { text: say("positions.none") }));
    return;
  }
  const [width, height, left, right, top, bottom] = [520, 290, 44, 508, 34, 238];
  const x = scale(0, Math.max(4, positions.length), left, right);
  const y = scale(0, 1, bottom, top);
  const wide = Math.min(46, (right - left) / Math.max(4, positions.length) - 12);
  const bars = positions.map(({ rate, interval, tried, passed }, place) => {
    const middle_ = x(place + 0.5);
    return svg("g", {}, svg("title", { text: say("positions.ear", { place: place + 1, rate: percent(rate), passed, tried }) }),
      svg("rect", { class: "bar-rect", x: middle_ - wide / 2, y: y(rate), width: wide, height: bottom - y(rate), rx: 2 }),
      interval ? svg("line", { class: "whisker", x1: middle_, x2: middle_, y1: y(interval[0]), y2: y(interval[1]) }) : null,
      svg("text", { x: middle_, y: y(interval ? interval[1] : rate) - 6, "text-anchor": "middle", text: percent(rate) }),
      svg("text", { x: middle_, y: bottom + 17, "text-anchor": "middle", text: place + 1 }));
  });
  const ear = positions.map(({ rate, tried, passed }, place) => say("positions.ear", { place: place + 1, rate: percent(rate), passed, tried })).join("; ");
  refill(byId("positions"),
    svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": ear },
      frame({ x, y, xTicks: [], yTicks: ticks(0, 1), left, right, top, bottom, xLabel: say("positions.x"), yLabel: say("positions.y"), format: (value) => `${Math.round(100 * value)} %` }), ...bars),
    el("p", { class: "hint", text: say("positions.hint") }));
}

function drawTime(story, { seconds }) {
  byId("time-title").textContent = say("time.title", { name: story.name });
  const whole = Object.values(seconds).reduce((sum, one) => sum + one, 0);
  if (!(whole > 0)) {
    refill(byId("time"), el("p", { text: say("time.none") }));
    return;
  }
  let from = 0;
  const parts = Object.entries(seconds).map(([name, value]) => {
    const share = value / whole;
    const rect = svg("rect", { class: `part-${name}`, x: 2 + 516 * from, y: 4, width: Math.max(1, 516 * share - 2), height: 40, rx: 2 });
    from += share;
    return rect;
  });
  const rows = Object.entries(seconds).map(([name, value]) => el("tr", {},
    el("th", { scope: "row" }, svg("svg", { class: "key", viewBox: "0 0 14 10", width: 14, height: 10, "aria-hidden": "true" }, svg("rect", { class: `part-${name}`, width: 14, height: 10 })), say(`time.${name}`)),
    el("td", { class: "number", text: `${value.toFixed(value < 10 ? 2 : 1)} s` }), el("td", { class: "number", text: percent(value / whole) })));
  refill(byId("time"), svg("svg", { viewBox: "0 0 520 48", "aria-hidden": "true" }, ...parts), el("table", {}, el("tbody", {}, ...rows)),
    el("p", { class: "hint", text: say("time.hint") }));
}

// ---- bench and plan -----------------------------------------------------------------------------------------------

function openMeasured() {
  const open = (id) => {
    byId(id).hidden = false;
    document.querySelector(`nav [href="#${id}"]`).hidden = false;
  };
  if (DATA.bench.length) {
    open("measured");
    onChange(drawMeasured);
  }
  if (DATA.plans.length) {
    open("plan");
    onChange(drawPlans);
  }
}

const settingOf = (row) => `${row.method} · ${row.tree}${row.num_draft_tokens ? ` · ${row.num_draft_tokens}` : ""} · ${row.rule} · T ${row.temperature}`;

function drawMeasured() {
  const parts = DATA.bench.flatMap((bench) => {
    const groups = grouped(bench.rows, (row) => `${settingOf(row)} · ${say("batch", { batch: row.batch })}`);
    const about = Object.values(bench.about).join(" · ");
    return [el("h3", { text: `${bench.name}${about ? ` — ${about}` : ""}` }), bench.verdict ? el("p", { class: "note", text: bench.verdict }) : null,
      ...[...groups].filter(([, rows]) => rows.length > 1).map(([name, rows]) => speedups(name, rows)), byBatch(bench.rows), measuredTable(bench.rows)];
  });
  refill(byId("measured-body"), ...parts);
}

function grouped(rows, key) {
  const found = new Map();
  for (const row of rows) found.set(key(row), [...(found.get(key(row)) ?? []), row]);
  return found;
}

/** Categories below each other, a point and its interval each, beside the line where nothing is gained. */
function speedups(name, rows) {
  const ends = rows.flatMap((row) => row.speedup_ci ?? [row.speedup]);
  const [low, high] = [Math.min(0.8, ...ends), Math.max(1.2, ...ends) * 1.05];
  const [width, left, right, top] = [760, 170, 690, 30];
  const height = top + rows.length * 28 + 46;
  const x = scale(low, high, left, right);
  const bottom = height - 46;
  const marks = rows.map((row, place) => {
    const y = top + place * 28 + 14;
    const kind = row.speedup_ci === null ? "unclear" : row.speedup_ci[0] > 1 ? "faster" : row.speedup_ci[1] < 1 ? "slower" : "unclear";
    return svg("g", {}, svg("text", { x: left - 12, y: y + 4, "text-anchor": "end", text: row.category }),
      row.speedup_ci ? svg("line", { class: "whisker", x1: x(row.speedup_ci[0]), x2: x(row.speedup_ci[1]), y1: y, y2: y }) : null,
      kind === "slower" ? svg("rect", { class: `point ${kind}`, x: x(row.speedup) - 5, y: y - 5, width: 10, height: 10 }) : svg("circle", { class: `point ${kind}`, cx: x(row.speedup), cy: y, r: 6 }),
      svg("text", { x: width - 4, y: y + 4, "text-anchor": "end", text: `${row.speedup.toFixed(2)}×` }));
  });
  return el("div", { class: "panel" }, el("h3", { text: name }),
    svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": rows.map((row) => `${row.category} ${row.speedup.toFixed(2)}${within(row.speedup_ci, (one) => one.toFixed(2))}`).join("; ") },
      svg("rect", { class: "zone", x: left, y: top, width: Math.max(0, x(1) - left), height: bottom - top }),
      ...ticks(low, high).map((value) => svg("text", { x: x(value), y: bottom + 17, "text-anchor": "middle", text: `${value}×` })),
      svg("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }),
      svg("line", { class: "even-line", x1: x(1), x2: x(1), y1: top - 6, y2: bottom }),
      svg("text", { x: (left + right) / 2, y: bottom + 36, "text-anchor": "middle", text: say("measured.x") }), ...marks));
}

/** Speed-up against batch, where several were measured. */
function byBatch(rows) {
  const whole = rows.filter((row) => row.category === "all");
  const groups = [...grouped(whole, settingOf)].filter(([, some]) => new Set(some.map((row) => row.batch)).size > 1);
  if (!groups.length) return null;
  const batches = [...new Set(whole.map((row) => row.batch))].sort((one, other) => one - other);
  const [width, height, left, right, top, bottom] = [760, 320, 54, 690, 34, 266];
  const ends = whole.flatMap((row) => [...(row.speedup_ci ?? [row.speedup]), row.predicted_speedup ?? 1]);
  const x = scale(0, batches.length - 1, left + 20, right - 20);
  const y = scale(Math.min(0.6, ...ends), Math.max(1.2, ...ends), bottom, top);
  const drawn = groups.flatMap(([name, some], place) => {
    const sorted = [...some].sort((one, other) => one.batch - other.batch);
    const at = (row, value) => [x(batches.indexOf(row.batch)), y(value)];
    const last = sorted.at(-1);
    return [svg("path", { class: "curve", d: line(sorted.map((row) => at(row, row.speedup))), "stroke-dasharray": ["none", "7 4", "2 4", "9 3 2 3"][place % 4] }),
      ...sorted.filter((row) => row.speedup_ci).map((row) => svg("line", { class: "whisker", x1: at(row, 1)[0], x2: at(row, 1)[0], y1: at(row, row.speedup_ci[0])[1], y2: at(row, row.speedup_ci[1])[1] })),
      ...sorted.filter((row) => row.predicted_speedup !== null).map((row) => svg("rect", { class: "square", x: at(row, 1)[0] - 5, y: at(row, row.predicted_speedup)[1] - 5, width: 10, height: 10 })),
      ...sorted.map((row) => svg("circle", { class: "dot", cx: at(row, 1)[0], cy: at(row, row.speedup)[1], r: 5 })),
      groups.length > 1 ? svg("text", { x: right, y: at(last, last.speedup)[1] - 10, "text-anchor": "end", text: name }) : null];
  });
  return el("div", { class: "panel" }, el("h3", { text: say("batch.title") }),
    svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": whole.map((row) => `${say("batch", { batch: row.batch })} ${row.speedup.toFixed(2)}`).join("; ") },
      svg("rect", { class: "zone", x: left, y: y(1), width: right - left, height: Math.max(0, bottom - y(1)) }),
      frame({ x: (batch) => x(batches.indexOf(batch)), y, xTicks: batches, yTicks: ticks(Math.min(0.6, ...ends), Math.max(1.2, ...ends)), left, right, top, bottom, xLabel: say("batch.x"), yLabel: say("curve.y"), format: (value) => `${value}×` }),
      svg("line", { class: "even-line", x1: left, x2: right, y1: y(1), y2: y(1) }), ...drawn.filter(Boolean)),
    whole.some((row) => row.predicted_speedup !== null) ? el("p", { class: "hint", text: say("batch.hint") }) : null);
}

function measuredTable(rows) {
  const names = ["category", "setting", "batch", "prompts", "baseline", "drafted", "speedup", "tau", "acceptance", "plain"];
  const lines = rows.map((row) => {
    const values = [settingOf(row), row.batch, row.prompts || "–", orDash(row.baseline_tokens_per_second, (one) => one.toFixed(1)), orDash(row.tokens_per_second, (one) => one.toFixed(1)),
      `${row.speedup.toFixed(2)}×${within(row.speedup_ci, (one) => one.toFixed(2))}`, orDash(row.tau, (one) => one.toFixed(2)), orDash(row.acceptance, percent), orDash(row.plain_turn_share, percent)];
    return el("tr", {}, el("th", { scope: "row", text: row.category }), ...values.map((value) => el("td", { text: value })));
  });
  return el("div", { class: "scroll panel", tabindex: 0, role: "region", "aria-label": say("measured.title") },
    el("table", {}, el("thead", {}, el("tr", {}, ...names.map((name) => el("th", { scope: "col", text: say(`measure.${name}`) })))), el("tbody", {}, ...lines)));
}

function drawPlans() {
  const names = ["category", "batch", "temperature", "drafter", "num_draft_tokens", "tree", "depth", "rule"];
  const cell = (choice, name, place) => el(place ? "td" : "th", { scope: place ? null : "row", text: choice[name] ?? say("choice.open") });
  const gain = ({ evidence: found }) => found === null || found.speedup === null ? "–"
    : `${found.speedup.toFixed(2)}×${found.low === null ? "" : within([found.low, found.high], (one) => one.toFixed(2))}`;
  refill(byId("plan-body"), ...DATA.plans.flatMap((plan) => [
    el("p", { text: say(plan.goal ? "plan.goal" : "plan.target", plan) }),
    el("div", { class: "scroll panel", tabindex: 0, role: "region", "aria-label": say("plan.title") }, el("table", {},
      el("thead", {}, el("tr", {}, ...[...names, "speedup"].map((name) => el("th", { scope: "col", text: say(`choice.${name}`) })))),
      el("tbody", {}, ...plan.choices.map((choice) => el("tr", {}, ...names.map((name, place) => cell(choice, name, place)), el("td", { text: gain(choice) })))))),
    plan.reasons.length ? el("h3", { text: say("plan.reasons") }) : null,
    ...plan.reasons.flatMap(([about, sentences]) => [about ? el("p", { class: "about", text: about }) : null,
      el("ul", { class: "reasons" }, ...sentences.map((words) => el("li", { dir: "auto", text: words })))]),
  ]));
}
