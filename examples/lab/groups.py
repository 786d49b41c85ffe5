"""The lab's jobs by groups: what is asked for, how it ends, and what an operator does about it."""

from dataclasses import dataclass

from examples.lab.texts import (
    DOUBLED,
    LEDGER,
    MALFORMED_MAILS,
    MISFITS,
    NUMBERS,
    REPORT_ROWS,
    UNICODE_MAILS,
    hooks,
    mail,
    mails,
    orders,
    report,
    text,
)

SUCCEEDED = "succeeded"
DUPLICATE = "duplicate"  # not accepted a second time: the job that holds the key is answered instead
EXHAUSTED = "retries_exhausted"
MAIL, CAMPAIGN, HOOK = "email.send.v1", "campaign.send.v1", "webhook.deliver.v1"
REPORT, INVOICE, PARCEL, LEDGERS = "report.render.v1", "invoice.total.v1", "shipment.track.v1", "ledger.export.v1"


@dataclass(frozen=True)
class Group:
    """Jobs that end alike: succeeded, duplicate, or dead for the reason named; after so many attempts."""

    name: str
    type: str
    outcome: str
    attempts: int
    story: str
    payloads: list[str]
    cure: str = ""  # what an operator does; after "resurrect" the job succeeds
    queue: str | None = None  # None leaves it to the handler
    priority: int | None = None
    keyed: bool = False


