"""Figures of models, of how sure they are, and of how a run went (the `report` extra).

A `Panel` is one drawing with its text alternative. The HTML page shows every panel by itself, a
notebook all of them in one figure: each is written once. This room is above the runner, so that
`Recovery.plot` may use it; it knows models and what passes between the rooms.
"""
