"""Settings: redrive.toml, then REDRIVE_* environment, then arguments; each effective value knows where it came from.

An unknown name or a value outside its range stops the start with a ``ConfigError`` that names the setting, its origin
and what is allowed: a typing error in a setting must never mean "the default, silently".
"""

from .load import DEBUG_VARIABLE, FILE_NAME, FILE_VARIABLE, SUPERVISOR_VARIABLE, URL_VARIABLE, check, load
from .tables import Effective, Settings
from .values import DURATION_EXPECTED, SecretUrl, mask, parse_seconds

__all__ = [
    "DEBUG_VARIABLE",
    "DURATION_EXPECTED",
    "FILE_NAME",
    "FILE_VARIABLE",
    "SUPERVISOR_VARIABLE",
    "URL_VARIABLE",
    "Effective",
    "SecretUrl",
    "Settings",
    "check",
    "load",
    "mask",
    "parse_seconds",
]
