"""The script that makes the traces that come along runs, and what it once made is what is shipped."""

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

from outpace.models.toy import tiny_config, tiny_tensors
from outpace.report.page import EXAMPLES, page
from outpace.report.reading import read_trace
from toys import CHAT, LETTER_VOCAB, character_tokenizer

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "page_traces.py"))


def model(folder: Path, seed: int) -> Path:
    character_tokenizer(folder, CHAT)
    config = tiny_config(vocab_size=LETTER_VOCAB)
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    save_file(tiny_tensors(config, seed=seed), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_the_script_makes_traces_that_tell_their_words(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    target, draft = (model(tmp_path_factory.mktemp("model"), seed) for seed in (3, 4))
    out = tmp_path_factory.mktemp("traces")
    flags: list[Any] = ["--target", target, "--draft", draft, "--dtype", "fp32", "--out", out]
    assert SCRIPT["main"]([*map(str, flags)]) == 0
    assert {path.name for path in out.iterdir()} == {path.name for path in EXAMPLES}
    traces = [read_trace(out / path.name) for path in EXAMPLES]
    for trace in traces:
        assert all(token in trace.pieces for record in trace.records for token in record.emitted)
        assert trace.drafter is not None and "/" not in trace.drafter
    assert [one.name for one in traces] == [*SCRIPT["TITLES"].values()]
    assert '"explained":false' not in page(traces)


def test_what_is_shipped_was_made_by_it() -> None:
    for path in EXAMPLES:
        trace = read_trace(path)
        way = SCRIPT["WAYS"][path.stem]
        assert trace.sampling.temperature == way["temperature"] and trace.name == SCRIPT["TITLES"][path.stem]
        assert {record.rule for record in trace.records if record.tokens} == {way.get("rule", "greedy")}
        assert max(len(record.tokens) for record in trace.records) <= way["num_draft_tokens"]
        assert trace.target == "smollm2" and SCRIPT["PROMPT"] in trace.note
        assert path.stat().st_size < 150_000
