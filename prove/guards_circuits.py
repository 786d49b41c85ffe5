"""Guards of circuit breakers: the rules, what a claim passes by, permits, burials, and what a worker says."""

from __future__ import annotations

from .removal import Guard, guards

_S = "tests/store/test_circuits.py"
_W = "tests/worker/test_circuits.py"

CIRCUITS: list[Guard] = [
    *guards(
        "domain/circuit.py",
        "tests/domain/test_circuit.py",
        (
            "fatal ends say nothing",
            "case Failed(FailureClass.FATAL):\n            return Said.NOTHING",
            "case Failed(FailureClass.FATAL):\n            return Said.FAILED",
        ),
        (
            "a timeout is a failure",
            "case TimedOut(error):\n            return Said.FAILED",
            "case TimedOut(error):\n            return Said.NOTHING",
        ),
        ("a success ends the row of failures", "return replace(circuit, failures=0)", "return circuit"),
        ("runs from before count for nothing", " or _began_before(circuit, end, now):", ":"),
        ("only a probe decides", "            if not probe:\n                return circuit\n", ""),
        ("a success too few does not close it", "if circuit.successes + 1 < breaker.probes:", "if False:"),
        (
            "an end gives the permit back",
            "if probe:\n        circuit = replace(",
            "if False:\n        circuit = replace(",
        ),
        ("a stated time keeps it open", "max(breaker.open_seconds, min(", "min(breaker.open_seconds, min("),
        ("not longer than an hour", "min(end.retry_after, LONGEST_OPEN)", "end.retry_after"),
        ("a clock set back does not keep it open", "    if _set_back(circuit, now):\n        return 0.0\n", ""),
        ("a clock set back does not make it deaf", " or _set_back(circuit, now):", ":"),
        ("permits are counted", "breaker.probes - len(circuit.permits)", "breaker.probes"),
        (
            "nothing begins before its time",
            "if not circuit.blocks or probe_in(circuit, now) > 0:",
            "if not circuit.blocks:",
        ),
        ("a closed one has no probes", "if not circuit.blocks or probe_in", "if probe_in"),
        (
            "a reset forgets",
            "return Circuit(changed_at=now, reason=why,",
            "return replace(circuit, changed_at=now, reason=why,",
        ),
    ),
    *guards(
        "store/sql/postgres_sql.py",
        _S,
        (
            "a claim passes by what is blocked",
            '" AND type <> ALL({self.blocked})"',
            '" AND type <> ALL({self.blocked}) IS NOT NULL"',
        ),
        (
            "a start leaves out what is blocked",
            '" AND h.type <> ALL({self.blocked})"',
            '" AND h.type <> ALL({self.blocked}) IS NOT NULL"',
        ),
        ("half-open blocks too", "k.state <> 'closed')", "k.state = 'open')"),
        ("a probe is of its types", '" AND type = ANY(%(types)s::text[])")', '"")'),
    ),
    *guards(
        "store/sql/sqlite_hot.py",
        _S,
        ("half-open blocks too on SQLite", "WHERE state <> 'closed' AND name IN", "WHERE state = 'open' AND name IN"),
        ("a claim passes by on SQLite", "else _blocked(driver, request.guarded)", "else ()"),
        ("a start leaves out on SQLite", "blocked = _blocked(driver, guarded)", "blocked: tuple[str, ...] = ()"),
    ),
    *guards(
        "store/sql/circuits.py",
        _S,
        (
            "a permit lasts as long as its lease",
            "before, now = in_force(stored, _held(connection, stored.permits)), _now(",
            "before, now = stored, _now(",
        ),
        (
            "no more probes than there is room",
            "limit = min(request.limit, room(before, breaker, now))",
            "limit = request.limit",
        ),
        (
            "probes are judged under the lock",
            "found = db.locking(select(circuits).where(_c.name == name), of=circuits)",
            "found = select(circuits).where(_c.name == name)",
        ),
        (
            "a lifetime that ended before is not judged",
            "& (db.age(hot.life_started_at) - age <= db.age(_c.opened_at))",
            "",
        ),
        (
            "one worker sweeps",
            "_c.state != CircuitState.CLOSED.value, recently)",
            "_c.state != CircuitState.CLOSED.value)",
        ),
        ("only what waits is buried", 'hot.state == "pending", UNBLOCKED, or_', 'hot.state != "taken", UNBLOCKED, or_'),
        ("where nothing waits nobody takes the lock", "    if db.look(look):\n", "    if True:\n"),
        ("a reset is audited", "        write_audit(db, connection, audit,", "        _ = (db, connection, audit,"),
    ),
    *guards(
        "worker/circuits.py",
        _W,
        ("a queue of blocked types is left out", "tuple(queue for queue in queues if queue not in blocked)", "queues"),
        ("it is looked through every so often", "if now >= self._look_at:", "if False:"),
        ("what is not blocked keeps its queue", "all(name is not None and", "any(name is not None and"),
        (
            "ends that change nothing are not sent",
            "return observe(fresh, self._breakers[name], seen, _ANY_TIME) != fresh",
            "return True",
        ),
        (
            "an end is settled although it cannot be told",
            "            except Exception as error:",
            "            except KeyError as error:",
        ),
        (
            "a change is one line",
            "if circuit.changed_at == before.changed_at or circuit.state is",
            "if circuit.state is",
        ),
    ),
    *guards(
        "worker/settler.py",
        _W,
        (
            "ends are reported",
            "if reports := self._circuits.reports(batch):",
            "if reports := self._circuits.reports([]):",
        ),
    ),
    *guards(
        "worker/registry.py",
        f"{_W}::TestDeclaration",
        ("one name, one breaker", "and other.breaker != breaker:", "and False:"),
    ),
]
