"""A generator driven by hand: every round answered by a function, without the runner."""


def driven(steps, target):
    """Run a generator that asks to its end; return what it returns, and the queries asked."""
    queries, answers = 0, None
    while True:
        try:
            asked = steps.send(answers)
        except StopIteration as end:
            return end.value, queries
        queries += sum(len(probes) for probes in asked)
        answers = [target(probes[:]) for probes in asked]
