"""The one table of what a page may hold: a file of a result, and what makes a section of it.

Sections come in this order. See `unsoftmax.report` for how another kind of result joins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from unsoftmax.campaign.recovery import RECOVERY_FILE
from unsoftmax.campaign.refused_run import REFUSAL_FILE
from unsoftmax.questions.defence.defence_comparison import DEFENCE_FILE
from unsoftmax.questions.exposure import AUDIT_FILE
from unsoftmax.questions.verification import VERIFICATION_FILE
from unsoftmax.report.audit_section import audit_section
from unsoftmax.report.blocks import Section
from unsoftmax.report.defence_section import defence_section
from unsoftmax.report.recovery_section import recovery_section
from unsoftmax.report.refusal_section import refusal_section
from unsoftmax.report.verification_section import verification_section

SECTIONS: Mapping[str, Callable[[Path], Section]] = {
    AUDIT_FILE: audit_section,
    REFUSAL_FILE: refusal_section,
    RECOVERY_FILE: recovery_section,
    VERIFICATION_FILE: verification_section,
    DEFENCE_FILE: defence_section,
}
