"""Exposure: P(query_i | context), the probability that decides what can be learnt (Theorem 1 of the
paper)."""

from fieldfill.exposure.audit import Audit, audit, compare
from fieldfill.exposure.exact import NoClosedForm, exact_exposure

__all__ = ["Audit", "NoClosedForm", "audit", "compare", "exact_exposure"]
