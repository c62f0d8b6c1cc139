/* Going through the turns: the text that grows, the controls, the strip of all turns, and the keyboard. */

const SHOWN_BEFORE = 240; // tokens of the text that are kept on the page: a long text costs no more than a short one
const PLAY_MS = { draft: 420, verify: 900, test: 1300, emit: 1500, begin: 500 };
const player = { runs: [], view: null, timer: null };

/** Every run of every trace, with what is derived from it once. */
function openRuns() {
  DATA.stories.forEach((story, place) => {
    for (const run of story.runs) player.runs.push({ story, run, trace: place, history: null });
  });
}

function show(place, turn, step, chosen) {
  const { story, run } = player.runs[place];
  const at = Math.max(0, Math.min(turn, run.turns.length - 1));
  const now = run.turns[at];
  const steps = (now.steps ??= stepsOf(now));
  const reached = step < 0 ? steps.length - 1 : Math.min(step, steps.length - 1);
  const state = stateAt(now, steps, reached);
  const last = at === 0 ? run.before[0] : run.turns[at - 1].end.piece;
  const view = { place, story, run, at, turn: now, steps, reached, step: steps[reached], state, last };
  const fresh = player.view === null || player.view.place !== place;
  player.view = view;
  view.chosen = chosen ?? usual(view);
  if (fresh) openRun(view);
  drawTree(view, choose);
  drawMask(view);
  mark(view);
  reveal();
  drawNode(view);
  drawText(view);
  drawWhere(view);
}

/** Which node a step is about. */
function usual({ step, state, turn }) {
  if (step.kind === "emit") return "next";
  if (step.kind === "draft" || step.kind === "test") return step.node;
  return step.kind === "verify" && turn.nodes.length ? 0 : -1;
}

function choose(node) {
  const { view } = player;
  if (view.chosen === node || (typeof node === "number" && node >= view.state.drafted)) return;
  view.chosen = node;
  mark(view);
  drawNode(view);
}

/** What stays while one run is shown: rule, note, strip, slider. */
function openRun({ story, run, turn }) {
  const rules = [...new Set(run.turns.filter((one) => one.nodes.length).map((one) => one.rule))];
  const named = rules.length ? rules : [turn.rule];
  const lossy = run.turns.some((one) => !one.lossless);
  const words = named.flatMap((rule) => [el("b", { text: rule }), ` — ${say(`rule.${rule}` in DATA.words.en ? `rule.${rule}` : "rule.other")} `]);
  refill(byId("rule"), `${say("rule")} `, ...words, el("span", { class: lossy ? "badge lossy" : "badge", text: say(lossy ? "lossy" : "lossless") }));
  const note = [story.note, story.words ? "" : say("no.words")].filter(Boolean).join("\n");
  byId("note").hidden = !note;
  byId("note").textContent = note;
  byId("turn").max = run.turns.length - 1;
  drawStrip(run);
  drawFigures(player.view.place);
}

/** One bar a turn: what was drafted, what of it was accepted, and the target's own token at its foot. */
function drawStrip(run) {
  const deepest = Math.max(1, ...run.turns.map((turn) => turn.path.length), ...run.turns.map((turn) => (turn.layout ??= layout(turn)).depth));
  const unit = 44 / (deepest + 1);
  const gap = run.turns.length > 150 ? 0 : 0.12;
  const path = (low, high) => run.turns.map((turn, place) => {
    const [from, to] = [44 - unit * low(turn), 44 - unit * high(turn)];
    return from > to ? `M${place + gap},${from} H${place + 1 - gap} V${to} H${place + gap} Z` : "";
  }).join("");
  const strip = byId("strip");
  strip.setAttribute("viewBox", `0 0 ${run.turns.length} 44`);
  refill(strip,
    svg("path", { class: "drafted", d: path(() => 1, (turn) => 1 + Math.max(0, ...(turn.nodes.length ? turn.layout.places.map((one) => one.depth) : [0]))) }),
    svg("path", { class: "accepted", d: path(() => 1, (turn) => 1 + turn.path.length) }),
    svg("path", { class: "own", d: path(() => 0.15, () => 1) }),
    svg("rect", { class: "now", id: "now", y: 0, width: 1, height: 44 }));
}

