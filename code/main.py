"""Speculative decoding on one page: the lesson, from one step to a tree.

    python code/main.py          # about half a minute; the first run fetches the default model

A large model that writes one token a forward is mostly waiting for its own weights. So somebody small guesses the next
few tokens, and the large one reads all of them in a single forward. What it would have said itself stays, and the first
thing that it would not have said is replaced. Done rightly, nobody can tell from the text that anybody guessed.

1. One step of it, written out in numpy.
2. Does it keep the target's law? By ten thousand samples, and exactly.
3. A tree of guesses, wide where the drafter hesitates.
4. How one forward reads a whole tree: the mask.
5. How often are the guesses right, and what is that worth?

Models are functions from a text (token ids) to logits: row t says what comes after the first t + 1 tokens. ``tau`` is
how many tokens a forward of the target brings, 1 in plain decoding; α is how often a guess is right.
"""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

import outpace
from outpace import Options
from outpace.decoding.control import Fixed
from outpace.decoding.loop import Request, decode
from outpace.decoding.stats import Speculation
from outpace.decoding.text import Text, text_of
from outpace.decoding.turn import Turn
from outpace.drafters.budget import Branching
from outpace.evaluation.metrics import pooled, ratio_of_sums
from outpace.evaluation.workloads import questions, workload
from outpace.models.toy import random_table, tiny_transformer
from outpace.verification.expectation import chain_tokens
from outpace.verification.oracle import Table, output_law, sampled, total_variation
from outpace.verification.rules import RULES

Numbers = NDArray[np.float64]
Model = Callable[[list[int]], Numbers]

HEAD = Path(__file__).parents[1] / "heads" / "eagle3-smollm2"
"""An EAGLE-3 head for the default model, or the one that comes with the package where this folder is gone."""


# ---- 1. One step -----------------------------------------------------------------------------------------------------


def law(logits: Numbers, temperature: float) -> Numbers:
    """What may come next, and how probably. Temperature 0 is a law too: all of it on the best token."""
    best = logits.max(-1, keepdims=True)
    weights: Numbers = np.exp((logits - best) / temperature) if temperature else 1.0 * (logits == best)
    weights /= weights.sum(-1, keepdims=True)
    return weights


def speculative_step(
    p_target: Model, q_draft: Model, text: list[int], K: int, temperature: float, rng: np.random.Generator
) -> list[int]:
    """Draft K tokens, verify them in one forward of the target, keep what stands: between 1 and K + 1 new tokens.

    Source: Leviathan et al. 2211.17192, algorithm 1; Chen et al. 2302.01318, algorithm 2.
    """
    # The draft guesses one token after another, and keeps the whole row that each was drawn from: the residual below
    # needs it. (The lesson's snippet keeps the drawn token's probability alone. Lab 1 shows what that does.)
    drafted: list[int] = []
    draft_rows: list[Numbers] = []
    for _ in range(K):
        draft_rows.append(law(q_draft([*text, *drafted])[-1], temperature))
        drafted.append(int(rng.choice(len(draft_rows[-1]), p=draft_rows[-1])))

    # One forward of the target: its law at each of these K places, and at the place behind them.
    target_rows = law(p_target([*text, *drafted])[-(K + 1) :], temperature)

    # From left to right. A token that the draft says too often (q > p) is accepted in the share p / q of cases, so that
    # it comes with probability min(p, q). What is missing to p is max(p - q, 0), and a refusal draws from just that.
    for place, token in enumerate(drafted):
        p, q = target_rows[place], draft_rows[place]
        if rng.uniform() < p[token] / q[token]:
            continue
        residual = np.maximum(p - q, 0)
        return [*drafted[:place], int(rng.choice(len(p), p=residual / residual.sum()))]

    # Nothing was refused, and the forward has already said what follows: one token more, for nothing.
    return [*drafted, int(rng.choice(len(target_rows[K]), p=target_rows[K]))]


def show_a_step() -> None:
    """The same step at two temperatures, and with a draft that is the target."""
    heading("1. One step: draft 4 tokens, verify them in one forward of the target")
    target, draft, _ = tables()
    rng = np.random.default_rng(0)
    cases = (("temperature 1", draft, 1.0), ("temperature 0", draft, 0.0), ("the draft is the target", target, 1.0))
    for name, guesser, temperature in cases:
        texts = rng.integers(VOCAB, size=(1000, 1)).tolist()
        steps = [len(speculative_step(target, guesser, text, 4, temperature, rng)) for text in texts]
        print(f"   {name:<24} {np.mean(steps):.2f} tokens a forward, over 1,000 steps")


