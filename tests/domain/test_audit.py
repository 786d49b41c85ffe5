"""The hashes that make the audit log evidence: pinned, because stored ones must verify for ever."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest

from redrive.domain.audit import GENESIS, Actor, AuditDraft, Channel, content_hash, seal_hash
from redrive.domain.errors import InvalidField

ENTRY: dict[str, Any] = {
    "at": datetime(2026, 5, 4, 3, 2, 1, 123456, tzinfo=UTC),
    "actor": "admin@example.com",
    "role": "admin",
    "channel": "cli",
    "action": "resurrect",
    "target": "01890a5d-ac96-774b-bcce-b302099a8057",
    "operation_id": None,
    "note": "Komma ergänzt",
    "result": "done",
    "request_id": None,
    "details": {"version": 3, "revisions": [1, 2]},
}
OF_AN_OPERATION = ENTRY | {"operation_id": UUID(int=7), "request_id": "r-1"}
BARE = ENTRY | {"note": None, "details": {}}


@pytest.mark.parametrize(
    ("entry", "pinned"),
    [
        (ENTRY, "40ad293195c3b6c32f80225e57a9d9e52b4a7da4294297fc0c9a85c26ede6a62"),
        (BARE, "6629f95876649ca10bc8a311a6b2da96989f42723f63d11c1c62ccdf9cf134f2"),
        (OF_AN_OPERATION, "a02f822d541b967b844f4a3cfa3048dbd9e3ea3c86c351ab67ad0b90042288ab"),
    ],
    ids=["with note and details", "bare", "of an operation"],
)
def test_the_hash_of_an_entry_never_changes(entry, pinned):
    assert content_hash(**entry) == pinned


@pytest.mark.parametrize("field", ENTRY)
def test_no_field_can_change_unnoticed(field):
    other = {"at": ENTRY["at"] + timedelta(microseconds=1), "operation_id": UUID(int=1), "details": {"version": 4}}
    assert content_hash(**ENTRY | {field: other.get(field, "other")}) != content_hash(**ENTRY)


def test_the_hash_does_not_depend_on_how_a_database_returns_the_entry():
    elsewhere = ENTRY["at"].astimezone(timezone(timedelta(hours=5, minutes=45)))
    reordered = dict(reversed(ENTRY["details"].items()))
    assert content_hash(**ENTRY | {"at": elsewhere, "details": reordered}) == content_hash(**ENTRY)


def test_half_a_second_is_not_written_shorter():
    # isoformat alone leaves out what is zero, and would differ between drivers that keep and drop it.
    whole = ENTRY["at"].replace(microsecond=0)
    assert content_hash(**BARE | {"at": whole}) == "a27310289c099dfd347f868f59c0c645759867b06418a623168e2960e36ee9d6"


def test_the_hash_of_a_seal_never_changes():
    entries = [(1, content_hash(**ENTRY)), (2, content_hash(**BARE))]
    assert seal_hash(1, GENESIS, entries) == "312181f5dea3dbffadd00adccd75bf4fe52ab4520b88b8f20440970359f59b82"
    assert seal_hash(2, GENESIS, []) == "466d4a6f28c7cf69453c349052ba5a84b628c8b0986b3e448f3ccc7c6c8d2ff1"


@pytest.mark.parametrize(
    ("number", "previous", "entries"),
    [
        (2, GENESIS, [(1, "a"), (2, "b")]),
        (1, "f" * 64, [(1, "a"), (2, "b")]),
        (1, GENESIS, [(2, "b"), (1, "a")]),
        (1, GENESIS, [(1, "a")]),
        (1, GENESIS, [(1, "a"), (3, "b")]),
        (1, GENESIS, [(1, "a"), (2, "c")]),
        (1, GENESIS, [(1, "a"), (2, "b"), (3, "c")]),
    ],
)
def test_a_seal_notices_what_was_changed_dropped_added_or_swapped(number, previous, entries):
    assert seal_hash(number, previous, entries) != seal_hash(1, GENESIS, [(1, "a"), (2, "b")])


def test_a_seal_is_computed_from_a_stream():
    assert seal_hash(1, GENESIS, iter([(1, "a")])) == seal_hash(1, GENESIS, [(1, "a")])


def test_an_actor_in_code_is_trusted():
    actor = Actor("cron")
    assert (actor.channel, actor.role, actor.request_id) == (Channel.CODE, "admin", None)


@pytest.mark.parametrize("name", ["", "a\nb", "\x1b[2J", "x" * 201])
def test_an_actor_has_a_name(name):
    with pytest.raises(InvalidField, match="actor"):
        Actor(name)


@pytest.mark.parametrize("note", ["nul \x00", "x" * 2001])
def test_a_note_is_text(note):
    with pytest.raises(InvalidField, match="note"):
        AuditDraft(Actor("me"), "resurrect", note)
