/* The draft tree and its attention mask, drawn as far as a turn has come. */

const BOX = { width: 112, height: 44, across: 140, down: 58 };

const pieceText = (story, piece) => story.pieces.texts[piece];

/** Draw the tree. `choose(node)` is called when one is asked for: -1 is the root, "next" the target's own token. */
function drawTree(view, choose) {
  const { story, turn, state } = view;
  const { places, lines, depth } = (turn.layout ??= layout(turn));
  const [width, height] = [depth * BOX.across + BOX.width + 12, (lines - 1) * BOX.down + BOX.height + 14];
  const at = (place) => [6 + place.depth * BOX.across, 7 + place.line * BOX.down];
  const edges = svg("g", { "aria-hidden": "true" });
  const boxes = svg("g");
  const join = (from, to, kind) => {
    const [x1, y1] = at(from);
    const [x2, y2] = at(to);
    const [left, middle] = [x1 + BOX.width, y1 + BOX.height / 2];
    const bend = (x2 - left) / 2;
    edges.append(svg("path", { class: `edge ${kind}`, d: `M${left},${middle} C${left + bend},${middle} ${x2 - bend},${y2 + BOX.height / 2} ${x2},${y2 + BOX.height / 2}` }));
  };
  boxes.append(box(view, -1, at(places[0]), choose));
  for (let node = 0; node < state.drafted; node += 1) {
    const kind = state.nodes.get(node) ?? "waiting";
    const fresh = view.step.kind === "draft" && view.step.node === node ? " fresh" : "";
    join(places[turn.nodes[node][0] + 1], places[node + 1], kind + fresh);
    boxes.append(box(view, node, at(places[node + 1]), choose));
  }
  if (state.emitted) {
    join(places[turn.end.row], turn.nextPlace, `next ${turn.end.kind} fresh`);
    boxes.append(box(view, "next", at(turn.nextPlace), choose));
  }
  const tree = byId("tree");
  tree.setAttribute("viewBox", `0 0 ${width} ${height}`);
  tree.setAttribute("width", width);
  tree.setAttribute("height", height);
  refill(tree, edges, boxes);
}

/** One box: the root, a node, or the target's own token. */
function box(view, node, [x, y], choose) {
  const { story, turn, state } = view;
  const kind = node === -1 ? "root" : node === "next" ? `next ${turn.end.kind}` : state.nodes.get(node) ?? "waiting";
  const piece = node === -1 ? view.last : node === "next" ? turn.end.piece : turn.nodes[node][1];
  const fresh = (view.step.kind === "draft" && view.step.node === node) || (view.step.kind === "emit" && node === "next") ? " fresh" : "";
  const sign = { accepted: "✓", refused: "✗", next: "✦" }[kind.split(" ")[0]] ?? "";
  const shape = node === "next"
    ? svg("path", { d: `M14,0 H${BOX.width - 14} L${BOX.width},${BOX.height / 2} L${BOX.width - 14},${BOX.height} H14 L0,${BOX.height / 2} Z` })
    : svg("rect", { width: BOX.width, height: BOX.height, rx: 8 });
  const group = svg("g", {
    class: `box ${kind}${fresh}`, role: "button", "data-node": node, "aria-label": nodeWords(view, node),
    onclick: () => choose(node), onfocus: () => choose(node), onmouseenter: () => choose(node),
  },
  svg("rect", { class: "ring", x: -4, y: -4, width: BOX.width + 8, height: BOX.height + 8, rx: 11 }),
  shape,
  svg("text", { class: "word", x: node === "next" ? 18 : 10, y: 20, text: label(pieceText(story, piece), 8) }),
  svg("text", { class: "small", x: node === "next" ? 18 : 10, y: 37, text: boxFigures(view, node) }),
  svg("text", { class: "sign", x: BOX.width - (node === "next" ? 16 : 13 + 6.4 * String(node + 1).length), y: node === "next" ? 20 : 18, "text-anchor": "end", text: sign }),
  node >= 0 ? svg("text", { class: "small", x: BOX.width - 8, y: 18, "text-anchor": "end", text: `${node + 1}` }) : null);
  return svg("g", { transform: `translate(${x},${y})` }, group);
}

/** Bring the node in focus into sight, where the tree is wider than its panel. */
function reveal() {
  const holder = byId("tree-box");
  const chosen = document.querySelector("#tree .box.chosen");
  if (!chosen || holder.scrollWidth <= holder.clientWidth) return;
  const [inner, outer] = [chosen.getBoundingClientRect(), holder.getBoundingClientRect()];
  if (inner.left < outer.left) holder.scrollLeft += inner.left - outer.left - 12;
  if (inner.right > outer.right) holder.scrollLeft += inner.right - outer.right + 12;
}

function boxFigures(view, node) {
  if (node === -1) return say("tree.root");
  if (node === "next") return say(`kind.${view.turn.end.kind}`);
  const [, , drafted, target] = view.turn.nodes[node];
  return view.state.verified ? `q ${brief(drafted)}  p ${brief(target)}` : `q ${brief(drafted)}`;
}