function drawText(view) {
  const { story, run, turn, at } = view;
  const holder = player.runs[view.place];
  holder.history ??= historyOf(run);
  const from = Math.max(0, turn.at - SHOWN_BEFORE);
  const spans = [el("span", { class: "token before", text: from > 0 ? "… " : `${say("text.before")} ` })];
  for (let place = from; place < turn.at; place += 1) {
    spans.push(token(run.said[place], holder.history[place].kind, "", holder.history[place].turn));
  }
  const { own, state } = tokensAt(turn, view.steps, view.reached);
  own.forEach(({ node, kind }, place) => {
    const said = kind === "accepted" ? run.said[turn.at + place] : pieceText(story, turn.nodes[node][1]);
    spans.push(token(said, kind, "now", at));
  });
  if (state.emitted) spans.push(token(run.said[turn.at + turn.path.length], turn.end.kind, "now", at));
  refill(byId("text"), ...spans);
  const text = byId("text");
  text.scrollTop = text.scrollHeight;
}

/** A token of the text: what it says, its kind, and the turn that said it. */
function token(said, kind, now, turn) {
  const parts = signs(said).split(/(↵|⇥|⟨[0-9A-F]+⟩)/).filter(Boolean).flatMap((part) =>
    part === "↵" ? [el("span", { class: "sign", text: "↵" }), "\n"] : /^(⇥|⟨)/.test(part) ? [el("span", { class: "sign", text: part })] : [part]);
  return el("span", { class: `token ${kind} ${now}`.trim(), "data-turn": turn }, ...(parts.length ? parts : [el("span", { class: "sign", text: "·" })]));
}

function drawWhere(view) {
  const { run, at, steps, reached, state, turn } = view;
  byId("where").textContent = say("where", { turn: at + 1, turns: run.turns.length, step: reached + 1, steps: steps.length });
  byId("turn").value = at;
  byId("turn").setAttribute("aria-valuetext", say("where.turn", { turn: at + 1, turns: run.turns.length }));
  byId("now").setAttribute("x", at);
  byId("back").disabled = byId("turn-back").disabled = at === 0 && reached === 0;
  byId("forward").disabled = at === run.turns.length - 1 && reached === steps.length - 1;
  byId("turn-forward").disabled = at === run.turns.length - 1;
  byId("said").textContent = narration(view);
}

/** What happens at a step, in words. */
function narration(view) {
  const { story, turn, step, at } = view;
  const word = (piece) => `“${label(pieceText(story, piece), 24)}”`;
  if (step.kind === "begin") return say(at === 0 && !turn.nodes.length ? "step.prompt" : turn.nodes.length ? "step.begin" : "step.begin.plain", { last: word(view.last), count: turn.nodes.length });
  if (step.kind === "draft") return nodeWords(view, step.node);
  if (step.kind === "verify") return say(turn.nodes.length ? "step.verify" : "step.verify.plain", { rows: turn.nodes.length + 1 });
  if (step.kind === "test") return testWords(view, turn.tests[step.place], word);
  const accepted = turn.path.length;
  return say(turn.nodes.length ? `step.emit.${turn.end.kind}` : "step.emit.plain", { word: word(turn.end.piece), count: accepted, all: accepted + 1 });
}

function testWords(view, [node, target, draft, , odds, coin, accepted, about], word) {
  const names = { word: word(view.turn.nodes[node][1]), coin: chance(coin), chance: (about ? "≈ " : "") + chance(odds), ...choiceWords(view, node) };
  if (odds === null) return say(`step.${view.turn.rule === "typical" ? "typical" : "choice"}.${accepted ? "yes" : "no"}`, names);
  return say(`step.test.${accepted ? "yes" : "no"}`, names);
}

// ---- going ------------------------------------------------------------------------------------------------------

function stepBy(count) {
  const { place, at, reached, steps, run } = player.view;
  const next = reached + count;
  if (next >= 0 && next < steps.length) show(place, at, next);
  else if (next < 0 && at > 0) show(place, at - 1, -1);
  else if (next >= steps.length && at < run.turns.length - 1) show(place, at + 1, 0);
  else stop();
}

function turnBy(count) {
  const { place, at, reached, steps } = player.view;
  if (count < 0 && reached > 0) show(place, at, 0);
  else if (count > 0 && reached < steps.length - 1) show(place, at, -1);
  else show(place, at + count, count < 0 ? 0 : -1);
}

