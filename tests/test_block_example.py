"""The example that trains a block on text, recovers it and puts it back."""

import importlib.util
import re
from pathlib import Path

PLACE = Path(__file__).parent.parent / "examples" / "block" / "trained_block.py"


def test_a_trained_block_is_recovered_and_put_back(capsys, trials, evidence):
    spec = importlib.util.spec_from_file_location("trained_block", PLACE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    example.main(steps=trials(100, 1500))
    said = capsys.readouterr().out
    trained, back = re.findall(r"([\d.]+%)", said)
    assert trained == back
    queries = int(re.findall(r"by ([\d,]+) queries", said)[0].replace(",", ""))
    apart = float(re.findall(r"differ by (\S+);", said)[0])
    assert apart < 1e-6
    assert queries < 1400
    evidence("a block trained on text, put back", queries=queries, logits_off_by=apart)
