"""What may change in a job, and how each field is checked."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.domain.edits import (
    CONTENT_FIELDS,
    JobEdit,
    check_edit,
    check_key,
    check_labels,
    check_name,
    check_note,
    check_priority,
    check_tags,
    check_word,
)
from redrive.domain.errors import InvalidField

EVERYTHING = JobEdit(
    payload=b'{"to": 1',
    content_type="application/json",
    tags=("b", "a"),
    labels={"customer": "42"},
    priority=30,
    idempotency_key="welcome-42",
    queue="slow",
    type="email.send.v2",
)


def refused(check, *arguments, **named):
    with pytest.raises(InvalidField) as caught:
        check(*arguments, **named)
    return caught.value


def test_an_empty_edit_touches_nothing():
    assert JobEdit().touched() == ()


def test_none_is_a_change_of_the_key_and_not_the_lack_of_one():
    assert JobEdit(idempotency_key=None).touched() == ("idempotency_key",)


def test_touched_names_every_field_that_is_set():
    assert EVERYTHING.touched() == (*CONTENT_FIELDS, "queue", "type")


@pytest.mark.parametrize("edit", [JobEdit(), JobEdit(idempotency_key=None), EVERYTHING])
def test_a_good_edit_comes_back_equal(edit):
    assert check_edit(edit, payload_limit=100) == edit


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("payload", "text"),
        ("payload", None),
        ("payload", bytearray(b"{}")),
        ("content_type", ""),
        ("content_type", "text/plain\n"),
        ("tags", "one"),
        ("labels", ["a"]),
        ("priority", 101),
        ("idempotency_key", ""),
        ("queue", "no spaces"),
        ("type", ""),
    ],
)
def test_a_bad_field_is_named(field, value):
    assert refused(check_edit, JobEdit(**{field: value}), payload_limit=100).field == field


@pytest.mark.parametrize(("size", "fits"), [(0, True), (99, True), (100, True), (101, False)])
def test_a_payload_may_be_as_large_as_the_limit(size, fits):
    edit = JobEdit(payload=b"x" * size)
    if fits:
        assert check_edit(edit, payload_limit=100) == edit
    else:
        error = refused(check_edit, edit, payload_limit=100)
        assert (error.code, error.field) == ("payload-too-large", "payload")
        assert str(error) == "payload: 101 bytes; expected at most 100 bytes"


@pytest.mark.parametrize("name", ["a", "email.send.v1", "A-b_c:d/e.9", "x" * 200, "9lives", "_hidden"])
def test_names(name):
    assert check_name("queue", name) == name


@pytest.mark.parametrize("name", ["", ".a", "-a", "a b", "ä", "a\n", "x" * 201, None, 5, b"a", "a;b", "a\x00"])
def test_no_names(name):
    assert refused(check_name, "queue", name).field == "queue"


@pytest.mark.parametrize("word", ["a", "zwei Wörter", "🚀", "x" * 200, "a\u200db", "שלום"])
def test_words(word):
    assert check_word("tag", word) == word


@pytest.mark.parametrize(
    "word",
    ["", "x" * 201, "a\x00", "a\nb", "\t", "\x1b[31m", "\x7f", "\x85", "\x9b31m", "\u2028", "\ud800", 5, None, b"a"],
)
def test_no_words(word):
    error = refused(check_word, "tag", word)
    assert (error.field, error.expected) == ("tag", "1 to 200 characters without controls")


def test_a_long_refused_word_is_shown_in_part():
    assert len(str(refused(check_word, "tag", "\n" * 5000))) < 150


@pytest.mark.parametrize(("key", "fits"), [("k" * 400, True), ("k" * 401, False)])
def test_a_key_may_be_longer_than_a_word(key, fits):
    assert check_key(key) == key if fits else refused(check_key, key).field == "idempotency_key"


@pytest.mark.parametrize("priority", [0, 10, 100])
def test_priorities(priority):
    assert check_priority(priority) == priority


@pytest.mark.parametrize("priority", [-1, 101, 10.0, True, "high", None, float("nan")])
def test_no_priorities(priority):
    error = refused(check_priority, priority)
    assert (error.field, error.expected) == ("priority", "a whole number from 0 to 100")


class TestTags:
    def test_stand_in_the_order_given_each_once(self):
        assert check_tags(["b", "a", "b"]) == ("b", "a")

    def test_are_fifty_at_most(self):
        fifty = [f"t{n}" for n in range(50)]
        assert check_tags([*fifty, "t0"]) == tuple(fifty)
        assert refused(check_tags, [*fifty, "t50"]).problem == "51 tags"

    @pytest.mark.parametrize("value", ["signup", None, 5, {"a": 1}.__len__])
    def test_are_a_list(self, value):
        assert refused(check_tags, value).expected == "a list of strings"

    def test_name_the_bad_one(self):
        assert refused(check_tags, ["good", "bad\n"]).field == "tags[1]"


class TestLabels:
    def test_are_names_with_text(self):
        assert check_labels({"customer": "42", "partner": "Bäcker"}) == {"customer": "42", "partner": "Bäcker"}

    def test_are_fifty_at_most(self):
        assert len(check_labels({f"l{n}": "x" for n in range(50)})) == 50
        assert refused(check_labels, {f"l{n}": "x" for n in range(51)}).problem == "51 labels"

    @pytest.mark.parametrize(
        ("labels", "field"), [("a", "labels"), (["a"], "labels"), ({"a": 1}, "labels.a"), ({"": "x"}, "labels name")]
    )
    def test_name_the_bad_one(self, labels, field):
        assert refused(check_labels, labels).field == field


@pytest.mark.parametrize(
    ("note", "kept"),
    [(None, None), ("", None), ("two\nlines", "two\nlines"), ("x" * 2000, "x" * 2000)],
)
def test_notes(note, kept):
    assert check_note(note) == kept


@pytest.mark.parametrize("note", ["x" * 2001, "nul \x00", "half \ud83d"])
def test_no_notes(note):
    assert refused(check_note, note).field == "note"


@pytest.mark.slow
@given(st.text())
def test_whatever_word_is_accepted_can_be_stored_in_one_line(text):
    try:
        word = check_word("tag", text)
    except InvalidField:
        return
    assert word == text
    assert len(word.splitlines()) == 1
    assert "\x00" not in word.encode().decode()