# ---- 2. Does it keep the law? ----------------------------------------------------------------------------------------

VOCAB, WINDOW, SAMPLES = 4, 3, 10_000
"""Samples of 3 tokens over 4 words: 64 texts, so that each is seen often enough to be counted."""


def tables() -> tuple[Model, Model, list[torch.Tensor]]:
    """A target and a draft whose next token depends on the last one alone, so that every law is known.

    As functions of a text, and the logits themselves.
    """
    logits = [random_table(VOCAB, seed=seed) for seed in (7, 8)]
    target, draft = (one.numpy() for one in logits)
    return lambda text: target[text], lambda text: draft[text], logits


def histogram(samples: NDArray[np.int64]) -> Numbers:
    """How often each text of 3 tokens came."""
    texts = np.ravel_multi_index(tuple(samples[:, :WINDOW].T), (VOCAB,) * WINDOW)
    return np.bincount(texts, minlength=VOCAB**WINDOW) / len(samples)


def distances(seen: Numbers, plain: Numbers) -> tuple[float, float]:
    """KL divergence in nats (half a count is added to each cell, so that it is finite), and total variation."""
    half = 0.5 / SAMPLES
    ours, theirs = (seen + half) / (1 + half * len(seen)), (plain + half) / (1 + half * len(seen))
    return float((ours * np.log(ours / theirs)).sum()), float(np.abs(seen - plain).sum() / 2)


def show_exactness() -> None:
    """Ten thousand samples beside ten thousand plain ones, what two perfect samplers would show, and the proof."""
    heading(f"2. Does it keep the target's law? {SAMPLES:,} samples of {WINDOW} tokens, {VOCAB**WINDOW} possible texts")
    target, draft, logits = tables()

    def by_hand(rng: np.random.Generator, K: int) -> NDArray[np.int64]:
        found = []
        for _ in range(SAMPLES):
            text = [0]
            while len(text) <= WINDOW:
                text += speculative_step(target, draft, text, K, 1.0, rng)
            found.append(text[1 : WINDOW + 1])
        return np.array(found)

    library = outpace.speculative_decode(
        lambda ids: logits[0][ids],  # any function from ids to logits can be target or draft
        lambda ids: logits[1][ids],
        [0],
        K=4,
        temperature=1.0,
        max_new_tokens=6,
        num_samples=SAMPLES,
        batch_size=SAMPLES,
        rule="rejection",
        seed=1,
    )
    plain = histogram(by_hand(np.random.default_rng(1), K=0))  # no draft: every token is the target's own
    print(f"   {'beside plain sampling':<34} {'KL':>7} {'TV':>7}")
    for name, samples in (
        ("speculative_step, K = 4", by_hand(np.random.default_rng(2), K=4)),
        ("outpace.speculative_decode, K = 4", library.numpy()),
    ):
        kl, tv = distances(histogram(samples), plain)
        print(f"   {name:<34} {kl:7.4f} {tv:7.4f}   KL {'<' if kl < 0.01 else 'NOT <'} 0.01")
    exact = law(logits[0].numpy(), 1.0)
    joint = (exact[0][:, None, None] * exact[:, :, None] * exact[None]).ravel()
    floor = (len(joint) - 1) / SAMPLES, np.sqrt(joint * (1 - joint) / (math.pi * SAMPLES)).sum()
    print(f"   {'two perfect samplers, on average':<34} {floor[0]:7.4f} {floor[1]:7.4f}   the noise floor")
    show_proof(logits)


def show_proof(logits: list[torch.Tensor]) -> None:
    """No samples: every draft and every verdict, each with its probability. What comes out is the target's law."""
    print("   exactly, by enumerating all drafts and verdicts (the rules as shipped, in float64):")

    def every_prefix(rows: torch.Tensor) -> Table:  # what follows the empty one is what follows token 0
        return Table.of(lambda text: rows[text[-1] if text else 0], VOCAB, length=5)

    target, draft = (every_prefix(one.softmax(-1)) for one in logits)
    chain, tree = (-1, 0, 1, 2), LESSON_TREE
    for rule, parents in (("rejection", chain), ("block", chain), ("tree-rejection", tree), ("traversal", tree)):
        reached = output_law(RULES[rule], target, sampled(draft, parents), length=5)
        tv = total_variation(reached, target.joint(5))
        shape = "a chain of 4" if parents == chain else "the tree of section 4"
        print(f"     {rule:<15} {shape:<22} TV {tv:.0e}   {'<' if tv < 1e-12 else 'NOT <'} 1e-12")


