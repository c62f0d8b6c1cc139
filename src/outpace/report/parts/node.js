/* The node in focus: what target and drafter give at its place, the coin, the verdict, and what a refusal leaves. */

const UNIT = { width: 420, height: 76, left: 10, right: 10 };

/** Draw the panel of the node in focus. */
function drawNode(view) {
  const { story, turn, state, chosen } = view;
  const row = rowOf(view);
  const law = turn.rows[row];
  const word = chosen === -1 ? pieceText(story, view.last) : chosen === "next" ? pieceText(story, turn.end.piece) : pieceText(story, turn.nodes[chosen][1]);
  byId("node-title").textContent = say(chosen === "next" ? "node.next" : chosen === -1 ? "node.root" : "node.title", { word: label(word, 24), number: chosen + 1 });
  drawLaw(view, law, row);
  refill(byId("test"), ...(chosen === "next" ? ending(view) : chosen === -1 ? [] : tested(view)));
  byId("about").textContent = [law?.about ? say("about") : "", state.emitted && !turn.explained ? say("unexplained") : ""].filter(Boolean).join(" ");
}

/** The row of laws that belongs to what is in focus: a node's token stands in its parent's row. */
function rowOf({ turn, chosen }) {
  if (chosen === "next") return turn.end.row;
  return chosen === -1 ? 0 : turn.nodes[chosen][0] + 1;
}

function drawLaw(view, law, row) {
  const table = byId("law");
  if (!law) {
    refill(table);
    return;
  }
  const { story, turn, state, chosen } = view;
  const columns = [["target", 1, state.verified], ["draft", 2, law.rest[1] !== null], ["left", 3, state.emitted && law.rest[2] !== null && chosen === "next"]]
    .filter((column) => column[2]);
  const own = chosen === "next" ? turn.end.piece : chosen === -1 ? null : turn.nodes[chosen][1];
  const behind = row === 0 ? view.last : turn.nodes[row - 1][1];
  const head = el("tr", {}, el("th", { scope: "col", text: say("law.token") }), ...columns.map(([name]) =>
    el("th", { scope: "col" }, el("span", { class: `key ${name}`, "aria-hidden": "true" }), say(`law.${name}`))));
  const lines = law.law.map((entry) => el("tr", { class: entry[0] === own ? "own" : null },
    el("th", { scope: "row", title: `id ${story.pieces.ids[entry[0]]}`, dir: "auto", text: label(pieceText(story, entry[0]), 18) }),
    ...columns.map(([name, place]) => meter(name, entry[place]))));
  const rest = columns.some(([, place]) => law.rest[place - 1] > 0.0005)
    ? [el("tr", {}, el("th", { scope: "row", text: say("law.rest") }), ...columns.map(([name, place]) => meter(name, law.rest[place - 1], true)))] : [];
  refill(table, el("caption", { text: say(law.fixed && law.rest[1] !== null ? "law.caption.fixed" : "law.caption", { word: label(pieceText(story, behind), 18) }) }),
    el("thead", {}, head), el("tbody", {}, ...lines, ...rest));
}

function meter(name, value, rest = false) {
  const bar = el("span", { class: `meter ${name}`, "aria-hidden": "true" });
  bar.style.setProperty("--share", value ?? 0);
  bar.style.opacity = rest ? 0.4 : 1;
  return el("td", {}, el("span", { class: "amount", text: chance(value) }), value ? bar : null);
}

