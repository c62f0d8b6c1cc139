"""The page: template, style, script, words and data joined into one HTML file that needs nothing else.

Knows nothing of how figures came about. What it stores is data in a block that no browser runs, with every character
that could end it written by number; the script puts texts into the page as text, never as markup. The policy in its
head allows this one style and this one script, by their sums, and no network at all.
"""

import base64
import hashlib
import html
import json
import os
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from outpace.errors import UsageError
from outpace.models.staging import Progress, silent
from outpace.report.pieces import Pieces
from outpace.report.planned import Shown
from outpace.report.reading import Bench, Trace, apart
from outpace.report.story import story
from outpace.report.summary import summary

PARTS = Path(__file__).with_name("parts")
SCRIPTS = ("base", "chart", "steps", "tree", "node", "turns", "speed", "figures", "open")
"""In the order in which they stand in the page."""
LANGUAGES = ("en", "zh")
EXAMPLES = tuple(PARTS / f"{name}.jsonl" for name in ("chain", "tree", "greedy"))
"""Traces of the default model that come along; ``examples/page_traces.py`` makes them."""


@cache
def part(name: str) -> str:
    """One of the files that the page is made of."""
    return (PARTS / name).read_text("utf-8")


@cache
def words() -> dict[str, dict[str, str]]:
    """What the page says, by language and key."""
    found: dict[str, dict[str, str]] = json.loads(part("words.json"))
    return found


def page(
    traces: Sequence[Trace],
    *,
    plans: Sequence[Shown] = (),
    benches: Sequence[Bench] = (),
    language: str = "en",
    made: str = "",
    folder: Path | None = None,
    progress: Progress = silent,
) -> str:
    """The whole document. The same arguments give the same bytes.

    Args:
        traces: in the order in which they are offered.
        plans, benches: what was chosen, and what was measured.
        language: in which the page opens, ``en`` or ``zh``; its reader can change it.
        made: what made it, such as a version.
        folder: where the tokenizer of all traces lies; None looks for each trace's target on this machine.
        progress: told of turns done.

    Raises:
        UsageError: the language is another, or there is nothing to show.
    """
    if language not in LANGUAGES:
        raise UsageError(f"language is {language!r}; allowed: {', '.join(LANGUAGES)}")
    if not (traces or plans or benches):
        raise UsageError("there is nothing to show; allowed: a trace, a plan or a measurement", hint="or --example")
    known: dict[tuple[str, str | None], Pieces] = {}
    stories = []
    for trace, name in zip(traces, apart([trace.name for trace in traces]), strict=True):
        key = trace.target, trace.fingerprint
        if trace.pieces:
            pieces = Pieces(None, trace.pieces)
        else:
            pieces = known[key] = known.get(key) or Pieces.of(*key, folder)
        stories.append(story(trace, pieces, progress) | {"name": name})
    data = {
        "language": language,
        "made": made,
        "words": words(),
        "stories": stories,
        "summaries": [summary(trace) for trace in traces],
        "bench": [asdict(bench) for bench in benches],
        "plans": [asdict(plan) for plan in plans],
    }
    return document(data, language)


def document(data: Mapping[str, Any], language: str) -> str:
    """Template, style, script and data in one."""
    script = "(() => {\n" + "\n".join(part(f"{name}.js") for name in SCRIPTS) + "})();\n"
    style = part("page.css")
    policy = (
        f"default-src 'none'; style-src {_sum(style)}; script-src {_sum(script)}; "
        "base-uri 'none'; form-action 'none'; img-src 'none'; connect-src 'none'"
    )
    said = words()[language]
    filled = {
        "lang": "zh-CN" if language == "zh" else "en",
        "policy": policy,
        "title": html.escape(said["title"]),
        "style": style,
        "script": script,
        "data": stored(data),
    }
    template = re.sub(
        r'(data-word="([\w.]+)"[^>]*>)(?=</)', lambda match: match[1] + html.escape(said[match[2]]), part("page.html")
    )
    return re.sub(r"\{\{(\w+)\}\}", lambda match: filled[match[1]], template)


def stored(data: Mapping[str, Any]) -> str:
    """JSON that can stand in a script element: nothing in it can end the element, open a comment or break a line."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return re.sub(r"[<>&\u2028\u2029\ud800-\udfff\u0000-\u001f\u007f]", lambda match: f"\\u{ord(match[0]):04x}", text)


def _sum(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def write(path: Path, text: str) -> None:
    """Write a page, whole or not at all.

    Raises:
        UsageError: the file cannot be written.
    """
    growing = path.parent / f".{path.name}.{uuid.uuid4().hex[:12]}"
    try:
        growing.write_text(text, "utf-8")
        os.replace(growing, path)
    except OSError as error:
        growing.unlink(missing_ok=True)
        raise UsageError(f"the page cannot be written to {path}: {error.strerror}") from error
