"""The demo: one real story on embedded SQLite, told in the terminal in half a minute. ``make demo`` runs it.

    python -m examples.lab.run [--break PROMISE]

Exit code 0 only if the story went as it is told and every promise is kept; else 1, naming what was found instead.
LAB_DIR is a new folder to play in; by default one is made in the system's temp.
"""

import argparse
import shutil
import sys
from pathlib import Path

from examples.lab.again import partners_view, recovered, zombie
from examples.lab.arrival import WORKERS, others_work, where_they_are, work_arrives, worker_dies
from examples.lab.damage import DAMAGES, damage
from examples.lab.proof import check
from examples.lab.repair import broken_mail
from examples.lab.stage import Stage, choose_folder
from examples.lab.story import StoryError, Teller
from redrive import RedriveError
from redrive.store.port import PromiseResult


def main() -> int:
    """Tell the story, damage the data if asked to, check the promises."""
    parser = argparse.ArgumentParser(prog="redrive demo", description="The whole story of Redrive in half a minute.")
    parser.add_argument("--break", dest="broken", choices=DAMAGES, metavar="PROMISE", help=", ".join(DAMAGES))
    wanted = parser.parse_args().broken
    try:
        folder = choose_folder()
    except (OSError, ValueError) as error:
        parser.error(str(error))
    teller = Teller()
    teller.title("Redrive: background jobs whose failures can be repaired")
    try:
        with Stage(folder) as stage:
            tell(stage, teller)
        if wanted is not None:
            done = damage(folder, wanted)
            teller.scene("Damage, on purpose")
            teller.say(f"By plain SQL on the file: {done.what}.")
        broken = check(folder, teller)
    except KeyboardInterrupt:
        teller.progressed()
        teller.say()
        teller.say(f"Interrupted; every process has ended, {folder} is left")
        return 130
    except (StoryError, RedriveError) as error:
        teller.progressed()
        teller.say()
        teller.say(f"FAILED: {error}", style="bold red")
        teller.say(f"What there is to look at is in {folder}")
        return 1
    return end(teller, folder, broken, wanted)


def tell(stage: Stage, teller: Teller) -> None:
    """The scenes, in their order."""
    stage.start_peers()
    teller.say(f"SQLite in {stage.folder}; a mail server on {stage.smtp} and partners on {stage.http}, all real.")
    lab = work_arrives(stage, teller)
    try:
        worker_dies(lab)
        others_work(lab)
        where_they_are(lab)
        zombie(lab)
        recovered(lab)
        broken_mail(lab)
        partners_view(lab)
        stage.stop(*WORKERS)
    finally:
        lab.app.close()


def end(teller: Teller, folder: Path, broken: list[PromiseResult], wanted: str | None) -> int:
    """The last words, and the exit code."""
    teller.say()
    names = list(dict.fromkeys(result.promise for result in broken))
    if broken:
        teller.say(f"BROKEN: {', '.join(names)}. {broken[0].examples[0]}.", style="bold red")
    elif wanted is None:
        teller.say(f"The story went as it is told, and every promise is kept. {teller.elapsed:.0f} s.", style="bold")
    if wanted is not None and wanted not in names:
        teller.say(f"The damage to {wanted} was NOT noticed.", style="bold red")
    here = shutil.which("redrive") or str(Path(sys.executable).with_name("redrive"))
    redrive = "redrive" if here == shutil.which("redrive") else here
    teller.say()
    teller.say("Look around; the mailbox, the reports and the logs of the processes are there as well:")
    teller.code([f"cd {folder}", *(f"{redrive} {words}" for words in ("dlq list", "dlq show ID", "audit list"))])
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
