"""The first half of the story: work arrives, a worker is killed, two others do the rest, and what ended how."""

from collections import Counter

from examples.lab.accepted import Accepted, hand_in
from examples.lab.groups import DUPLICATE, GROUPS, SUCCEEDED
from examples.lab.lab import ACCOUNT, BOOKED, ENTRIES, Lab, expect
from examples.lab.make_jobs import FILE as JOBS
from examples.lab.make_jobs import totals
from examples.lab.stage import ROOT, SHORTENED, Stage
from examples.lab.story import Teller
from redrive import JobFilter, Place, Redrive, Spot
from redrive.domain.failures import REASONS, Reason
from redrive.domain.job import JobHead

WORKERS = ("worker-1", "worker-2")


def work_arrives(stage: Stage, teller: Teller) -> Lab:
    """Make the database and hand in every job; the peers run already."""
    from examples.lab.app import app  # reads where the peers are

    teller.scene("Work arrives")
    app.store.upgrade()
    accepted, duplicates = hand_in(app, stage.folder)
    teller.say(
        f"{len(accepted) + duplicates} jobs of {JOBS.relative_to(ROOT)} are handed in: {len(accepted)} accepted, "
        f"{duplicates} answered as duplicates with the id of the job that holds their key. Mail, webhooks, reports, "
        "invoices; some broken, some misaddressed, some for partners who are down."
    )
    teller.say("The accepted ids and the SHA-256 of each payload are kept outside the database, in accepted.ndjson.")
    expect(len(accepted) == totals().total() - totals()[DUPLICATE], f"{len(accepted)} jobs were accepted")
    return Lab(stage, teller, app, accepted)


def worker_dies(lab: Lab) -> None:
    """SIGKILL in the middle of work that must not simply be done again."""
    (job,) = lab.of_group("ledger-killed")
    desk = lab.app.desk("demo")
    lab.teller.scene("A worker dies")
    lab.killed = lab.stage.start_worker("worker-killed", "--queues", "ledger")
    lab.stage.wait_for(
        f"entry {BOOKED} in the ledger",
        lambda: lab.stage.asked_about(ACCOUNT, BOOKED),
        lambda: f"its job is {desk.get(job).head.spot}",
    )
    lab.stage.kill("worker-killed")
    head = desk.get(job).head
    lab.teller.say(
        f"A worker, process {lab.killed}, books entries in a partner's ledger. At the moment entry {BOOKED} of "
        f'{ENTRIES} arrives there: SIGKILL. In the database its job is still "{head.spot}", on a lease that nobody '
        f"renews now. It runs out after {SHORTENED['REDRIVE_RECOVERY__ZOMBIE_TIMEOUT']} s (by default 60)."
    )
    expect(head.spot is Spot.PROCESSING, f"the killed worker's job {job} is {head.spot}")


def others_work(lab: Lab) -> None:
    """Two worker processes until nothing waits and nothing runs."""
    teller = lab.teller
    teller.scene("Two workers do the rest")
    pids = [lab.stage.start_worker(name) for name in WORKERS]
    teller.say(f"Processes {' and '.join(map(str, pids))}, on everything that waits:")
    counts: dict[str, int] = {}

    def drained() -> bool:
        counts.update(_counts(lab.app))
        teller.progress(", ".join(f"{number} {spot}" for spot, number in counts.items()))
        return counts["succeeded"] + counts["dead"] == len(lab.accepted)

    lab.stage.wait_for("the end of all jobs", drained, lambda: str(counts))
    teller.progressed()
    retried = sum(queue.retried_total for queue in lab.app.store.queues())
    teller.say(
        f"All {len(lab.accepted)} have come to an end. {retried} attempts failed on the way and were made again later: "
        "refused connections, errors 500, greylisted mail, partners who asked for patience."
    )


def _counts(app: Redrive) -> dict[str, int]:
    queues, insight = app.store.queues(), app.insight()
    spots = ("scheduled", "pending", "fetched", "processing")
    hot = {spot: sum(getattr(queue, spot) for queue in queues) for spot in spots}
    succeeded = insight.count(JobFilter(place=Place.ARCHIVE)).number
    return {**hot, "succeeded": succeeded, "dead": insight.count(JobFilter(cancelled=True)).number}


def where_they_are(lab: Lab) -> None:
    """Counts by place, dead letters by reason, and the comparison with what had to come out."""
    teller = lab.teller
    hot, archive = (lab.heads(JobFilter(place=place)) for place in (Place.HOT, Place.ARCHIVE))
    dead = lab.heads(JobFilter(cancelled=True))
    teller.scene("Where the jobs are")
    teller.say(f"{len(lab.accepted)} accepted = {len(hot)} hot + {len(archive)} in the archive + {len(dead)} dead")
    teller.say()
    teller.point(f"{'reason':<22}{'dead':>5}", "what it means, and what to do first", width=27, style="dim")
    for name, number in sorted(lab.app.store.dead_by_reason().items(), key=lambda pair: -pair[1]):
        info = REASONS[Reason(name)]
        teller.point(f"{name:<22}{number:>5}", f"{info.meaning}: {info.first_step}", width=27)
    teller.say()
    compare(lab.accepted, [*archive, *dead])
    teller.say(
        f"Compared with what had to come out: each of the {len(GROUPS)} groups of jobs ended as expected, in the "
        "expected number of attempts (they are listed in examples/lab/README.md)."
    )


def compare(accepted: list[Accepted], ended: list[JobHead]) -> None:
    """Whether each group ended as ``groups.py`` says; the groups that did not are named."""
    ends = {str(head.id): (head.reason.value if head.reason else SUCCEEDED, head.attempt) for head in ended}
    different = []
    for group in GROUPS:
        found = Counter(ends.get(job.id, ("nowhere", 0)) for job in accepted if job.group == group.name)
        if set(found) - {(group.outcome, group.attempts)}:
            told = ", ".join(f"{number} {end} in {attempts}" for (end, attempts), number in found.items())
            wanted = f"{group.outcome} in {group.attempts} attempts"
            different.append(f"group {group.name} had to end {wanted}, and ended {told}")
    expect(not different, "; ".join(different))
