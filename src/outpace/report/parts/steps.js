/* A turn as steps that can be gone through, and what stands at each: no element is touched here.
   The form of a turn is that of report/story.py. */

/** The steps of a turn: it begins, nodes are drafted one by one, all are verified at once, tested, and a token is said. */
function stepsOf(turn) {
  const drafts = turn.nodes.map((_, node) => ({ kind: "draft", node }));
  const tests = turn.tests.map((test, place) => ({ kind: "test", place, node: test[0] }));
  return [{ kind: "begin" }, ...drafts, { kind: "verify" }, ...tests, { kind: "emit" }];
}

/** What stands after so many steps: how many nodes are drafted, whether they are verified, and what became of each. */
function stateAt(turn, steps, place) {
  const taken = steps.slice(0, place + 1);
  const drafted = taken.filter((step) => step.kind === "draft").length;
  const state = { drafted, verified: taken.some((step) => step.kind === "verify"), emitted: false, nodes: new Map() };
  for (const step of taken) {
    if (step.kind === "test") {
      const accepted = turn.tests[step.place][6] === 1;
      for (const node of accepted ? pathTo(turn, step.node) : [step.node]) {
        state.nodes.set(node, accepted ? "accepted" : "refused");
      }
    }
  }
  state.emitted = steps[place].kind === "emit";
  if (state.emitted) {
    turn.nodes.forEach((_, node) => {
      if (turn.path.includes(node)) state.nodes.set(node, "accepted");
      else if (!state.nodes.has(node)) state.nodes.set(node, "skipped");
    });
  }
  return state;
}

/** The nodes from the root's child down to a node, that node included. */
function pathTo(turn, node) {
  const path = [];
  for (let at = node; at >= 0; at = turn.nodes[at][0]) path.unshift(at);
  return path;
}

const childrenOf = (turn, row) => turn.nodes.flatMap((node, place) => (node[0] === row - 1 ? [place] : []));

/** Where a turn's rows stand: columns by depth, lines so that a first child stays beside its parent. */
function layout(turn) {
  const places = [{ depth: 0, line: 0 }];
  let lines = 0;
  const walk = (row, depth) => {
    const children = childrenOf(turn, row);
    const next = turn.end.row === row ? 1 : 0; // the target's own token hangs here, above refused children
    places[row] = { depth, line: lines };
    if (next) turn.nextPlace = { depth: depth + 1, line: lines };
    children.forEach((child, place) => {
      if (place > 0 || next) lines += 1;
      walk(child + 1, depth + 1);
    });
  };
  walk(0, 0);
  return { places, lines: lines + 1, depth: Math.max(...places.map((one) => one.depth), turn.nextPlace.depth) };
}

/** The drafted tokens of a turn that its text shows at a step: of a chain all of them, of a tree the accepted ones. */
function tokensAt(turn, steps, step) {
  const state = stateAt(turn, steps, step);
  const chain = turn.nodes.every((node, at) => node[0] === at - 1);
  const kindOf = (node) => state.nodes.get(node) ?? "waiting";
  const drafted = turn.nodes.map((_, node) => node).slice(0, state.drafted);
  const accepted = drafted.filter((node) => kindOf(node) === "accepted");
  const refused = chain ? drafted.filter((node) => kindOf(node) === "refused").slice(0, 1) : [];
  const shown = state.emitted ? [...accepted, ...refused] : chain ? drafted : accepted;
  return { own: shown.map((node) => ({ node, kind: kindOf(node) })), state };
}

/** The kind of every token that a run has said, and the turn that said it. */
function historyOf(run) {
  const kinds = [];
  run.turns.forEach((turn, place) => {
    turn.path.forEach(() => kinds.push({ kind: "accepted", turn: place }));
    kinds.push({ kind: turn.end.kind, turn: place });
  });
  return kinds;
}
