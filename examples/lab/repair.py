"""The story this is all about: an e-mail without a comma, from its death to the mailbox, with all that is on record."""

from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from uuid import UUID

from examples.lab.lab import ADMIN, Lab, expect, otherwise
from examples.lab.story import moment
from examples.lab.texts import SEED
from redrive.domain.job import JobHead
from redrive.ops.insight import Explained

NOTE = "the comma after the subject"


def broken_mail(lab: Lab) -> None:
    """Look, understand, repair, send back, delivered."""
    given = _find(lab)
    head = given.record.head
    _show(lab, given)
    repaired = _suggestion(lab, given)
    lab.teller.say()
    lab.teller.say("Repaired and sent back, in one transaction:")
    lab.teller.code(
        [
            f'desk = app.desk("{ADMIN}")',
            f'desk.resurrect("{head.id}",',
            '    payload=suggestion.payload, tags=["resurrected", "manual"],',
            f'    priority=30, version={head.version}, note="{NOTE}")',
        ]
    )
    lab.app.desk(ADMIN).resurrect(
        head.id,
        payload=repaired,
        tags=["resurrected", "manual"],
        priority=30,
        version=head.version,
        note=NOTE,
    )
    lab.wait_until_succeeded([str(head.id)])
    done = lab.app.desk(ADMIN).get(head.id).head
    lab.teller.say(
        f"It went the normal way once more: claimed from {done.queue}, attempt {done.attempt} of life {done.life}, "
        f"succeeded in {done.duration_ms} ms. In the mailbox of the mail server:"
    )
    file, mail = mail_of(lab.stage.folder, head.id)
    body = str(mail.get_content()).strip()
    lab.teller.code([f"{file.name}   To: {mail['To']}   Subject: {mail['Subject']}", f"{'':{len(file.name)}}   {body}"])
    expect((mail["To"], mail["Subject"], body) == ("user@example.com", "Welcome!", "Hello, World!"), f"{file}: {mail}")
    _record(lab, head)


def _find(lab: Lab) -> Explained:
    for job in lab.of_group("mail-malformed"):
        explained = lab.app.insight().explain(job)
        if explained.record.payload == SEED.encode():
            return explained
    return otherwise("the e-mail without a comma is not among the accepted jobs")


def _show(lab: Lab, given: Explained) -> None:
    head, teller = given.record.head, lab.teller
    teller.scene("The e-mail without a comma")
    if given.reason is None or given.verdict is None or head.failed_at is None:
        otherwise(f"job {head.id} is {head.spot}, not dead")
    teller.point("job", head.id)
    teller.point("type", f"{head.type}   queue {head.queue}   attempts {head.attempt}")
    teller.point("failed at", f"{moment(head.failed_at)}   worker {head.worker_id}")
    teller.point("reason", f"{head.reason}: {given.reason.meaning}")
    teller.point("error", f"{(head.error_type or '').rpartition('.')[2]}: {head.error_message}")
    problem = given.problem
    if problem is None or (problem.line, problem.column) != (4, 3):
        otherwise(f"the error is at line 4, column 3; told was {problem}")
    teller.say()
    for number, line in enumerate(given.record.payload.decode().split("\n"), 1):
        teller.code([f"{number:>2} | {line}"])
        if number == problem.line:
            teller.code([f"   | {'^':>{problem.column or 1}} line {problem.line}, column {problem.column}"])
    teller.say()
    teller.point("safe again?", f"{given.verdict.safety}: {'; '.join(given.verdict.findings)}")


def _suggestion(lab: Lab, given: Explained) -> bytes:
    """The suggested payload, after it was seen to be the old one with one comma more."""
    old, suggestion = given.record.payload, given.suggestion
    if suggestion is None:
        otherwise("no repair was suggested for the e-mail without a comma")
    new = suggestion.payload
    at = next((place for place, byte in enumerate(old) if new[place] != byte), len(old))
    only_a_comma = new[at : at + 1] == b"," and new[:at] + new[at + 1 :] == old
    expect(only_a_comma, f"the suggestion is more than a comma: {new!r}")
    lab.teller.point("suggested", f"{suggestion.what}; {len(old)} bytes become {len(new)}, all others stay")
    lab.teller.say()
    lab.teller.code([line for line in suggestion.diff if not line.startswith(("---", "+++", "@@"))])
    return new


def _record(lab: Lab, before: JobHead) -> None:
    """Ledger, revisions and audit of the job."""
    record = lab.app.desk(ADMIN).get(before.id)
    teller = lab.teller
    teller.say()
    teller.say("On record of it, and never rewritten:")
    for line in record.ledger:
        text = f"{moment(line.ended_at)} life {line.life}, attempt {line.attempt}: {line.kind}, {line.reason}"
        teller.point("ledger", f"{text}; {line.error_message}")
    for old in record.revisions:
        kept = "the broken text, byte for byte" if old.payload == SEED.encode() else "another text"
        text = f"number {old.revision}: {len(old.payload)} bytes, {kept}; priority {old.priority}"
        teller.point("revision", f"{text}; replaced {moment(old.at)} by {old.actor}")
    entries = lab.app.store.audit_entries(target=str(before.id))
    for entry in entries:
        changed = ", ".join(entry.details.get("changed", ()))
        who = f"entry {entry.id}: {moment(entry.at)} {entry.actor} ({entry.role}, by {entry.channel})"
        teller.point("audit", f'{who}: {entry.action}, "{entry.note}"; changed {changed}')
    expect([line.life for line in record.ledger] == [1], f"the ledger of {before.id} has {len(record.ledger)} lines")
    expect([old.payload for old in record.revisions] == [SEED.encode()], f"the revisions of {before.id} are not one")
    expect([entry.actor for entry in entries] == [ADMIN], f"the audit of {before.id} has {len(entries)} entries")


def mail_of(folder: Path, job: UUID) -> tuple[Path, EmailMessage]:
    """The mail that a job sent, and its file."""
    for file in sorted((folder / "mailbox").glob("*.eml")):
        mail = message_from_bytes(file.read_bytes(), policy=policy.default)
        if str(job) in str(mail["Message-ID"]):
            return file, mail
    return otherwise(f"no mail of job {job} arrived")
