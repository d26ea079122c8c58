"""Questions about a target that are built on models, oracles and the runner."""

from unsoftmax.audit.verification import Verification, Verifier, verify

__all__ = ["Verification", "Verifier", "verify"]
