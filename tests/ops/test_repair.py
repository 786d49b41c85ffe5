"""Suggestions for broken JSON: the smallest change, and nothing else in the text."""

import json

import pytest

from redrive.domain.errors import PayloadError
from redrive.domain.payload import parse
from redrive.ops.repair import SIZE_LIMIT, suggest

SEED = '{\n  "to": "user@example.com",\n  "subject": "Welcome!"\n  "body": "Hello, World!"\n}'

EXACT = [
    (SEED, SEED.replace('"Welcome!"', '"Welcome!",'), "comma put in on line 3"),
    (
        SEED.replace('World!"', 'World!"     // ← Missing comma after "subject"'),
        SEED.replace('"Welcome!"', '"Welcome!",'),
        "comma put in on line 3; comment on line 4 removed",
    ),
    ('{"n": 1.10 "m": 10000000000000000000000001, "m": 2}', '{"n": 1.10, "m": 10000000000000000000000001, "m": 2}', ""),
    ('{"a": 1,}', '{"a": 1}', ""),
    ("[1, 2, ]", "[1, 2 ]", ""),
    ("[1,,2]", "[1,2]", ""),
    ('{"a": [1, 2}', '{"a": [1, 2]}', ""),
    ('{"a": {"b": [1 2', '{"a": {"b": [1, 2]}}', ""),
    ('{"a":1}}', '{"a":1}', ""),
    ('{"a" 1}', '{"a": 1}', ""),
    ('{"a": "x}', '{"a": "x"}', ""),
    ('{"a": "x\ty\x1b"}', '{"a": "x\\ty\\u001b"}', ""),
    ("{'a': 'b'}", '{"a": "b"}', ""),
    ("{a: 1, b_2: 2}", '{"a": 1, "b_2": 2}', ""),
    ('{"a": True, "b": None, "c": NaN}', '{"a": true, "b": null, "c": null}', ""),
    ('\ufeff{"a": 1}', '{"a": 1}', "byte order mark removed"),
    ("# note\n[1]", "\n[1]", ""),
]


@pytest.mark.parametrize(
    ("broken", "mended", "what"), EXACT, ids=[f"{n} {case[0]!r:.30}" for n, case in enumerate(EXACT)]
)
def test_only_the_broken_place_changes(broken, mended, what):
    found = suggest(broken.encode())
    assert found is not None
    assert found.payload.decode() == mended
    assert found.exact
    assert found.what.startswith(what) if what else found.what
    assert found.diff


@pytest.mark.parametrize("broken", ['{"a": "he said "hi" to me"}', '```json\n{"a": 1}\n```', '{"n": 007, "m": 1}'])
def test_what_needs_more_is_written_anew_and_says_so(broken):
    found = suggest(broken.encode())
    assert found is not None
    parse(found.payload)
    assert not found.exact
    assert "written anew" in found.what


@pytest.mark.parametrize(
    "data",
    [
        b'{"a": 1}',
        b'{"a":1,"a":2}',
        b"",
        b"   ",
        b"hello",
        b"\xff\xfe",
        b'{"a":1e400}',
        b'{"a": "\\ud800"}',
        b"[" * 5_000,
        b'{"a": 1 "b": 2}' + b" " * SIZE_LIMIT,
    ],
    ids=lambda data: repr(data[:20]),
)
def test_there_is_no_suggestion_for_what_is_fine_foreign_or_hopeless(data):
    assert suggest(data) is None


def test_what_is_not_json_is_left_alone():
    assert suggest(SEED.encode(), "text/plain") is None
    assert suggest(SEED.encode(), "application/problem+json; charset=utf-8") is not None


def test_every_place_where_one_character_was_lost_or_doubled_gives_a_readable_text_or_none():
    """The suggestion is never itself broken, whatever was broken about the payload."""
    text = json.dumps({"to": "a@b.c", "lines": [{"n": 1.50, "ok": True}, {"n": -2, "ok": None}]}, indent=1)
    suggested = 0
    for at in range(len(text)):
        for broken in (text[:at] + text[at + 1 :], text[:at] + text[at] + text[at:]):
            found = suggest(broken.encode())
            if found is None:
                continue
            suggested += 1
            parse(found.payload)
            with pytest.raises(PayloadError):
                parse(broken.encode())
    assert suggested > 60