const brief = (value) => (value === null ? "?" : value > 0 && value < 0.005 ? "<.01" : value >= 0.995 ? "1" : value.toFixed(2).replace(/^0/, ""));

/** A box for the ear. */
function nodeWords(view, node) {
  const { story, turn, state } = view;
  if (node === -1) return say("ear.root", { word: spoken(pieceText(story, view.last)) });
  if (node === "next") return say("ear.next", { word: spoken(pieceText(story, turn.end.piece)), kind: say(`kind.${turn.end.kind}`) });
  const [parent, piece, drafted, target] = turn.nodes[node];
  const behind = parent < 0 ? view.last : turn.nodes[parent][1];
  const words = say("ear.node", { number: node + 1, word: spoken(pieceText(story, piece)), parent: spoken(pieceText(story, behind)), draft: chance(drafted) });
  const verified = state.verified ? say("ear.target", { target: chance(target) }) : "";
  const kind = state.nodes.has(node) ? say(`ear.${state.nodes.get(node)}`) : "";
  return [words, verified, kind].filter(Boolean).join(" ");
}

/** Draw the mask: a row for what the target reads, a filled cell for what that row may see. */
function drawMask(view, choose) {
  const { story, turn, state } = view;
  const rows = turn.nodes.length + 1;
  const size = rows > 33 ? 8 : rows > 17 ? 12 : rows > 10 ? 15 : 19;
  const [words, text] = [size > 8 ? 112 : 26, 34];
  const mask = byId("mask");
  const [width, height] = [words + text + rows * size + 4, 24 + rows * size + 2];
  mask.setAttribute("viewBox", `0 0 ${width} ${height}`);
  mask.setAttribute("width", width);
  mask.setAttribute("height", height);
  const columns = svg("g", {}, svg("text", { x: words + text / 2, y: 15, "text-anchor": "middle", text: say("mask.text") }));
  for (let column = 0; column < rows && size > 8; column += 1) {
    columns.append(svg("text", { class: "column", "data-node": column - 1, x: words + text + (column + 0.5) * size, y: 15, "text-anchor": "middle", text: column || "·" }));
  }
  const drawn = [columns];
  for (let row = 0; row <= state.drafted; row += 1) {
    drawn.push(maskRow(view, row, { size, words, text, rows }, choose));
  }
  refill(mask, ...drawn);
}

function maskRow(view, row, { size, words, text, rows }, choose) {
  const { story, turn } = view;
  const piece = row === 0 ? view.last : turn.nodes[row - 1][1];
  const seen = new Set([0, ...(row ? pathTo(turn, row - 1).map((node) => node + 1) : [])]);
  const y = 24 + row * size;
  const group = svg("g", {
    class: "row", "data-node": row - 1, onclick: () => choose(row - 1), onmouseenter: () => choose(row - 1),
  },
  svg("rect", { x: 0, y, width: words, height: size, fill: "transparent" }),
  svg("text", { x: words - 8, y: y + size - Math.max(2, (size - 9) / 2), "text-anchor": "end", text: size > 8 ? `${label(pieceText(story, piece), 11)} ${row || "·"}` : row }),
  svg("rect", { class: "cell seen", x: words, y, width: text, height: size, rx: 2 }));
  for (let column = 0; column < rows; column += 1) {
    const kind = column === row ? "cell self" : seen.has(column) ? "cell seen" : column > view.state.drafted ? "cell off" : "cell";
    group.append(svg("rect", { class: kind, x: words + text + column * size, y, width: size, height: size, rx: 2 }));
  }
  return group;
}

/** Show which node is in focus, and what stands above it, in both drawings; nothing is drawn anew. */
function mark(view) {
  const above = new Set(typeof view.chosen === "number" && view.chosen >= 0 ? [-1, ...pathTo(view.turn, view.chosen)] : []);
  above.delete(view.chosen);
  const is = (element, node) => element.dataset.node === String(node);
  for (const one of document.querySelectorAll("#tree .box, #mask .row, #mask .column")) {
    const chosen = is(one, view.chosen);
    one.classList.toggle("chosen", chosen);
    one.classList.toggle("above", [...above].some((node) => is(one, node)));
    if (one.matches(".box")) {
      one.setAttribute("tabindex", chosen ? 0 : -1);
      one.setAttribute("aria-pressed", chosen);
    }
  }
  byId("mask").setAttribute("aria-label", maskWords(view));
}

function maskWords(view) {
  const node = view.chosen;
  if (typeof node !== "number" || node < 0) return say("mask.ear", { rows: view.turn.nodes.length + 1 });
  const above = pathTo(view.turn, node).slice(0, -1).map((one) => spoken(pieceText(view.story, view.turn.nodes[one][1])));
  return say("mask.ear.node", { word: spoken(pieceText(view.story, view.turn.nodes[node][1])), above: above.join(", ") || "–" });
}
