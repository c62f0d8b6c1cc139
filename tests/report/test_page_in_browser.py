"""The page as its reader has it: a real browser clicks, presses keys, moves sliders, and finds what the trace holds."""

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from browser import Page

from outpace.report.page import EXAMPLES, write
from outpace.report.page import page as build
from outpace.report.reading import Trace, read_trace
from outpace.verification.expectation import chain_tokens

HOSTILE = "</script><script>window.hurt = 1</script><img src=x onerror='window.hurt = 1'>&amp;‮evil"


@pytest.fixture(scope="module")
def traces() -> list[Trace]:
    return [read_trace(path) for path in EXAMPLES]


@pytest.fixture(scope="module")
def file(traces: list[Trace], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "page.html"
    write(path, build(traces))
    return path


@pytest.fixture
def shown(page: Page, file: Path) -> Page:
    """The example page, opened anew; nothing may be complained of when the test has ended."""
    page.open(file)
    return page


@pytest.fixture(autouse=True)
def no_complaints(page: Page) -> Any:
    yield
    assert page.complaints() == []


def where(page: Page) -> tuple[int, int]:
    turn, _, step, _ = map(int, re.findall(r"\d+", page.text("#where")))
    return turn, step


def data_of(page: Page) -> Any:
    return json.loads(page.text("#data"))


def test_it_opens_with_a_whole_turn(shown: Page, traces: list[Trace]) -> None:
    """The first drafted turn, its tree, mask, laws and end: what the trace holds."""
    record = next(one for one in traces[0].records if one.tokens)
    assert where(shown)[0] == 1 + traces[0].records.index(record)
    assert shown.count("#tree .box:not(.root):not(.next)") == len(record.tokens)
    assert shown.count("#tree .box.accepted") == len(record.path)
    assert shown.count("#tree .box.next") == 1
    assert shown.count("#mask .row") == len(record.tokens) + 1
    said = [traces[0].pieces[token] for token in record.emitted]
    assert shown.text("#text").replace("↵", "").endswith(said[-1].replace("\n", ""))
    assert shown.js("document.querySelectorAll('section:not([hidden])').length") == 3


def test_steps_go_forth_and_back(shown: Page, traces: list[Trace]) -> None:
    """A turn begins, drafts node by node, verifies, tests and emits; back is the same way."""
    record = next(one for one in traces[0].records if one.tokens)
    shown.click("#turn-back")
    assert where(shown)[1] == 1 and shown.count("#tree .box") == 1
    for node in range(len(record.tokens)):
        shown.click("#forward")
        assert shown.count("#tree .box") == node + 2
        assert "drafted" in shown.text("#said")
    assert " p " not in shown.text("#tree")
    shown.click("#forward")
    assert " p " in shown.text("#tree") and "One forward" in shown.text("#said")
    tested = min(len(record.path) + 1, len(record.tokens))
    for place in range(tested):
        shown.click("#forward")
        accepted = place < len(record.path)
        assert ("is accepted" if accepted else "is refused") in shown.text("#said")
    shown.click("#forward")
    assert shown.count("#tree .box.next") == 1
    before = shown.text("#text")
    shown.click("#forward")
    assert where(shown) == (traces[0].records.index(record) + 2, 1)
    shown.click("#back")
    assert shown.text("#text") == before and shown.count("#tree .box.next") == 1


def test_the_keyboard_does_it_all(shown: Page) -> None:
    turn, step = where(shown)
    shown.keys("ARROW_RIGHT", "ARROW_RIGHT")
    assert where(shown) == (turn + 1, 2)
    shown.keys("ARROW_LEFT", "ARROW_LEFT")
    assert where(shown) == (turn, step)
    shown.keys("ARROW_RIGHT", shift=True)
    assert where(shown)[0] == turn + 1
    shown.keys("ARROW_LEFT", shift=True)
    shown.keys("ARROW_LEFT", shift=True)
    assert where(shown)[0] == turn
    shown.keys("SPACE")
    assert shown.text("#play") == "Pause"
    shown.keys("SPACE")
    assert shown.text("#play") == "Play"


def test_play_plays(shown: Page) -> None:
    start = where(shown)
    shown.click("#play")
    for _ in range(100):
        if where(shown) != start:
            break
        time.sleep(0.1)
    assert where(shown) != start
    shown.click("#play")
    assert shown.text("#play") == "Play"


def test_focus_goes_in_order_and_is_seen(shown: Page) -> None:
    """Tab reaches the tools, the controls, one node of the tree and the sliders, in this order."""
    order: list[str] = []
    while len(order) < 60:
        shown.keys("TAB")
        if shown.js("document.activeElement === document.body"):
            break
        order.append(shown.js("(({ id, dataset }) => id || dataset.node || '?')(document.activeElement)"))
        drawn = shown.js("getComputedStyle(document.activeElement).outlineStyle") != "none"
        assert drawn or shown.js("document.activeElement.matches('.box:focus-visible')"), order[-1]
    ids = ["language", "theme", "run", "turn-back", "back", "play", "forward", "turn-forward", "turn", "next"]
    ids += [f"slide-{name}" for name in ("alpha", "k", "cost", "row")] + ["take-best", "take"]
    assert [one for one in order if one in ids] == ids


def test_nodes_are_reached_by_arrows_and_show_their_ancestors(shown: Page) -> None:
    shown.slide("#run", 1)
    shown.js("document.querySelector('#tree .box.chosen').focus()")
    shown.keys("HOME")
    assert shown.js("document.activeElement.dataset.node") == "-1"
    shown.keys("ARROW_DOWN", "ARROW_DOWN", "ARROW_DOWN", "ARROW_DOWN")
    node = int(shown.js("document.activeElement.dataset.node"))
    turn = data_of(shown)["stories"][1]["runs"][0]["turns"][where(shown)[0] - 1]
    above, at = [-1], node
    while (at := turn["nodes"][at][0]) >= 0:
        above.append(at)
    marked = shown.js("[...document.querySelectorAll('#tree .box.above')].map((one) => Number(one.dataset.node))")
    assert sorted(marked) == sorted(above)
    assert shown.js("document.querySelector('#mask .row.chosen').dataset.node") == str(node)
    filled = shown.count(f"#mask .row[data-node='{node}'] .seen") + shown.count(f"#mask .row[data-node='{node}'] .self")
    assert filled == 2 + len(above), "the text, itself and what stands above it"
    shown.keys("ARROW_RIGHT")
    assert shown.js("document.activeElement.closest('#tree') !== null"), "a step leaves the focus in the tree"


def test_the_panel_shows_the_traces_numbers(shown: Page, traces: list[Trace]) -> None:
    """Probabilities, ratio, coin and verdict of the first node, as the record has them at temperature 1."""
    record = next(one for one in traces[0].records if one.tokens)
    shown.js("document.querySelector('#tree .box[data-node=\"0\"]').dispatchEvent(new MouseEvent('mouseenter'))")
    said = shown.text("#test")
    assert f"{record.draft_probs[0]:.3f}".lstrip("0") in said
    assert f"{record.target_probs[0]:.3f}".lstrip("0") in said
    assert f"{record.coins[0]:.3f}".lstrip("0") in said
    assert ("accepted" if record.path else "refused") in said
    own = shown.text("#law tr.own")
    assert f"{record.target_probs[0]:.3f}".lstrip("0") in own


@pytest.mark.parametrize(
    ("alpha", "k", "cost", "row"), [(0.8, 4, 0.0, 0.0), (0.6, 3, 0.2, 0.05), (1, 5, 0.1, 0.01), (0.1, 4, 0.5, 0)]
)
def test_sliders_give_the_formulas_value(shown: Page, alpha: float, k: int, cost: float, row: float) -> None:
    for name, value in {"alpha": alpha, "k": k, "cost": cost, "row": row}.items():
        shown.slide(f"#slide-{name}", value)

    def speed(k: int) -> float:
        return chain_tokens(float(alpha), k) / (k * cost + 1 + row * k)

    best = max(range(17), key=lambda k: (round(speed(k), 12), -k))
    assert shown.text("#result-tokens") == f"{chain_tokens(float(alpha), k):.2f}"
    assert shown.text("#result-speed") == f"{speed(k):.2f}×"
    assert shown.text("#result-best") == (f"K = {best}" if best else "plain wins")
    shown.click("#take-best")
    assert shown.text("#shown-k") == str(best)


def test_the_traces_own_values_are_taken(shown: Page) -> None:
    summary = data_of(shown)["summaries"][0]
    shown.click("#take")
    assert shown.text("#shown-alpha") == f"{summary['acceptance']:.2f}"
    assert shown.text("#shown-k") == str(summary["usual_depth"])
    assert f"{summary['cut'][summary['usual_depth']]:.2f} tokens a forward" in shown.text("#curve-hint")


def test_dark_and_light(page: Page, file: Path) -> None:
    """The system's wish holds until the button says otherwise."""

    def darkness() -> bool:
        channels = re.findall(r"\d+", page.js("getComputedStyle(document.body).backgroundColor"))
        return sum(map(int, channels[:3])) < 200

    page.open(file, scheme="dark")
    assert darkness()
    page.click("#theme")
    assert not darkness() and "light" in page.text("#theme")
    page.click("#theme")
    assert darkness() and "dark" in page.text("#theme")
    page.open(file, scheme="light")
    assert not darkness()


def test_it_speaks_chinese(shown: Page) -> None:
    shown.click("#language")
    assert shown.js("document.documentElement.lang") == "zh-CN" and "投机解码" in shown.text("h1")
    shown.click("#language")
    assert shown.js("document.documentElement.lang") == "en" and "Speculative" in shown.text("h1")


@pytest.mark.parametrize("width", [360, 768])
def test_narrow_windows_need_no_sideways_scrolling(page: Page, file: Path, width: int) -> None:
    page.open(file, width=width)
    for _ in range(3):
        page.keys("ARROW_RIGHT")
    assert page.js("document.documentElement.scrollWidth") <= width
    assert all(page.js("[...document.querySelectorAll('.controls button')].map((one) => one.offsetHeight >= 36)"))


def test_motion_is_left_out_where_it_is_not_wanted(page: Page, file: Path) -> None:
    for motion, name in (("reduce", "none"), ("no-preference", "appear")):
        page.open(file, motion=motion)
        page.click("#turn-back")
        page.click("#forward")
        assert page.js("getComputedStyle(document.querySelector('.box.fresh')).animationName") == name


def test_every_button_and_picture_has_a_name(shown: Page) -> None:
    nameless = shown.js(
        "[...document.querySelectorAll('button, select, input, [role=button], [role=img], [role=region], section')]"
        ".filter((one) => one.checkVisibility() && !(one.getAttribute('aria-label') || one.textContent.trim()"
        " || one.labels?.length || one.getAttribute('aria-labelledby'))).map((one) => one.outerHTML)"
    )
    assert nameless == []
    assert shown.js("document.getElementById('said').getAttribute('aria-live')") == "polite"
    assert shown.count("main") == shown.count("header") == shown.count("footer") == shown.count("h1") == 1


def test_hostile_text_stays_text(page: Page, traces: list[Trace], tmp_path: Path) -> None:
    """Names, notes and tokens that look like markup are shown as they stand, and do nothing."""
    from dataclasses import replace

    token = traces[0].records[1].tokens[0]
    pieces = traces[0].pieces | {token: HOSTILE, traces[0].records[0].next_token: HOSTILE}
    hostile = replace(traces[0], name=HOSTILE, note=HOSTILE, drafter=HOSTILE, target=HOSTILE, pieces=pieces)
    write(tmp_path / "hostile.html", build([hostile]))
    page.open(tmp_path / "hostile.html")
    for key in ("ARROW_RIGHT", "ARROW_LEFT"):
        page.keys(key)
    assert page.js("window.hurt ?? null") is None
    assert page.text("#note") == HOSTILE and HOSTILE in page.text("#totals")
    assert "</script>" in page.text("#text") and "⟨202E⟩" in page.text("#text")
    assert page.count("img") == 0 and page.count("script") == 2


def test_two_thousand_turns_are_no_burden(page: Page, traces: list[Trace], file: Path, tmp_path: Path) -> None:
    """A long text is drawn as fast as a short one: only what is looked at is there."""
    from dataclasses import replace

    records = [record for record in traces[0].records if record.tokens]
    long = replace(traces[0], records=(records * (2000 // len(records) + 1))[:2000])
    write(tmp_path / "long.html", build([long]))
    page.open(tmp_path / "long.html")
    assert where(page)[0] == 1 and "of 2000" in page.text("#where")
    page.slide("#turn", 1999)
    assert where(page)[0] == 2000
    assert page.count("#text .token") < 400 and page.count("#tree .box") < 20 and page.count("#strip *") < 10
    there = (
        "(() => { const begin = performance.now(); const back = document.getElementById('back');"
        " for (let step = 0; step < 20; step += 1) back.click(); return performance.now() - begin })()"
    )
    long_ms = page.js(there)
    page.open(file)
    page.slide("#turn", len(traces[0].records) - 1)
    assert long_ms < 5 * page.js(there) + 100, "side by side, as a busy machine is slow at both"


def test_a_page_without_turns_shows_what_there_is(page: Page, tmp_path: Path) -> None:
    from outpace.report.reading import read_bench

    row = {"category": "all", "method": "m", "rule": "match", "tree": "chain", "num_draft_tokens": 4, "depth": None}
    row |= {"temperature": 0.0, "batch": 1, "prompts": 9, "tau": 2.0, "acceptance": 0.5, "plain_turn_share": 0.0}
    row |= {"tokens_per_second": 9.0, "baseline_tokens_per_second": 6.0, "speedup": 1.5, "speedup_ci": [1.2, 1.7]}
    slow = row | {"category": HOSTILE, "speedup": 0.8, "speedup_ci": [0.7, 0.9]}
    more = row | {"batch": 4, "speedup": 1.1, "speedup_ci": [0.9, 1.2], "predicted_speedup": 1.0}
    bench = {"format_version": 1, "results": [slow, row, more], "verdict": "It depends."}
    (tmp_path / "bench.json").write_text(json.dumps(bench), "utf-8")
    write(tmp_path / "bench.html", build([], benches=[read_bench(tmp_path / "bench.json")]))
    page.open(tmp_path / "bench.html")
    assert page.js(
        "[...document.querySelectorAll('section')].filter((one) => one.checkVisibility()).map((one) => one.id)"
    ) == ["speed", "measured"]
    assert "1.50× [1.20, 1.70]" in page.text("#measured-body") and "It depends." in page.text("#measured-body")
    assert page.count("#measured-body .point.slower") == 1 and page.count("#measured-body .square") == 1