/** How a drafted node was tested: ratio, chance and coin, or the target's own choice. */
function tested(view) {
  const { turn, state, chosen, story } = view;
  const kind = state.nodes.get(chosen) ?? "waiting";
  const place = turn.tests.findIndex((one) => one[0] === chosen);
  const verdict = el("p", { class: `verdict ${kind}`, text: say(`verdict.${kind}`) });
  if (!state.verified || kind === "waiting") return [verdict, el("p", { text: say(state.verified ? "test.waiting" : "test.drafted") })];
  if (place < 0) return [verdict, el("p", { text: say(kind === "skipped" ? "test.skipped" : "test.passed") })];
  const [, target, draft, weight, odds, coin, accepted, about] = turn.tests[place];
  const found = [verdict];
  if (odds === null) {
    found.push(el("p", { text: say(`test.${turn.rule === "typical" ? "typical" : "choice"}.${accepted ? "yes" : "no"}`, choiceWords(view, chosen)) }));
    if (coin !== null) found.push(el("p", { class: "hint", text: say("test.match.coin", { coin: chance(coin) }) }));
    return found;
  }
  const sign = about ? "≈" : "=";
  const whole = turn.rule === "block" || turn.rule === "traversal";
  if (whole) {
    found.push(el("p", { class: "math", text: `h ${sign} ${chance(odds)}` }), el("p", { class: "hint", text: say(`test.${turn.rule}`) }));
  } else {
    const shown = target === 0 ? "0" : ratio(target / draft);
    found.push(el("p", { class: "math", text: `p / q = ${chance(target)} / ${chance(draft)} ${sign} ${shown}` }));
    if (Math.abs(weight - 1) > 1e-6) found.push(el("p", { class: "hint", text: say("test.weight", { weight: chance(weight) }) }));
    const earlier = turn.tests.slice(0, place).some((one) => turn.nodes[one[0]][0] === turn.nodes[chosen][0] && one[6] === 0);
    if (earlier) found.push(el("p", { class: "hint", text: say("test.sibling") }));
  }
  found.push(unitScale(odds, coin, accepted), el("p", { class: "math", text: say(`test.coin.${accepted ? "yes" : "no"}`, { coin: chance(coin), chance: chance(odds) }) }));
  const overlap = turn.rows[turn.nodes[chosen][0] + 1]?.overlap;
  if (overlap !== null && overlap !== undefined) found.push(el("p", { class: "hint", text: say("test.overlap", { overlap: chance(overlap) }) }));
  return found;
}

const ratio = (value) => (value >= 1000 ? "> 999" : value >= 10 ? value.toFixed(0) : value < 0.0005 ? value.toExponential(0).replace("e-", "e−") : value.toPrecision(3));

/** What the target chose where a node's token was guessed, which is what was said there. */
function choiceWords(view, node) {
  const { story, turn } = view;
  const depth = pathTo(turn, node).length - 1;
  const on = turn.path[depth];
  const piece = on === undefined ? turn.end.piece : turn.nodes[on][1];
  return { choice: label(pieceText(story, piece), 24), token: label(pieceText(story, turn.nodes[node][1]), 24) };
}

/** The unit interval: up to the chance a coin accepts, behind it it refuses. */
function unitScale(odds, coin, accepted) {
  const inner = UNIT.width - UNIT.left - UNIT.right;
  const x = (value) => UNIT.left + value * inner;
  const marks = [0, 0.25, 0.5, 0.75, 1].map((value) =>
    svg("text", { x: x(value), y: 68, "text-anchor": "middle", text: String(value).replace(/^0\./, ".") }));
  return svg("svg", { viewBox: `0 0 ${UNIT.width} ${UNIT.height}`, role: "img", "aria-label": say(`test.coin.${accepted ? "yes" : "no"}`, { coin: chance(coin), chance: chance(odds) }) },
    svg("rect", { class: "scale-no", x: x(0), y: 32, width: inner, height: 20 }),
    svg("rect", { class: "scale-yes", x: x(0), y: 32, width: Math.max(0, odds * inner), height: 20 }),
    svg("path", { class: "coin", d: `M${x(coin)},${accepted ? 34 : 34} l-7,-13 h14 Z` }),
    svg("text", { x: Math.min(Math.max(x(coin), 30), UNIT.width - 30), y: 15, "text-anchor": "middle", text: say("coin", { coin: chance(coin) }) }),
    ...marks);
}

/** How the target's own token came about. */
function ending(view) {
  const { story, turn } = view;
  const { kind, coin, mass, residual, about } = turn.end;
  const words = { word: label(pieceText(story, turn.end.piece), 24), coin: chance(coin), sign: about ? "≈" : "=", mass: chance(mass) };
  const chosen = ["greedy", "match", "coupling"].includes(turn.rule) ? turn.rule : null;
  const how = residual ? "end.residual" : chosen ? `end.${chosen}` : turn.rule === "typical" && kind === "correction" ? "end.typical" : `end.${kind}`;
  const found = [el("p", { class: `verdict ${kind}`, text: say(`verdict.${kind}`) }), el("p", { text: say(how, words) })];
  if (residual) found.push(el("p", { class: "math", text: say(turn.rule === "block" || turn.rule === "traversal" ? "end.math.left" : "end.math") }), el("p", { class: "hint", text: say("end.mass", words) }));
  if (coin !== null && !chosen) found.push(el("p", { class: "hint", text: say("end.coin", words) }));
  return found;
}
