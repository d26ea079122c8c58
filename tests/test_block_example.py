"""The example that trains a block on text, recovers it and puts it back."""

import re

from tests.scripts import script


def test_a_trained_block_is_recovered_and_put_back(capsys, trials, evidence):
    script("block/trained_block").main(steps=trials(100, 1500))
    said = capsys.readouterr().out
    trained, back = re.findall(r"([\d.]+%)", said)
    assert trained == back
    queries = int(re.findall(r"by ([\d,]+) queries", said)[0].replace(",", ""))
    apart = float(re.findall(r"differ by (\S+);", said)[0])
    assert apart < 1e-6
    assert queries < 1400
    evidence("a block trained on text, put back", queries=queries, logits_off_by=apart)