# fmt: off
GROUPS = [
    Group("ledger-killed", LEDGERS, "zombie", 1, "its worker is killed with 3 of 12 entries booked",
          [LEDGER], 'ask /state how far it got, set "start_at": 3, resurrect', queue="ledger", priority=100),

    Group("mail", MAIL, SUCCEEDED, 1, "plain mail", mails(90, "guest")),
    Group("mail-unicode", MAIL, SUCCEEDED, 1, "every script, NUL, dots, long lines, odd spelling", UNICODE_MAILS),
    Group("mail-doubled", MAIL, SUCCEEDED, 1, "a key twice: stored as sent, the last one counts", DOUBLED),
    Group("mail-alias", "email_v1", SUCCEEDED, 1, "the type's old name", mails(4, "old"), queue="notifications"),
    Group("mail-keyed", MAIL, SUCCEEDED, 1, "with an idempotency key", mails(6, "keyed"), priority=0, keyed=True),
    Group("mail-repeat", MAIL, DUPLICATE, 0, "the same keys again", mails(6, "keyed", "Again, {name}"), keyed=True),
    Group("mail-grey", MAIL, SUCCEEDED, 2, "greylisted (451) the first time", mails(8, "grey")),
    Group("mail-full", MAIL, EXHAUSTED, 3, "mailbox full (452), always", mails(4, "full"), "purge"),
    Group("mail-nobody", MAIL, "fatal", 1, "no such user (550)", mails(5, "nobody"), "correct the address, resurrect"),
    Group("mail-address", MAIL, "fatal", 1, "no address at all (501)",
          [mail("not an address"), mail("")], "correct the address, resurrect"),
    Group("mail-injection", MAIL, "fatal", 1, "a line break in a header: ValueError",
          [mail("a@example.com", "Hi\nBcc: everyone@example.com"), mail("a@example.com\r\nX: y")], "purge"),
    Group("mail-malformed", MAIL, "fatal", 1, "not JSON; among them the missing comma",
          MALFORMED_MAILS, "repair the payload, resurrect"),
    Group("mail-misfit", MAIL, "fatal", 1, "JSON, but not these arguments: type, missing, surplus, no object",
          MISFITS, "repair the payload, resurrect"),

    Group("campaign", CAMPAIGN, SUCCEEDED, 1, "still subscribed",
          [text(name=f"reader-{n}", subject="News", body="Dear reader") for n in range(10)], priority=0),
    Group("campaign-left", CAMPAIGN, "cancelled", 1, "unsubscribed meanwhile: the handler cancels",
          [text(name=f"left-{n}", subject="News", body="Dear reader") for n in range(6)], "nothing", priority=0),

    Group("hook", HOOK, SUCCEEDED, 1, "the partner answers 201", hooks(50, "hook", "ok"), queue="webhooks"),
    Group("hook-numbers", HOOK, SUCCEEDED, 1, "2^63, 10^40, float spelling, key order", NUMBERS),
    Group("hook-fail-1", HOOK, SUCCEEDED, 2, "500 once", hooks(10, "fail1", "fail/1")),
    Group("hook-fail-2", HOOK, SUCCEEDED, 3, "500 twice", hooks(8, "fail2", "fail/2")),
    Group("hook-throttled", HOOK, SUCCEEDED, 2, "429, Retry-After 1 s", hooks(8, "slow", "throttle/1/1")),
    Group("hook-throttled-2", HOOK, SUCCEEDED, 3, "429 twice", hooks(3, "slower", "throttle/2/1")),
    Group("hook-busy", HOOK, SUCCEEDED, 2, "503, Retry-After 1 s", hooks(4, "busy", "busy/1/1")),
    Group("hook-date", HOOK, SUCCEEDED, 2, "429, Retry-After as a date", hooks(3, "date", "throttle-until/1/2")),
    Group("hook-silent", HOOK, SUCCEEDED, 2, "no answer within 2 s, once", hooks(4, "silent", "hang/1")),
    Group("hook-dropped", HOOK, SUCCEEDED, 2, "connection closed without an answer", hooks(6, "dropped", "drop/1")),
    Group("hook-html", HOOK, SUCCEEDED, 2, "200 with an HTML page, once", hooks(4, "html", "html/1")),

    Group("hook-outage", HOOK, EXHAUSTED, 3, "500 three times: an outage longer than the budget",
          hooks(6, "outage", "fail/3"), "resurrect"),
    Group("hook-html-3", HOOK, EXHAUSTED, 3, "200 with an HTML page, three times",
          hooks(2, "page", "html/3"), "resurrect"),
    Group("hook-broken", HOOK, EXHAUSTED, 3, "500, always", hooks(2, "broken", "fail/always"), "call the partner"),
    Group("hook-dead", HOOK, EXHAUSTED, 3, "no answer, ever", hooks(2, "dead", "hang/always"), "call the partner"),
    Group("hook-missing", HOOK, EXHAUSTED, 3, "404: perhaps not deployed yet",
          hooks(2, "missing", "answer/404"), "correct the target, resurrect"),
    Group("hook-refused", HOOK, EXHAUSTED, 3, "connection refused: nothing listens there",
          [text(target=f"http://127.0.0.1:1/refused-{n}", body={"order": n}) for n in range(3)],
          "correct the target, resurrect"),
    Group("hook-throttled-3", HOOK, "throttled", 3, "429 three times",
          hooks(4, "slowest", "throttle/3/1"), "resurrect"),
    Group("hook-next-week", HOOK, "retry_lifetime_expired", 1, "429, Retry-After a week: beyond max_age",
          hooks(2, "week", "throttle/1/604800"), "resurrect"),
    Group("hook-patient", HOOK, "timeout", 3, "would wait 60 s, but the handler may run 4 s",
          hooks(3, "patient", "hang/3", patience=60), "resurrect"),
    Group("hook-rejected", HOOK, "fatal", 1, "422", hooks(5, "rejected", "answer/422"), "correct it, resurrect"),
    Group("hook-bad", HOOK, "fatal", 1, "400", hooks(3, "bad", "answer/400"), "correct it, resurrect"),
    Group("hook-nan", HOOK, "fatal", 1, "NaN and 1e400 are no JSON numbers",
          orders("nan", '{"ratio": NaN}', '{"ratio": 1e400}'), "repair the payload, resurrect"),

    Group("report", REPORT, SUCCEEDED, 1, "rendered to HTML and CSV",
          [report(f"month-{n:02}", REPORT_ROWS[: 1 + n % 4]) for n in range(36)], priority=20),
    Group("report-escape", REPORT, "fatal", 1, "a name that leads out of the folder",
          [report("../../etc/cron.d/lab"), report("/tmp/lab"), report("a\0b")], "purge"),
    Group("report-misfit", REPORT, "fatal", 1, "an amount that is none",
          [report("bad-price", [{"item": "x", "quantity": 1, "price": "1,10"}]),
           report("bad-quantity", [{"item": "x", "quantity": 1.5, "price": "1.10"}])], "repair the payload, resurrect"),

    Group("invoice", INVOICE, SUCCEEDED, 1, "without a discount",
          [text(lines=["19.90", f"{n}.05"]) for n in range(16)]),
    Group("invoice-discount", INVOICE, "fatal", 1, "a bug in the handler: KeyError 'percnet'",
          [text(lines=["19.90"], discount={"percent": str(n)}) for n in range(5, 13)],
          "deploy the fix (LAB_RELEASE=2), resurrect"),

    Group("parcel", PARCEL, SUCCEEDED, 1, "has arrived", [text(url=f"/track/0/here-{n}") for n in range(5)]),
    Group("parcel-waiting", PARCEL, SUCCEEDED, 6, "snoozes five times: more than the budget has attempts",
          [text(url=f"/track/5/later-{n}") for n in range(6)]),

    Group("unknown", "loyalty.points.v1", "fatal", 0, "no worker knows the type",
          [text(customer=n, points=10) for n in range(3)], "deploy a handler, or purge", queue="notifications"),
]
# fmt: on
