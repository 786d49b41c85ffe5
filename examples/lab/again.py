"""Dead jobs that are not broken: one that must not simply run again, many that may, and some that must wait."""

from collections import Counter
from datetime import timedelta

from examples.lab.groups import GROUPS
from examples.lab.lab import ACCOUNT, ADMIN, BOOKED, ENTRIES, Lab, expect, otherwise
from redrive import JobFilter
from redrive.ops.safety import Safety

RECOVERED = ("hook-outage", "hook-html-3", "hook-throttled-3", "hook-patient")
PUT_OFF = "hook-next-week"
STORIES = {group.name: group.story for group in GROUPS}


def zombie(lab: Lab) -> None:
    """Why the killed worker's job is here, what it did, and how it goes on without doing that twice."""
    teller, desk = lab.teller, lab.app.desk(ADMIN)
    (job,) = lab.of_group("ledger-killed")
    explained = lab.app.insight().explain(job)
    head, payload = explained.record.head, explained.record.payload
    if explained.reason is None or explained.verdict is None:
        otherwise(f"job {job} is {head.spot}, not dead")
    teller.scene("The job whose worker was killed")
    teller.point("job", f"{head.id}   {head.type}")
    teller.point("why here?", f"{head.reason}: {explained.reason.meaning}. It was {head.worker_id}")
    teller.point("safe again?", f"{explained.verdict.safety}: {'; '.join(explained.verdict.findings)}")
    booked = lab.stage.peers("/state")["ledger"][ACCOUNT]
    teller.point(
        "side effects",
        f'the job last reported "{head.progress}", but the ledger itself has {len(booked)} entries',
    )
    expect(len(booked) == BOOKED, f"the ledger has {len(booked)} entries, not {BOOKED}")
    expect(f":{lab.killed}:" in (head.worker_id or ""), f"{head.worker_id} is not process {lab.killed}")
    edited = payload.removesuffix(b"}") + b', "start_at": %d}' % BOOKED
    teller.point("so", f"it is resurrected by {ADMIN} to go on with entry {BOOKED + 1}, its payload edited:")
    teller.code([f"- …{payload[-24:].decode()}", f"+ …{edited[-39:].decode()}"], indent=14)
    note = f"the ledger has {BOOKED} of {ENTRIES} entries"
    desk.resurrect(job, payload=edited, version=head.version, note=note)


def recovered(lab: Lab) -> None:
    """What can run again as it is, all at once; and what was told a time."""
    teller, desk = lab.teller, lab.app.desk(ADMIN)
    found = {name: lab.heads(JobFilter(label=("group", name))) for name in (*RECOVERED, PUT_OFF)}
    jobs = [head for name in RECOVERED for head in found[name]]
    teller.scene("Many at once")
    teller.say(f"{len(jobs)} webhooks died of partners that have recovered since. They run again as they are:")
    for name in RECOVERED:
        teller.point(f"{len(found[name]):>3} {found[name][0].reason}", STORIES[name], width=22)
    verdicts = {lab.app.insight().explain(head.id).verdict for head in jobs}
    findings = sorted({finding for verdict in verdicts if verdict for finding in verdict.findings})
    expect({verdict and verdict.safety for verdict in verdicts} == {Safety.SAFE}, f"not safe: {verdicts}")
    teller.point("safe again?", f"safe, each of them ({'; '.join(findings)})")
    targets = [(head.id, head.version) for head in jobs]
    answers = desk.resurrect_many(targets, note="the partners are back")
    teller.say(f"The desk's report: {len(targets)} asked for, {sum(answer.ok for answer in answers)} done.")
    expect(all(answer.ok for answer in answers), f"not done: {[answer for answer in answers if not answer.ok]}")
    again = desk.resurrect_many(targets, note="a second click")
    why = Counter(str(answer.skipped) for answer in again if not answer.ok)
    teller.say(
        f"The same list a second time: {sum(answer.ok for answer in again)} done, "
        f"{', '.join(f'{number} skipped as {name}' for name, number in why.items())}."
    )
    expect(not any(answer.ok for answer in again), "a second resurrection of the same jobs was done")
    late = [str(head.id) for head in found[PUT_OFF]]
    teller.say(
        f"{len(late)} more were told by their partner to come back in a week, beyond their max_age of a day. They are "
        "resurrected with run_after of 7 days, and wait."
    )
    answers = desk.resurrect_many(late, run_after=timedelta(days=7), note="the partner said when")
    expect(all(answer.ok for answer in answers), f"not done: {[answer for answer in answers if not answer.ok]}")
    lab.wait_until_succeeded([str(head.id) for head in jobs])
    teller.say(f"All {len(jobs)} have succeeded, each in the first attempt of its second life.")
    lives = {(head.life, head.attempt) for head in (desk.get(job.id).head for job in jobs)}
    expect(lives == {(2, 1)}, f"(life, attempt) of the resurrected: {lives}")


def partners_view(lab: Lab) -> None:
    """The other side of the work: what arrived, and how often."""
    lab.teller.scene("What the partners saw")
    (job,) = lab.of_group("ledger-killed")
    desk = lab.app.desk(ADMIN)
    lab.wait_until_succeeded([job], lambda: f"the ledger's job goes on: {desk.get(job).head.progress}")
    state = lab.stage.peers("/state")
    booked = state["ledger"][ACCOUNT]
    pids = Counter(entry["pid"] for entry in booked)
    told = " and ".join(f"{number} from process {pid}" for pid, number in pids.items())
    lab.teller.say(f"The ledger has {len(booked)} entries, each once: {told}.")
    expect(len({entry["text"] for entry in booked}) == len(booked) == ENTRIES, f"the ledger has {booked}")
    mails = len(list((lab.stage.folder / "mailbox").glob("*.eml")))
    deliveries, early = state["deliveries"], state["early"]
    lab.teller.say(
        f"The mail server has {mails} mails. {len(deliveries)} webhooks were delivered, each under one idempotency "
        f"key. {len(early) or 'Nobody'} came back before the time a partner had asked for."
    )
    expect(not early, f"came back too early: {', '.join(early)}")
    expect(all(len(seen["keys"]) == 1 for seen in deliveries.values()), f"deliveries under two keys: {deliveries}")
