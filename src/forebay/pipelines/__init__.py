"""Jobs on Spark: `ingest` loads queues into tables, `reconcile` proves that nothing is missing.

`audit` verifies every checksum of many queues.
"""

from __future__ import annotations

# The function hides the package of the same name: import from the package by its full name.
from forebay.pipelines.ingest.job import IngestResult, Progress, ingest, plan, read_settings
from forebay.pipelines.ingest.maintenance import Joined, Vacuumed, compact, vacuum
from forebay.pipelines.ingest.output import Counts
from forebay.pipelines.ingest.reconciliation import QueueProof, Reconciliation, reconcile
from forebay.pipelines.maintenance.audit import Audit, audit

__all__ = [
    "Audit",
    "Counts",
    "IngestResult",
    "Joined",
    "Progress",
    "QueueProof",
    "Reconciliation",
    "Vacuumed",
    "audit",
    "compact",
    "ingest",
    "plan",
    "read_settings",
    "reconcile",
    "vacuum",
]
