"""One cause, one fingerprint: what folds, what does not, and that the rule stays what it was."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.domain.fingerprint import Frame, fingerprint, normal, title

FRAMES = (Frame("/app/jobs.py", "send_email"), Frame("/app/mail.py", "Mailer.send"), Frame("/app/smtp.py", "connect"))
MESSAGE = "no such customer: 42"


def print_of(
    job_type="email.send.v1", kind="fatal", error_type="shop.NoCustomer", message=MESSAGE, frames=FRAMES
) -> str:
    return fingerprint(job_type, kind, error_type, message, frames)


@pytest.mark.parametrize(
    ("message", "norm"),
    [
        ("no such customer: 42", "no such customer: #"),
        ("took 12.5 s, limit 1,000", "took # s, limit #"),
        ("off by -3 or 1e-7", "off by # or #"),
        ("id=5b, v2, utf8, x86_64", "id=#b, v#, utf#, x#"),
        ("object at 0x7f3a5c0b9d10", "object at #"),
        ("commit 3f786850e387550f missing", "commit # missing"),
        ("deadbeef is a word, deadbee5 a number", "deadbeef is a word, # a number"),
        ("job 01890a5d-ac96-774b-bcce-b302099a8057 gone", "job # gone"),
        ("at 2026-05-04T03:02:01.123456+02:00 and 2026-05-04", "at # and #"),
        ("at 03:02:01", "at #"),
        ("field 'subject' and \"to\" and `cc`", "field # and # and #"),
        ("can't open what isn't there", "can't open what isn't there"),
        ("no file /srv/data/in/42.csv here", "no file # here"),
        (r"no file C:\data\in\42.csv here", "no file # here"),
        ("either/or", "either/or"),
        ("GET https://api.example.com/v1/users/42?x=1#top", "GET https://api.example.com/#"),
        ("GET https://api.example.com:8443", "GET https://api.example.com:#/#"),
        ("missing: [1, 2, 3]", "missing: [#]"),
        ("missing: ['a', 'b']", "missing: [#]"),
        ("  two\n\tlines  ", "two lines"),
        ("", ""),
    ],
)
def test_what_a_message_has_in_common_with_the_next(message, norm):
    assert normal(message) == norm


class TestOneCause:
    @pytest.mark.parametrize(
        "message",
        ["no such customer: 43", "no such customer: 0", "no such customer: 3f786850e387550f", "no such  customer: -1"],
    )
    def test_whatever_the_number(self, message):
        assert print_of(message=message) == print_of()

    def test_wherever_it_is_installed(self):
        windows = [Frame(frame.file.replace("/app/", "C:\\shop\\"), frame.function) for frame in FRAMES]
        assert print_of(frames=windows) == print_of()

    def test_however_it_got_there(self):
        assert print_of(frames=(Frame("/app/web.py", "view"), Frame("/app/x.py", "y"), *FRAMES)) == print_of()

    def test_however_deep_it_recursed(self):
        assert print_of(frames=(*FRAMES[:2], FRAMES[1], FRAMES[1], FRAMES[2], FRAMES[2])) == print_of()


@pytest.mark.parametrize(
    "other",
    [
        {"job_type": "email.send.v2"},
        {"kind": "http 503"},
        {"error_type": "KeyError"},
        {"message": "no such partner: 42"},
        {"frames": FRAMES[:2]},
        {"frames": FRAMES[::-1]},
        {"frames": (*FRAMES[:2], Frame("/app/smtp.py", "quit"))},
        {"frames": (*FRAMES[:2], Frame("/app/imap.py", "connect"))},
        {"frames": ()},
        {"job_type": "email.send.v1\x00fatal", "kind": ""},
    ],
    ids=str,
)
def test_another_cause(other):
    assert print_of(**other) != print_of()


@pytest.mark.parametrize(
    ("arguments", "pinned"),
    [
        ({}, "5bc86dca2f1c9279"),
        ({"frames": (), "kind": ""}, "da2d5d2255dce31f"),
        ({"message": "Grüße \ud800\x00"}, "8275838d0013c13e"),
    ],
    ids=["whole", "bare", "odd text"],
)
def test_version_1_is_what_it_was(arguments, pinned):
    assert print_of(**arguments) == pinned


words = st.lists(st.sampled_from(["timeout after # s", "row #", "(#, #)", "port #", "'#'", "at #:", "-#"]), min_size=1)
numbers = st.one_of(st.integers(0), st.floats(0, allow_nan=False, allow_infinity=False), st.uuids())


@pytest.mark.slow
@given(words.map(" ".join), st.data())
def test_numbers_never_matter(template, data):
    one, other = (re.sub("#", lambda _: str(data.draw(numbers)), template) for _ in range(2))
    assert print_of(message=one) == print_of(message=other)


@pytest.mark.slow
@given(st.text(st.characters()), st.text(st.characters()), st.lists(st.builds(Frame, st.text(), st.text())))
def test_any_text_has_a_fingerprint(message, job_type, frames):
    assert re.fullmatch("[0-9a-f]{16}", print_of(job_type=job_type, message=message, frames=frames))


@pytest.mark.timeout(5)
@pytest.mark.parametrize("unit", ["a", "'", '"', "/", "1", "a:", "#,", "a://", "0x", "deadbeef", "1-", "`'\"", "é "])
def test_no_message_is_slow(unit):
    assert print_of(message=unit * 200_000)


@pytest.mark.parametrize(
    ("error_type", "message", "shown"),
    [
        ("shop.errors.NoCustomer", MESSAGE, "email.send.v1: NoCustomer: no such customer: 42"),
        ("ValueError", "", "email.send.v1: ValueError"),
        ("", "two\nlines \x1b[31m", "email.send.v1: error: two lines \\x1b[31m"),
        ("E", "x" * 1000, "email.send.v1: E: " + "x" * 159 + "…"),
    ],
)
def test_a_title_for_people(error_type, message, shown):
    assert title("email.send.v1", error_type, message) == shown
