"""Background jobs whose failures can be repaired. The public names and nothing else."""

from redrive.app import Redrive
from redrive.domain.circuit import Breaker
from redrive.domain.errors import (
    Cancel,
    ConfigError,
    Conflict,
    Fatal,
    InvalidField,
    KeyHeld,
    NotAllowed,
    NotFound,
    NotMigrated,
    PayloadError,
    ProcessDied,
    RedriveError,
    Retryable,
    Snooze,
    Throttled,
    Unavailable,
    VersionChanged,
)
from redrive.domain.failures import FailureClass, Reason
from redrive.domain.filters import JobFilter
from redrive.domain.once import Once
from redrive.domain.policy import RetryPolicy
from redrive.domain.states import Place, Spot
from redrive.handles import Item, JobDied, JobFunction, JobHandle, NotFinished
from redrive.worker.context import JobContext

__all__ = [
    "Breaker",
    "Cancel",
    "ConfigError",
    "Conflict",
    "FailureClass",
    "Fatal",
    "InvalidField",
    "Item",
    "JobContext",
    "JobDied",
    "JobFilter",
    "JobFunction",
    "JobHandle",
    "KeyHeld",
    "NotAllowed",
    "NotFinished",
    "NotFound",
    "NotMigrated",
    "Once",
    "PayloadError",
    "Place",
    "ProcessDied",
    "Reason",
    "Redrive",
    "RedriveError",
    "RetryPolicy",
    "Retryable",
    "Snooze",
    "Spot",
    "Throttled",
    "Unavailable",
    "VersionChanged",
]
