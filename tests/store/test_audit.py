"""The audit log: entries that commit with their action, seals, and what verify sees."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select

from redrive.domain.audit import Actor, AuditDraft, Channel
from redrive.domain.lifecycle import Wish
from redrive.domain.states import Verb
from redrive.store.sql.tables import audit_log, audit_seals

from .make import ACTOR, Floor, draft
from .rows import Rows


@pytest.fixture
def log(floor: Floor, store, rows: Rows) -> list[int]:
    """Seven entries, the first five sealed in two seals; their ids, oldest first."""
    one = floor.dead()
    for n in range(7):
        floor.edit(one, payload=b"%d" % n)
        if n in (2, 4):
            store.seal_audit()
    return [row[0] for row in rows.all(select(audit_log.c.id).order_by(audit_log.c.id))]


def test_an_entry_says_who_did_what_how_and_why(store, floor: Floor):
    one = floor.dead()
    actor = Actor("bob", Channel.API, "operator", "req-7")
    floor.store.operate(Wish(Verb.CANCEL), [(floor.one(), None)], AuditDraft(actor, "cancel", "not\nwanted é"))
    floor.ask(Verb.PURGE, one)
    purge, cancel = store.audit_entries()
    assert (cancel.actor, cancel.channel, cancel.role, cancel.request_id) == ("bob", "api", "operator", "req-7")
    assert (cancel.action, cancel.note, cancel.result) == ("cancel", "not\nwanted é", "cancelled")
    assert cancel.seal is None
    assert purge.id > cancel.id
    assert cancel.at <= purge.at <= store.now()


def test_entries_are_read_newest_first_by_page_target_and_actor(store, floor: Floor, log):
    other = floor.dead()
    floor.store.operate(Wish(Verb.PURGE), [(other, None)], draft("purge", actor="bob"))
    everything = store.audit_entries()
    assert [entry.id for entry in everything] == sorted((entry.id for entry in everything), reverse=True)
    assert len(everything) == 8
    first = store.audit_entries(limit=3)
    assert first == everything[:3]
    assert store.audit_entries(limit=3, before=first[-1].id) == everything[3:6]
    assert [entry.action for entry in store.audit_entries(target=str(other))] == ["purge"]
    assert store.audit_entries(actor="bob") == everything[:1]
    assert len(store.audit_entries(actor=ACTOR)) == 7
    assert store.audit_entries(target="queue x") == []


def test_a_seal_covers_what_no_seal_covers(store, log):
    assert [entry.seal for entry in store.audit_entries()] == [None, None, 2, 2, 1, 1, 1]
    assert store.seal_audit(limit=1) == 1
    assert store.seal_audit() == 1
    assert store.seal_audit() == 0
    verdict = store.verify_audit()
    assert (verdict.entries, verdict.seals, verdict.unsealed, verdict.problems) == (7, 4, 0, ())


def test_an_empty_log_is_in_order(store):
    assert store.seal_audit() == 0
    verdict = store.verify_audit()
    assert (verdict.entries, verdict.seals, verdict.unsealed, verdict.problems) == (0, 0, 0, ())


def test_a_seal_that_has_begun_is_not_disturbed_by_later_actions(store, log, floor: Floor):
    before = store.verify_audit()
    assert (before.seals, before.unsealed, before.problems) == (2, 2, ())


CHANGES = {
    "actor": "mallory",
    "role": "reader",
    "channel": "deck",
    "action": "purge",
    "target": "another",
    "note": "other",
    "result": "nothing",
    "request_id": "r",
    "details": {"changed": []},
    "revision": 99,
    "job_id": UUID(int=9),
    "content_hash": "0" * 64,
}


@pytest.mark.parametrize("which", [0, 6])
def test_a_changed_entry_is_seen(store, rows: Rows, log, which: int):
    (row,) = rows.all(select(audit_log).where(audit_log.c.id == log[which]))
    entry = audit_log.update().where(audit_log.c.id == log[which])
    for name, value in CHANGES.items():
        rows.run(entry.values({name: value}))
        problems = store.verify_audit().problems
        assert problems, name
        assert f"entry {log[which]} " in problems[0], name
        rows.run(entry.values({name: row._mapping[name]}))
    assert store.verify_audit().problems == ()


def test_a_changed_time_is_seen(store, rows: Rows, log):
    rows.run(audit_log.update().where(audit_log.c.id == log[1]).values(at=store.now() - timedelta(days=1)))
    assert store.verify_audit().problems


def test_a_deleted_entry_is_seen(store, rows: Rows, log):
    rows.remove(audit_log, audit_log.c.id == log[1])
    assert any("seal 1 covers 3 entries, 2 are there" in problem for problem in store.verify_audit().problems)


def test_an_inserted_entry_is_seen(store, rows: Rows, log):
    (row,) = rows.all(select(audit_log).where(audit_log.c.id == log[1]))
    rows.add(audit_log, dict(row._mapping) | {"id": log[-1] + 10})
    assert any("seal 1 covers 3 entries, 4 are there" in problem for problem in store.verify_audit().problems)
    rows.remove(audit_log, audit_log.c.id == log[2])  # one in for one out
    assert any("seal 1 does not match" in problem for problem in store.verify_audit().problems)


def test_an_entry_moved_to_another_seal_is_seen(store, rows: Rows, log):
    rows.run(audit_log.update().where(audit_log.c.id == log[1]).values(seal=2))
    assert len(store.verify_audit().problems) >= 2
    rows.run(audit_log.update().where(audit_log.c.id == log[1]).values(seal=77))
    assert any("1 entries name a seal that is missing" in problem for problem in store.verify_audit().problems)
    rows.run(audit_log.update().where(audit_log.c.id == log[1]).values(seal=None))
    assert any("seal 1 covers 3" in problem for problem in store.verify_audit().problems)


def test_two_entries_exchanged_are_seen(store, rows: Rows, log):
    """Each is whole, and stands where the other was."""
    a, b = (rows.all(select(audit_log).where(audit_log.c.id == one))[0] for one in log[:2])
    rows.remove(audit_log, audit_log.c.id.in_(log[:2]))
    rows.add(audit_log, [dict(a._mapping) | {"id": b.id}, dict(b._mapping) | {"id": a.id}])
    assert any("seal 1 does not match" in problem for problem in store.verify_audit().problems)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"previous": "f" * 64}, "does not follow"),
        ({"root": "f" * 64}, "does not match"),
        ({"entries": 4}, "covers 4"),
    ],
)
def test_a_broken_chain_is_seen(store, rows: Rows, log, change: dict[str, Any], word: str):
    rows.run(audit_seals.update().where(audit_seals.c.number == 2).values(change))
    assert any(word in problem for problem in store.verify_audit().problems)


def test_a_missing_seal_is_seen(store, rows: Rows, log):
    rows.remove(audit_seals, audit_seals.c.number == 1)
    problems = store.verify_audit().problems
    assert "seal 1 is missing" in problems
    assert any("does not follow" in problem for problem in problems)


def test_a_chain_made_anew_over_other_entries_differs_from_the_old_root(store, rows: Rows, log):
    """Whoever can rewrite everything can rewrite the chain; the last root kept elsewhere tells."""
    (old,) = rows.all(select(audit_seals.c.root).where(audit_seals.c.number == 2))
    rows.remove(audit_log, audit_log.c.id == log[0])
    rows.remove(audit_seals, audit_seals.c.number > 0)
    rows.run(audit_log.update().values(seal=None))
    while store.seal_audit(limit=3):
        pass
    assert store.verify_audit().problems == ()
    (new,) = rows.all(select(audit_seals.c.root).where(audit_seals.c.number == 2))
    assert old != new


def test_verifying_reads_in_batches(store, rows: Rows, log, monkeypatch):
    from redrive.store.sql import audit

    monkeypatch.setattr(audit, "BATCH", 1)
    verdict = store.verify_audit()
    assert (verdict.entries, verdict.seals, verdict.unsealed, verdict.problems) == (7, 2, 2, ())
    rows.remove(audit_seals, audit_seals.c.number == 1)
    assert "seal 1 is missing" in store.verify_audit().problems


def test_sealers_at_once_make_one_chain(store, floor: Floor):
    import threading

    one = floor.dead()
    stop = threading.Event()

    def seal() -> None:
        while not stop.is_set():
            store.seal_audit(limit=2)

    threads = [threading.Thread(target=seal) for _ in range(3)]
    for thread in threads:
        thread.start()
    for n in range(15):
        floor.edit(one, payload=b"%d" % n)
    stop.set()
    for thread in threads:
        thread.join()
    while store.seal_audit():
        pass
    verdict = store.verify_audit()
    assert (verdict.entries, verdict.unsealed, verdict.problems) == (15, 0, ())