function play() {
  if (player.timer !== null) {
    stop();
    return;
  }
  const { at, reached, steps, run, place } = player.view;
  if (at === run.turns.length - 1 && reached === steps.length - 1) show(place, 0, 0);
  byId("play").textContent = say("pause");
  const beat = () => {
    stepBy(1);
    if (player.timer !== null) player.timer = setTimeout(beat, PLAY_MS[player.view.step.kind]);
  };
  player.timer = setTimeout(beat, PLAY_MS.begin);
}

function stop() {
  clearTimeout(player.timer);
  player.timer = null;
  byId("play").textContent = say("play");
}

/** Arrow keys step, with shift by turns; up and down go through the nodes while the tree has the focus. */
function onKey(event) {
  const target = event.target;
  if (event.ctrlKey || event.metaKey || event.altKey || target.matches("input, select, textarea") || player.view === null) return;
  const { top, bottom } = byId("turns").getBoundingClientRect();
  if (bottom < 0 || top > window.innerHeight) return; // whoever reads on below scrolls with these keys
  const onButton = target.closest("button, a") !== null;
  const acts = {
    ArrowRight: () => (event.shiftKey ? turnBy(1) : stepBy(1)),
    ArrowLeft: () => (event.shiftKey ? turnBy(-1) : stepBy(-1)),
    Home: target.closest("#tree") ? () => focusNode(-1) : null,
    ArrowDown: target.closest("#tree") ? () => nodeBy(1) : null,
    ArrowUp: target.closest("#tree") ? () => nodeBy(-1) : null,
    " ": onButton ? null : play,
  };
  const act = acts[event.key];
  if (!act) return;
  const inTree = target.closest("#tree") !== null;
  if (event.key !== " ") stop();
  event.preventDefault();
  act();
  if (inTree && event.key !== " ") focusNode(player.view.chosen);
}

function nodeBy(count) {
  const nodes = [...document.querySelectorAll("#tree .box")];
  const now = nodes.findIndex((one) => one.dataset.node === String(player.view.chosen));
  const next = nodes[Math.max(0, Math.min(nodes.length - 1, now + count))];
  choose(next.dataset.node === "next" ? "next" : Number(next.dataset.node));
}

function focusNode(node) {
  choose(node);
  document.querySelector(`#tree .box[data-node="${player.view.chosen}"]`)?.focus({ preventScroll: false });
}

function openTurns() {
  openRuns();
  if (player.runs.length === 0) {
    byId("turns").hidden = true;
    byId("figures").hidden = true;
    for (const link of document.querySelectorAll('nav [href="#turns"], nav [href="#figures"]')) link.hidden = true;
    return;
  }
  const by = { back: () => stepBy(-1), forward: () => stepBy(1), "turn-back": () => turnBy(-1), "turn-forward": () => turnBy(1) };
  for (const [id, act] of Object.entries(by)) {
    byId(id).addEventListener("click", () => {
      stop();
      act();
    });
  }
  byId("play").addEventListener("click", play);
  byId("turn").addEventListener("input", (event) => {
    stop();
    show(player.view.place, Number(event.target.value), -1);
  });
  byId("run").addEventListener("change", (event) => {
    stop();
    begin(Number(event.target.value));
  });
  byId("strip").addEventListener("click", (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    stop();
    show(player.view.place, Math.floor(((event.clientX - box.left) / box.width) * player.view.run.turns.length), -1);
  });
  byId("text").addEventListener("click", (event) => {
    const turn = event.target.closest("[data-turn]")?.dataset.turn;
    if (turn !== undefined) show(player.view.place, Number(turn), -1);
  });
  document.addEventListener("keydown", onKey);
  onChange(() => {
    refill(byId("run"), ...player.runs.map(({ story, run }, place) => el("option", { value: place, text: runWords(story, run) })));
    byId("play").textContent = say(player.timer === null ? "play" : "pause");
    const { view } = player;
    if (view === null) begin(0);
    else {
      byId("run").value = view.place;
      player.view = null;
      show(view.place, view.at, view.reached, view.chosen);
    }
  });
}

function runWords(story, run) {
  const text = story.runs.length > 1 ? ` · ${say("run.text", { number: run.request + 1 })}` : "";
  return `${story.name}${text} · ${story.drafter ?? say("run.plain")} · T ${story.sampling.temperature}`;
}

/** The first turn with a draft, whole: everything that the figure can show is there at once. */
function begin(place) {
  const drafted = player.runs[place].run.turns.findIndex((turn) => turn.nodes.length > 0);
  show(place, Math.max(0, drafted), -1);
}
