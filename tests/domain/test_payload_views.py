"""Payloads for people: whether they can be read, their beginning, and what changed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.domain.payload import DIFF_LINES, diff, is_json, is_text, preview


@pytest.mark.parametrize(
    ("content_type", "json", "text"),
    [
        ("application/json", True, True),
        ("Application/JSON; charset=utf-8", True, True),
        ("application/problem+json", True, True),
        ("text/plain", False, True),
        ("TEXT/CSV ; header=present", False, True),
        ("application/xml", False, True),
        ("image/svg+xml", False, True),
        ("application/x-www-form-urlencoded", False, True),
        ("application/yaml", False, True),
        ("application/x-ndjson", False, True),
        ("application/octet-stream", False, False),
        ("application/jsonish", False, False),
        ("image/png", False, False),
        ("", False, False),
    ],
)
def test_content_types(content_type, json, text):
    assert is_json(content_type) is json
    assert is_text(content_type) is text


@pytest.mark.parametrize(
    ("data", "limit", "shown"),
    [
        (b"", 10, ""),
        (b'{"a": 1}', 8, '{"a": 1}'),
        (b'{"a": 1}', 7, '{"a": 1 [... 8 bytes in all]'),
        ("aüb".encode(), 2, "a [... 4 bytes in all]"),
        ("aüb".encode(), 3, "aü [... 4 bytes in all]"),
        ("😀😀".encode(), 7, "😀 [... 8 bytes in all]"),
        (b"line\n\x1b[2J\x00", 99, "line\n\\x1b[2J\\x00"),
        (b"\x89PNG\r\n", 99, "89 50 4e 47 0d 0a [binary, 6 bytes]"),
        (b"\x89PNG\r\n", 6, "89 50 [binary, 6 bytes]"),
        (b"ok\xff" + b"x" * 20, 9, "6f 6b ff [binary, 23 bytes]"),
        ("ü".encode()[:1], 99, "c3 [binary, 1 bytes]"),
    ],
)
def test_previews(data, limit, shown):
    assert preview(data, limit) == shown


@given(st.binary() | st.text().map(str.encode), st.integers(1, 20))
def test_any_payload_has_a_short_safe_preview(data, limit):
    shown = preview(data, limit)
    assert len(shown) < 10 * limit + 60
    assert "\x1b" not in shown
    shown.encode()


def test_a_repair_is_seen_in_its_line():
    before = b'{\n  "subject": "Hi"\n  "body": "ho"\n}'
    after = before.replace(b'"Hi"\n', b'"Hi",\n')
    assert diff(before, after) == [
        "--- before",
        "+++ after",
        "@@ -1,4 +1,4 @@",
        " {",
        '-  "subject": "Hi"',
        '+  "subject": "Hi",',
        '   "body": "ho"',
        " }",
    ]


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        (b"a", b"a\n", ["+"]),  # a final newline is a change of bytes
        (b"a\r\nb", b"a\nb", ["-a\\x0d", "+a"]),
        (b"a", b"\x1b[31m", ["-a", "+\\x1b[31m"]),
        (b"", b"a", ["-", "+a"]),
    ],
)
def test_changes_that_are_hard_to_see(old, new, changed):
    assert [line for line in diff(old, new)[3:] if line[0] != " "] == changed


@pytest.mark.parametrize("data", [b"", b"a\nb", b"\xff"])
def test_no_change_is_no_diff(data):
    assert diff(data, bytes(data)) == []


@pytest.mark.parametrize(
    ("old", "new"), [(b"text", b"\xff\x00"), (b"\n" * DIFF_LINES, b"\n" * 7)], ids=["binary", "too many lines"]
)
def test_what_cannot_be_compared_in_lines_is_named_by_its_hash(old, new):
    one, other = diff(old, new)
    assert one.startswith(f"-{len(old)} bytes, sha256 ")
    assert other.startswith(f"+{len(new)} bytes, sha256 ")
