"""The payloads of the lab's jobs.

They are exact texts, not values: what is broken, doubled, huge or oddly spelled in them is the point of them. Letters
that look alike, or that turn the line round, are written as escapes, so that no editor changes them unseen.
"""

import json
from typing import Any

NAMES = ["Ada", "Bram", "Chen", "Dalia", "Emeka", "Freja", "Gustavo", "Hana", "Iveta", "Jo\u00e3o"]

# The e-mail the whole story is about: it has no comma after its subject.
SEED = """{
  "to": "user@example.com",
  "subject": "Welcome!"
  "body": "Hello, World!"
}"""


def text(**fields: Any) -> str:
    """The spelling most clients use."""
    return json.dumps(fields, ensure_ascii=False)


def mail(to: str, subject: str = "Welcome!", body: str = "Hello, World!", **more: Any) -> str:
    return text(to=to, subject=subject, body=body, **more)


def mails(count: int, who: str, subject: str = "Welcome, {name}!") -> list[str]:
    return [
        mail(
            f"{who}-{n:03}@example.com",
            subject.format(name=NAMES[n % len(NAMES)]),
            f"Hello, {NAMES[n % len(NAMES)]}!\n\nThis is letter {n}.\n",
        )
        for n in range(count)
    ]


def hooks(count: int, name: str, path: str, **more: Any) -> list[str]:
    return [
        text(target=f"/{path}/{name}-{n:03}", body={"event": "order.paid", "order": 7000 + n, "total": "19.90"}, **more)
        for n in range(count)
    ]


def orders(name: str, *bodies: str) -> list[str]:
    """Webhooks whose bodies are spelled by hand."""
    return [f'{{"target": "/ok/{name}-{n:03}", "body": {body}}}' for n, body in enumerate(bodies)]


UNICODE_MAILS = [
    mail("emoji@example.com", "\N{PARTY POPPER} You did it", "family: \U0001f468\u200d\U0001f469\u200d\U0001f467"),
    json.dumps({"to": "escaped@example.com", "subject": "\N{PARTY POPPER}", "body": "the same emoji, escaped"}),
    mail("rtl@example.com", "\u05e9\u05dc\u05d5\u05dd", "\u0645\u0631\u062d\u0628\u0627, 100%!"),
    mail("override@example.com", "invoice\u202egpj.exe", "a right-to-left override in the subject"),
    mail("composed@example.com", "Caf\u00e9", "Zo\u00eb, composed (NFC)"),
    mail("decomposed@example.com", "Cafe\u0301", "Zoe\u0308, decomposed (NFD): looks the same, is not"),
    mail("combining@example.com", "Z\u0351\u0352\u0353a\u0300\u0301\u0302", "marks upon marks"),
    mail(
        "greek@example.com",
        "\u039a\u03b1\u03bb\u03b7\u03bc\u03ad\u03c1\u03b1",
        "\u03c2 at the end of \u03bb\u03cc\u03b3\u03bf\u03c2",
    ),
    mail("cyrillic@example.com", "\u041f\u0440\u0438\u0432\u0435\u0442", "\u0421\u044a\u0435\u0448\u044c \u0436\u0435"),
    mail("lines@example.com", "Separators", "line\u2028paragraph\u2029next line\u0085end"),
    mail("nul@example.com", "A NUL inside", "before\x00after"),  # json.dumps spells it \u0000
    mail("dots@example.com", "Dots", ".\n..\n.hidden\nfrom here on\n.\nstill the same mail\n"),
    mail("crlf@example.com", "Line ends", "unix\nwindows\r\nold mac\rend"),
    mail("long-line@example.com", "One long line", "x" * 5_000),
    mail("long-body@example.com", "A long letter", "All work and no play. \N{SNOWMAN}\n" * 4_000),
    mail("long-subject@example.com", "very " * 300 + "long", "the subject says it"),
    mail("zo\u00eb@example.com", "An address beyond ASCII", "needs SMTPUTF8"),
    '{"body": "keys in another order", "subject": "Order", "to": "order@example.com"}',
    '{\t"to":"spaces@example.com" ,\r\n  "subject" : "Spaces",   "body":"odd white space is kept" }  \n',
    '{"to": "slash@example.com", "subject": "\\/ \\u0041\\u00e9", "body": "escapes nobody needs"}',
]

