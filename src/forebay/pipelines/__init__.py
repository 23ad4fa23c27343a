"""Jobs on Spark: `ingest` brings queues into tables, `reconcile` proves that nothing is missing."""

from __future__ import annotations

from forebay.pipelines.ingestion import IngestResult, Progress, ingest, plan
from forebay.pipelines.manifest import Counts
from forebay.pipelines.reconciliation import QueueProof, Reconciliation, reconcile
from forebay.pipelines.settings import read_settings

__all__ = [
    "Counts",
    "IngestResult",
    "Progress",
    "QueueProof",
    "Reconciliation",
    "ingest",
    "plan",
    "read_settings",
    "reconcile",
]