# ---- 3. A tree of guesses --------------------------------------------------------------------------------------------


def draft_tree(q_draft: Model, text: list[int], K: int, top_p: float, most: int) -> tuple[list[int], list[int]]:
    """A tree of depth K: under each node the likeliest tokens until their mass reaches ``top_p``. Tokens and parents.

    Of all these nodes the ``most`` that are likeliest to be reached stay. Nothing is drawn here, so that choosing by
    the tokens is allowed. Source: the dynamic tree of EAGLE-2 (Li et al., 2406.16858).
    """
    paths: dict[tuple[int, ...], float] = {(): 1.0}
    for depth in range(K):
        for path in [path for path in paths if len(path) == depth]:
            row = law(q_draft([*text, *path])[-1], 1.0)
            ranked = np.argsort(-row, kind="stable")
            before = np.cumsum(row[ranked]) - row[ranked]
            paths |= {(*path, int(token)): paths[path] * row[token] for token in ranked[before < top_p]}
        best = sorted(paths, key=lambda path: -paths[path])[: most + 1]  # the empty path, the root, is one of them
        paths = {path: paths[path] for path in sorted(best, key=len)}
    nodes = [path for path in paths if path]
    return [path[-1] for path in nodes], [nodes.index(path[:-1]) if path[:-1] else -1 for path in nodes]


def show_trees(target: outpace.Target, drafter: outpace.Drafter, text: Text) -> None:
    """The tree that this page drafts with a table, then one that an EAGLE-3 head drafted for a real question."""
    heading("3. A tree of guesses: under each node the likeliest tokens until their mass reaches top-p")
    print("   with the draft table of section 2, depth 3, top-p 0.7, at most 8 nodes:")
    _, draft, _ = tables()
    show_tree(*draft_tree(draft, [0], 3, 0.7, 8), path=[], say=lambda ids: f"token {ids[0]}")
    turns: list[Turn] = []
    # Each turn is drafted, verified in one forward and judged; the observer is shown every one.
    emissions = decode(
        target,
        drafter,
        [Request(text.encode(QUESTION), max_new_tokens=24)],
        control=Fixed(Branching.parse("top-p:0.9"), depth=4, nodes=12),
        observer=lambda turn, _: turns.append(turn),
    )
    answer = [token for emission in emissions for token in emission.ids]
    best = max(turns, key=lambda turn: len(turn.paths[0]))
    [(tokens, parents)] = best.proposal.tree.to_lists()
    print(f"   by {drafter.name.partition(':')[0]} for {target.name}, asked: {QUESTION}")
    print(f"   depth 4, top-p 0.9, at most 12 nodes; of {len(turns) - 1} turns the best one, ● where accepted:")
    show_tree(tokens, parents, path=best.paths[0], say=text.decode)
    print(f"   behind it a token of the target's own: {text.decode(best.emitted[0][-1:])!r}")
    print(f"   {len(answer)} tokens in {len(turns)} forwards, the prompt's included: {text.decode(answer)!r}")


def show_tree(tokens: list[int], parents: list[int], path: list[int], say: Callable[[list[int]], str]) -> None:
    """Every node under its parent, the likeliest first."""

    def below(parent: int, indent: str) -> None:
        children = [node for node, above in enumerate(parents) if above == parent]
        for node in children:
            last = node == children[-1]
            mark = " ●" if node in path else ""
            print(f"     {indent}{'└── ' if last else '├── '}{say([tokens[node]])!r}{mark}")
            below(node, indent + ("    " if last else "│   "))

    print("     the last token")
    below(-1, "")


# ---- 4. The mask -----------------------------------------------------------------------------------------------------

LESSON_TREE = (-1, -1, 0, 0, 1, 1)
"""The lesson's: a and b below the root, c and d below a, e and f below b. Parents stand before their children."""


