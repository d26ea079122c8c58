"""A command begins at once: what its imports and its help take of a processor."""

import os
import subprocess
import sys

from tests.campaign.lives import unmeasured

from unsoftmax.cli.commands import COMMANDS

# Of a processor, 0.2 to 0.5 on the slowest machine at hand.
MOST_S = 1.0


def seconds_of(*words):
    """Return the processor time of a command, in a process of its own."""
    code = "from unsoftmax.cli import main; main()"
    program = subprocess.Popen(
        [sys.executable, "-c", code, *words], stdout=subprocess.DEVNULL, env=unmeasured()
    )
    _, status, used = os.wait4(program.pid, 0)
    program.returncode = os.waitstatus_to_exitcode(status)
    assert program.returncode == 0
    return used.ru_utime + used.ru_stime


def test_commands_start_within_a_second(trials):
    """Up to three times more where another program was in the way."""
    lines = [("--help",), ("plan", "--model", "low-rank", "--dim", "384", "--rank", "32")]
    lines += [(command, "--help") for command in [*COMMANDS][:: trials(4, 1)]]
    slow = {words: seconds_of(*words) for words in lines}
    for _ in range(3):
        slow = {words: seconds_of(*words) for words, took in slow.items() if took > MOST_S}
    assert {words: took for words, took in slow.items() if took > MOST_S} == {}
