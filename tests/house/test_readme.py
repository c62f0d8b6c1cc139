"""Pages are code: their commands exist, their Python runs, and the README's test command decides a change."""

import itertools
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
TEST_COMMAND = "pip install -e '.[test]' && pytest"
PAGES = ("README.md", *(f"docs/{name}.md" for name in ("training", "tuning", "engines", "load", "report")))
REAL = "<!-- real -->"
"""On the line above a fence: the block needs the default model, and runs where that may be pulled."""
RUN = "import sys; from outpace.cli import main; sys.argv[0] = 'outpace'; main()"

FENCE = re.compile(rf"(?P<real>{REAL}\n)?^```(?P<language>\w+)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(text: str, languages: set[str], real: bool) -> list[str]:
    """The bodies of the fences in these languages, marked as real or not."""
    return [
        match["body"]
        for match in FENCE.finditer(text)
        if match["language"] in languages and (match["real"] is not None) == real
    ]


def commands(text: str, real: bool) -> list[list[str]]:
    """Every ``outpace`` command of the shell fences as words, comments off and continued lines joined.

    A line may hold several commands, with ``&&`` or a pipe between them; a redirection ends the words.
    """
    found = []
    for body in blocks(text, {"bash", "sh", "console"}, real):
        for line in body.replace("\\\n", " ").splitlines():
            words = shlex.split(line.removeprefix("$ "), comments=True)
            for between, command in itertools.groupby(words, {"&&", "||", "|", ";", "&"}.__contains__):
                kept = list(itertools.takewhile(lambda word: word[:1] not in {">", "<"}, command))
                if not between and kept[:1] == ["outpace"]:
                    found.append(kept)
    return found


def unknown_options(words: list[str], help_text: str) -> list[str]:
    """The options of a command that its verb's help does not name."""
    options = [word.partition("=")[0] for word in words if re.match(r"--?[a-zA-Z]", word)]
    return [option for option in options if not re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", help_text)]


@pytest.fixture(scope="module")
def readme() -> str:
    return (REPOSITORY / "README.md").read_text("utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_every_command_exists(page: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The verb answers ``--help``, and its help names every option that the page uses."""
    from outpace.cli import main

    text = (REPOSITORY / page).read_text("utf-8")
    shown = commands(text, real=True) + commands(text, real=False)
    assert shown, f"{page} shows no outpace command"
    monkeypatch.setenv("COLUMNS", "250")  # no option is cut
    for words in shown:
        verb = itertools.takewhile(lambda word: not word.startswith("-"), words[1:])
        monkeypatch.setattr(sys, "argv", ["outpace", *verb, "--help"])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code in {None, 0}, words
        assert unknown_options(words, capsys.readouterr().out) == [], words


@pytest.mark.parametrize("page", PAGES)
def test_python_blocks_run(page: str) -> None:
    """Every Python fence compiles; those that need no model run as they stand."""
    text = (REPOSITORY / page).read_text("utf-8")
    for body in blocks(text, {"python"}, real=True):
        compile(body, page, "exec")
    for body in blocks(text, {"python"}, real=False):
        exec(compile(body, page, "exec"), {"__name__": "page"})


@pytest.mark.real
@pytest.mark.timeout(900)
def test_real_blocks_run(readme: str, tmp_path: Path) -> None:
    """What the README says of the default model, said by the default model, in an empty folder."""
    calls = [["-c", RUN, *words[1:]] for words in commands(readme, real=True)]
    calls += [["-c", body] for body in blocks(readme, {"python"}, real=True)]
    for call in calls:
        done = subprocess.run([sys.executable, *call], cwd=tmp_path, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, f"{call}\n{done.stdout}\n{done.stderr}"


def test_the_test_command_is_the_one_that_decides(readme: str) -> None:
    assert TEST_COMMAND in readme
    assert TEST_COMMAND in (REPOSITORY / ".ci" / "run").read_text("utf-8")


SAMPLE = f"""
```bash
$ outpace generate "a # b" \\
    --top-k=3 -n 2 | head   # a comment
echo outpace
pip install -e . && outpace generate --json > out.json
```
{REAL}
```bash
outpace pull
```
```python
x = 1
```
"""


def test_the_reader_finds_what_stands_there() -> None:
    assert commands(SAMPLE, real=False) == [
        ["outpace", "generate", "a # b", "--top-k=3", "-n", "2"],
        ["outpace", "generate", "--json"],
    ]
    assert commands(SAMPLE, real=True) == [["outpace", "pull"]]
    assert blocks(SAMPLE, {"python"}, real=False) == ["x = 1\n"]


def test_an_unknown_option_is_found() -> None:
    help_text = "│ --top-k  INTEGER │ --no-raw-ids │ -n"
    assert unknown_options(["outpace", "generate", "--top-k=3", "-n", "-1"], help_text) == []
    assert unknown_options(["outpace", "generate", "--top", "--raw", "-m"], help_text) == ["--top", "--raw", "-m"]