DOUBLED = [
    '{"to": "doubled@example.com", "subject": "First", "subject": "Second", "body": "Hello"}',
    '{"to": "old@example.com", "subject": "Doubled", "body": "Hello", "to": "new@example.com"}',
]

MALFORMED_MAILS = [
    SEED,
    '{"to": "comma@example.com", "subject": "Trailing comma", "body": "Hello",}',
    "{'to': 'python@example.com', 'subject': 'Single quotes', 'body': None}",
    '{to: "js@example.com", subject: "Bare keys", body: "Hello"}',
    '{"to": "cut@example.com", "subject": "Cut off", "body": "Hello, Wor',
    '{"to": "comment@example.com", "subject": "Comment", "body": "Hello"} // sent by hand',
    '{"to": "two@example.com", "subject": "Two", "body": "1"}{"to": "two@example.com", "subject": "Two", "body": "2"}',
    '{"to": "newline@example.com", "subject": "Raw line break", "body": "Hello,\nWorld"}',
    '{"to": "quotes@example.com", "subject": "Say "hello"", "body": "Hello"}',
    "to=form@example.com&subject=A+form&body=Hello",
]

MISFITS = [
    '{"to": 42, "subject": "A number", "body": "Hello"}',
    '{"to": null, "subject": "Null", "body": "Hello"}',
    '{"to": ["a@example.com", "b@example.com"], "subject": "A list", "body": "Hello"}',
    '{"to": "type@example.com", "subject": {"en": "An object"}, "body": "Hello"}',
    '{"to": "type@example.com", "subject": "A boolean", "body": true}',
    '{"to": "missing@example.com", "subject": "No body"}',
    '{"subject": "No recipient", "body": "Hello"}',
    "{}",
    '{"to": "typo@example.com", "subject": "A typo", "bdoy": "Hello"}',
    mail("surplus@example.com", "Surplus", "Hello", cc="b@example.com"),
    mail("surplus@example.com", "Surplus", "Hello", priority="high"),
    "null",
    "[]",
    '"user@example.com"',
    "42",
    "",
    '{"to": "surrogate@example.com", "subject": "Half a pair: \\ud83d", "body": "Hello"}',
]

NUMBERS = orders(
    "hook-numbers",
    f'{{"big": {10**40}, "negative": -{10**40}}}',
    f'{{"signed": {2**63}, "below": {-(2**63) - 1}, "unsigned": {2**64}, "exact": {2**53 + 1}}}',
    '{"price": 1.10, "count": 1e5, "tiny": 5e-324, "sum": 0.30000000000000004, "zero": -0.0}',
    '{"same": 1, "as": 1.0, "and": 1E0, "or": 10e-1}',
    '{"b": 1, "a": 2, "signed-over": "the bytes, in this order"}',
    '{"deep": [[[[[[[[[[[[[[[[[[[[{"bottom": true}]]]]]]]]]]]]]]]]]]]]}',
)

REPORT_ROWS = [
    {"item": "Caf\u00e9 cr\u00e8me \N{HOT BEVERAGE}", "quantity": 3, "price": "2.50"},
    {"item": '=HYPERLINK("http://example.com")', "quantity": 1, "price": "0.10"},
    {"item": "<script>alert(1)</script>", "quantity": 10**40, "price": "1.10"},
    {"item": "\u05e9\u05dc\u05d5\u05dd", "quantity": 2**63, "price": "0.000000000000000000000000000001"},
]


def report(name: str, rows: Any = REPORT_ROWS) -> str:
    return text(name=name, title=f"Report {name} <draft>", rows=rows)


LEDGER = text(
    account="acct-2026-07",
    entries=[{"text": f"Invoice {1000 + n}", "amount": f"{10 + n}.{n:02}"} for n in range(12)],
)
