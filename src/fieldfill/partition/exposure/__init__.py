"""Exposure: P(query_i | context), the probability that decides what can be learnt (Theorem 1 of the paper)."""

from fieldfill.partition.exposure.estimate import AuditSettings, Masks
from fieldfill.partition.exposure.exact import NoClosedForm, exact_exposure
from fieldfill.partition.exposure.verdict import LEAST_CROPS, Audit, audit, compare

__all__ = ["LEAST_CROPS", "Audit", "AuditSettings", "Masks", "NoClosedForm", "audit", "compare", "exact_exposure"]