def tree_mask(parents: tuple[int, ...]) -> NDArray[np.bool_]:
    """Row i, column j: node i sees node j, because j is i or stands above it. All of them see the text before."""
    mask = np.eye(len(parents), dtype=bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            mask[node] |= mask[parent]
    return mask


def show_mask() -> None:
    """The mask drawn, and the claim behind it: one forward over the tree says what six separate ones say."""
    heading("4. The mask: a node sees the text, the nodes above it and itself, and no sibling")
    names, mask = "abcdef", tree_mask(LESSON_TREE)
    tree = outpace.DraftTree.from_lists([(list(range(10, 16)), list(LESSON_TREE))])
    depths = [int(row.sum()) for row in mask]
    print("             text root " + " ".join(names) + "   position: by depth, not by place")
    print("      root    ●    ●   " + " ".join("·" * len(names)) + "   n")
    for name, row, depth in zip(names, mask, depths, strict=True):
        print(f"      {name}       ●    ●   " + " ".join("●" if seen else "·" for seen in row) + f"   n + {depth}")
    print(f"   the library's mask is the same: {bool((tree.ancestor_mask()[0].numpy() == mask).all())}")

    model, text = tiny_transformer(seed=1), [5, 9, 2, 7]

    def one_forward(tree: outpace.DraftTree) -> torch.Tensor:
        """All rows at once: read the text without its last token, then that and the tree."""
        state = model.open(1, 32)
        model.prefill(state, torch.tensor([text[:-1]]), [len(text) - 1])
        return model.score(state, torch.tensor(text[-1:]), tree).logits[0, 1:]

    def separately(node: int) -> torch.Tensor:
        """One row: read the text and this node's path from the beginning, as plain decoding would."""
        path = [int(tree.tokens[0, above]) for above in np.flatnonzero(mask[node])]
        return model.prefill(model.open(1, 32), torch.tensor([text + path]), [len(text) + len(path)]).logits[0, 0]

    alone = torch.stack([separately(node) for node in range(len(names))])
    apart = (one_forward(tree) - alone).abs().max()
    as_chain = (one_forward(outpace.DraftTree.chain(tree.tokens)) - alone).abs().max()
    print(f"   one forward and six separate ones, logits of a small transformer: apart by at most {apart:.0e}")
    print(f"   with a plain causal mask instead: {as_chain:.1f}")


# ---- 5. How often is the draft right? --------------------------------------------------------------------------------

QUESTION = "List the planets of the solar system in order."
TOKENS = 32


def measure(target: outpace.Target, drafter: outpace.Drafter, K: int, temperature: float) -> list[Speculation]:
    """One question of every kind, answered with chains of K: what was drafted, and what of it was accepted."""
    asked, _ = questions(workload(per_category=1), target)
    options: Options = {"temperature": temperature, "num_draft_tokens": K, "max_new_tokens": TOKENS}
    if temperature:
        options |= {"rule": "rejection", "seed": 1}
    answers = outpace.generate(target, drafter, [question.ids for question in asked], **options)
    return [answer.stats.speculation for answer in answers]


def show_acceptance(target: outpace.Target, drafter: outpace.Drafter) -> None:
    """Acceptance by position of chains of 4; from it tau by the formula, beside tau as it was measured."""
    heading(f"5. How often is the draft right? {drafter.name.partition(':')[0]} for {target.name}, chains of K")
    for temperature in (0.0, 1.0):
        found = {K: measure(target, drafter, K, temperature) for K in (4, 2, 1)}
        longest = pooled(found[4])
        alpha, rates = longest.acceptance or 0.0, longest.acceptance_by_position
        positions = ", ".join(f"{rate:.2f}" for rate in rates)
        print(f"   temperature {temperature:g}: α is {alpha:.2f}; by position, given all before: {positions}")
        print("     K   (1 - α^(K+1)) / (1 - α)   tau measured, with its 95 % interval")
        for K in (1, 2, 4):
            tau = ratio_of_sums([one.emitted for one in found[K]], [one.turns for one in found[K]])
            print(f"     {K}   {chain_tokens(alpha, K):23.2f}   {tau}")
    print(f"   With the lesson's α = 0.8 and K = 4 it would be {chain_tokens(0.8, 4):.2f}: a good draft is everything.")


def heading(text: str) -> None:
    """A line, and one below it."""
    print(f"\n{text}\n{'─' * len(text)}")


@torch.no_grad()
def main() -> None:
    show_a_step()
    show_exactness()
    target = outpace.load_target("smollm2")
    drafter = outpace.load_drafter(str(HEAD) if HEAD.is_dir() else "eagle3", target)
    assert target.folder is not None  # the default has a tokenizer
    show_trees(target, drafter, text_of(target.folder))
    show_mask()
    show_acceptance(target, drafter)


if __name__ == "__main__":
    main()
