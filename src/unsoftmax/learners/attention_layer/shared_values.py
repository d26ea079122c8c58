"""Maps of heads that share their values in groups, from the same answers: M_h = O_h V_g.

Ranges of trained heads are nearly dependent, and dividing the sum of all maps among them makes its
errors as many times larger. That heads of a group have one V is known besides: the sum of all maps
is Σ_g (Σ_h O_h) V_g, and the V_g are well apart. With V_g from the maps as they were read, the O_h
are the least squares of

    Σ_h O_h V_g = M,    s O_h (V_g v_j) = s M_h v_j  for the offsets v_j that were asked,

s being the length of the offsets, by which their answers are worse than those of single tokens. One
design for all rows of O.
"""

from __future__ import annotations

import numpy as np

from unsoftmax.learners.attention_layer.head_groups import Groups, shared_rows
from unsoftmax.learners.attention_layer.value_answers import HeadMaps, ValueAnswers


def with_shared_values(answers: ValueAnswers, values: HeadMaps, groups: Groups) -> HeadMaps:
    """Solve once more for maps that were divided among ranges, values being shared in groups.

    Maps that were read in all directions, or of heads that share nothing, stay as they are.
    """
    if answers.whole or answers.saturated is not None or len(groups) == len(values.U):
        return values
    V = [shared_rows(values, group) for group in groups]
    group_of = {h: g for g, group in enumerate(groups) for h in group}
    rows = [V[group_of[h]] for h in range(len(values.U))]
    places = np.concatenate([[0], np.cumsum([len(x) for x in rows])])
    whole = np.vstack(rows)
    normal, right = whole @ whole.T, whole @ answers.layer().heads.T
    spans, directions = answers.spans(), answers.offsets.directions()
    lengths = np.linalg.norm(answers.offsets.steps, axis=1)
    share = np.append(1.0, lengths / np.linalg.norm(answers.offsets.base))[:, None]
    for h in answers.offsets.asked:
        own = slice(places[h], places[h + 1])
        seen = share * (directions @ rows[h].T)
        normal[own, own] += seen.T @ seen
        right[own] += seen.T @ (share * spans[h])
    solved = np.linalg.lstsq(normal, right, rcond=None)[0]
    U, within = [], []
    for h, V_g in enumerate(rows):
        Q, R = np.linalg.qr(solved[places[h] : places[h + 1]].T)
        U.append(Q)
        within.append(R @ V_g)
    return HeadMaps(U, within)
