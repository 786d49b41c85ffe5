"""The guards, file by file: name, exact text, what stands there without it, and which tests must notice.

To add one: copy the guard's text from the file (it must stand there exactly once), write what the code would be without
it, and name tests (paths, with ``::`` where it helps). ``python -m prove guards --only TEXT`` tries it alone.
"""

from __future__ import annotations

from .guards_circuits import CIRCUITS
from .guards_developer import DEVELOPER
from .guards_isolation import ISOLATION
from .guards_keys import KEYS
from .guards_limits import LIMITS
from .guards_outages import OUTAGES
from .guards_store import STORE
from .removal import Guard, guards

_FATAL_STATUS = "{400, 405, 406, 410, 411, 413, 414, 415, 422, 501, 505}"
_FATAL_KINDS = (
    "TypeError",
    "ValueError",
    "AttributeError",
    "LookupError",
    "NameError",
    "ImportError",
    "AssertionError",
    "ArithmeticError",
    "NotImplementedError",
    "RecursionError",
    "SyntaxError",
)

GUARDS: list[Guard] = [
    *guards(
        "domain/lifecycle.py",
        "tests/domain/test_settle.py",
        ("a used budget buries", "        if charged >= budget:\n", "        if False:\n"),
        ("the run that ends is counted", "        charged = run.spent + 1\n", "        charged = run.spent\n"),
        ("no attempt starts after max_age", "if rules.retry.outlives(run.age + wait):", "if False:"),
        ("a stated time is never shortened", "wait = max(wait, not_before + ", "wait = min(wait, not_before + "),
        ("jitter on a stated time goes upward", "not_before + rules.retry.jitter", "not_before - rules.retry.jitter"),
        ("a job's own budget counts", "rules.retry.max_attempts if run.max_attempts is None else", "not run.lease or"),
        ("a thread that may still run is not retried", "if not stopped and not rules.idempotent:", "if False:"),
        (
            "a stopped worker's job is retried only if declared safe",
            'if rules.idempotent and rules.on_zombie == "retry":',
            "if True:",
        ),
        ("a cancelled run is not charged", "error, charged=False)", "error)"),
        ("a backoff cannot go back in time", "max(0.0, backoff(charged))", "backoff(charged)"),
        ("a snooze cannot go back in time", "min(max(0.0, delay), LONGEST)", "min(delay, LONGEST)"),
        ("a snooze ends within a date's range", "min(max(0.0, delay), LONGEST)", "max(0.0, delay)"),
    ),
    *guards(
        "domain/lifecycle.py",
        "tests/domain/test_rescue.py",
        ("a fetched job never ran", "if job.state is HotState.FETCHED:", "if False:"),
        ("a cancel request is granted at rescue", "    if job.cancel_requested:\n", "    if False:\n"),
        ("a zombie of an unknown type is buried", "if rules is None or not", "if rules is not None and not"),
        ("only idempotent work is run twice", "rules is None or not rules.idempotent or", "rules is None or"),
        ("zombies are retried only on request", ' or rules.on_zombie != "retry":', ":"),
        ("a vanished run counts", "    charged = job.spent + 1\n", "    charged = job.spent\n"),
        ("a zombie keeps to the budget", "charged >= budget or rules", "rules"),
        ("a zombie keeps to its lifetime", " or rules.retry.outlives(job.age + wait):", ":"),
        ("a lease outlasts three heartbeats", "HEARTBEATS = 3\n", "HEARTBEATS = 2\n"),
        ("a served type is not given up", " and not announced", ""),
        ("an unserved job is given up only in time", " and unserved_for >= timeout", ""),
        ("putting off grows no further than a minute", "min(UNSERVED_LONGEST, max(UNSERVED_FIRST, waited))", "waited"),
    ),
    *guards(
        "domain/lifecycle.py",
        "tests/domain/test_operate.py",
        ("an operator acts on the version that was read", "version is not None and version != job.version", "False"),
        (
            "cancelling a running job is a request",
            "    if wish.verb is Verb.CANCEL and job.spot is Spot.PROCESSING:\n        return RequestCancel()\n",
            "",
        ),
        ("no move but an arrow of the lifecycle", "if job.spot not in sources(wish.verb) or", "if"),
        ("queue and type change with a resurrection only", 'if {"queue", "type"} & set(', "if set() & set("),
        (
            "an edit cannot take a held key",
            "if _takes_key(wish) and key_holder is not None and job.place is Place.HOT:",
            "if False:",
        ),
        ("a held key stops a resurrection", "if key_holder is not None and not wish.drop_key:", "if False:"),
        ("a key is dropped only where it is held", "wish.drop_key and key_holder is not None)", "wish.drop_key)"),
        ("what was never resurrected is not taken back", "if job.life == 1:", "if False:"),
        ("what has run is not taken back", "if job.attempt > 0:", "if False:"),
    ),
    *guards(
        "domain/policy.py",
        "tests/domain/test_policy.py",
        ("the cap is a true cap", "min(_seconds(self.cap), grown + ", "max(0.0, grown + "),
        ("two thousand failures still have a wait", "except OverflowError:", "except ZeroDivisionError:"),
        ("no wait is longer than a century", "not 0 <= seconds <= LONGEST", "not 0 <= seconds"),
        (
            "3.0 is no number of attempts",
            "if isinstance(value, bool) or not isinstance(value, int) or",
            "if",
        ),
        ("jitter does not shorten", "grown + self.jitter_seconds", "grown - self.jitter_seconds"),
    ),
    *guards(
        "domain/classify.py",
        "tests/domain/test_classify.py",
        ("the handler's Fatal is final", "if issubclass(kind, Fatal):", "if False:"),
        ("the handler's Throttled is heard", "if issubclass(kind, Throttled):", "if False:"),
        (
            "a hook that raises does not lose the job",
            "except BaseException as broken:",
            "except ZeroDivisionError as broken:",
        ),
        (
            "declared both ways stays retryable",
            "    for base in kind.__mro__:\n        if base in transient:\n",
            "    for base in kind.__mro__:\n        if base in transient and base not in fatal:\n",
        ),
        ("connection errors are transient", "issubclass(kind, OSError) or ", ""),
        ("database operational errors are transient", " or _is_operational(kind):", ":"),
        ("a broken answer from elsewhere is transient", " and not _is_broken_answer(kind):", ":"),
        ("a group is fatal only if all members are", "if all(member", "if any(member"),
        ("a group keeps the time a member was told", "    if told:\n", "    if False:\n"),
        (
            "groups nest deeper than Python recurses",
            "            waiting.extend(reversed(BaseExceptionGroup.exceptions.__get__(one)))\n",
            "            for inner in BaseExceptionGroup.exceptions.__get__(one): yield from _leaves(inner)\n",
        ),
        (
            "an attribute that raises is no attribute",
            "        return getattr(holder, name)\n    except BaseException:\n",
            "        return getattr(holder, name)\n    except AttributeError:\n",
        ),
        ("NaN and negative waits are none", " and seconds >= 0 else None", " else None"),
        *((f"{kind} is fatal", f"\n    {kind},\n", "\n") for kind in _FATAL_KINDS),
    ),
    *guards(
        "domain/classify.py",
        "tests/domain/test_classify_http.py",
        ("HTTP 429 is throttled", "if status == 429 or (", "if ("),
        ("HTTP 503 with Retry-After is throttled", "status == 429 or (status == 503 and stated)", "status == 429"),
        ("HTTP 503 without it is transient", "(status == 503 and stated)", "status == 503"),
        ("a date is read by the clock that wrote it", "theirs or now)", "now)"),
        ("a past date is now, not garbage", "max(0.0, (date - now).total_seconds())", "(date - now).total_seconds()"),
        ("a century stands for any longer wait", "float(min(seconds, LONGEST))", "float(seconds)"),
        (
            "a status on any exception is not HTTP's",
            'headers is not None or _is_named(error, "ClientResponseError")',
            "True",
        ),
        *(
            (f"HTTP {status} is fatal", _FATAL_STATUS, _FATAL_STATUS.replace(status, "0"))
            for status in _FATAL_STATUS.strip("{}").split(", ")
        ),
    ),
    *guards(
        "domain/classify.py",
        "tests/domain/test_report.py",
        (
            "a traceback that cannot be formatted is kept",
            "except BaseException:  # formatting",
            "except ZeroDivisionError:  # formatting",
        ),
        ("a huge line does not push the frames out", "chunk if len(chunk) <= CHUNK else", "chunk if chunk else"),
        ("the engine's frames do not hide the application's", "return here or steps", "return steps"),
        ("both errors are kept", "    if also is not None:\n", "    if False:\n"),
        ("a message is one line", "message=one_line(message, min(MESSAGE, limit))", "message=message"),
    ),
    *guards(
        "domain/payload.py",
        "tests/domain/test_payload_parse.py",
        ("NaN and Infinity are refused", "JSONDecoder(parse_constant=_refuse_constant, ", "JSONDecoder("),
        ("a float beyond range is refused", ", parse_float=_finite)", ")"),
        ("nesting is bounded", "    if _is_too_deep(data):\n        _refuse_depth(data)\n", ""),
        (
            "brackets in strings do not count",
            "brackets.split(b'\"')[::2])",
            "brackets.split(b'\"'))",
        ),
        ("escaped quotes do not end a string", '    if b"\\\\" in data:\n', "    if False:\n"),
        ("a full stack is a refusal", "    except RecursionError:\n", "    except ZeroDivisionError:\n"),
        (
            "a number that cannot be read is a refusal",
            "    except ValueError:\n        raise _number",
            "    except ZeroDivisionError:\n        raise _number",
        ),
        ("half a character is refused", '    if b"\\\\ud" in data or b"\\\\uD" in data:\n', "    if False:\n"),
        ("half a character in capitals too", ' or b"\\\\uD" in data:', ":"),
        ("columns count characters", ".translate(None, _CONTINUATION))", ")"),
    ),
    *guards(
        "domain/payload.py",
        "tests/domain/test_payload_dumps.py",
        ("NaN is not written", "allow_nan=False, ", ""),
        (
            "nothing is written that cannot be read",
            "    if _is_too_deep(data):\n        raise _unwritable(value)\n",
            "",
        ),
    ),
    *guards(
        "domain/text.py",
        "tests/domain/test_text.py",
        ("NUL is not stored", r"[\x00\ud800-\udfff]", r"[\ud800-\udfff]"),
        ("lone surrogates are not stored", r"[\x00\ud800-\udfff]", r"[\x00]"),
        ("ESC does not reach a terminal", r"\x0b-\x1f", r"\x0b-\x1a\x1c-\x1f"),
        ("C1 controls do not reach a terminal", r"\x7f-\x9f", r"\x7f"),
        ("bidi overrides do not reach a terminal", r"\u202a-\u202e", ""),
        ("a __str__ that raises is text", "except BaseException as error:", "except ZeroDivisionError as error:"),
    ),
    *guards(
        "domain/edits.py",
        "tests/domain/test_edits.py",
        ("a payload is no larger than allowed", "len(edit.payload) > payload_limit", "False"),
        ("a payload is bytes", "if not isinstance(edit.payload, bytes | Unset):", "if False:"),
        ("words hold no controls", r"[\x00-\x1f\x7f-\x9f", "["),
        ("words hold no lone surrogates", r"\u2028\u2029\ud800-\udfff]", r"\u2028\u2029]"),
        ("10.0 and True are no priorities", "isinstance(value, bool) or not isinstance(value, int) or not 0", "not 0"),
        ("tags are bounded", "if len(tags) > MARKS_LIMIT:", "if False:"),
    ),
    *guards(
        "domain/filters.py",
        "tests/domain/test_filters.py",
        ("a filter is refused, never widened", "fits[item.name] is not self.place:", "False:"),
        ("a naive time is refused", "            if isinstance(value, datetime):\n", "            if False:\n"),
        ("a page is bounded", "or not 1 <= self.limit <= PAGE_MAX", "or self.limit < 1"),
    ),
    *guards(
        "domain/audit.py",
        "tests/domain/test_audit.py",
        ("a seal names its predecessor", '{number}:{previous}"', '{number}:"'),
        ("a seal covers each entry's content", "|{entry_id}:{entry_hash}", "|{entry_id}"),
        ("an entry's hash knows no key order", "sort_keys=True, ", ""),
        ("an entry's hash knows no time zone", "at.astimezone(UTC)", "at"),
        *(
            (f"an entry's hash covers {field}", f'        "{field}": {value},\n', "")
            for field, value in (("actor", "actor"), ("note", "note"), ("details", "details"))
        ),
    ),
    *guards(
        "domain/fingerprint.py",
        "tests/domain/test_fingerprint.py",
        ("numbers do not tell causes apart", "|{_HEX}|{_NUMBER})", "|{_HEX})"),
        ("recursion does not tell causes apart", "[place for place, _ in groupby(places)]", "places"),
        ("only the innermost frames count", "[-FRAMES:]", ""),
        ("types have their own incidents", "(str(VERSION), job_type, ", "(str(VERSION), "),
    ),
    *guards(
        "domain/schedule.py",
        "tests/domain/test_schedule.py",
        (
            "a slot is later than the moment asked from",
            "if (slot := self._first(named)) > moment:",
            "if slot := self._first(named):",
        ),
        (
            "a time left out is due when the gap ends",
            "_change(self.zone, min(slot, other), max(slot, other)) or slot",
            "slot",
        ),
        ("behind a change the clock is read anew", "            if changed is None:\n", "            if True:\n"),
        ("a change of the clock may be a slot", "_wall(changed, self.zone) - _MOMENT", "_wall(changed, self.zone)"),
        ("a new rhythm repeats no slot", "now if last is None else max(now, last)", "now"),
        ("what was missed is known", "    if first >= on_time:\n", "    if True:\n"),
        ("catching up is bounded", "_newest(rhythm, first, now, ALL_LIMIT)", "_newest(rhythm, first, now, 10**3)"),
    ),
    *guards(
        "store/sql/schedules.py",
        "tests/store/test_schedules.py",
        ("a schedule that has moved on lets nobody through", "        _c.next_slot == slot,\n", ""),
        (
            "a changed declaration lets nobody through",
            "        _c.version == version,\n        _c.next",
            "        _c.next",
        ),
        ("a paused schedule lets nobody through", "        not_(_c.paused),\n", ""),
        ("the database says what is due", "        db.now() >= (slot if last is None else max(slot, last)),\n", ""),
    ),
    *guards(
        "worker/schedules.py",
        "tests/worker/test_schedules.py",
        ("a live worker's declaration stays", "if (name, digest(row.spec)) in others:", "if False:"),
        (
            "a start puts its declaration in force",
            "if row is not None and name not in self._undeclared:",
            "if row is not None:",
        ),
        ("a change of arguments loses no slot", "if row is not None and schedule.same_rhythm(row.spec):", "if False:"),
        ("a broken schedule stops no other", "except Exception:", "except KeyError:"),
    ),
    *STORE,
    *OUTAGES,
    *KEYS,
    *ISOLATION,
    *LIMITS,
    *CIRCUITS,
    *DEVELOPER,
]
