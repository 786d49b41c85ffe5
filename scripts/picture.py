"""Make the picture of the README from what the command line really prints.

python scripts/picture.py docs/img/dlq-show.svg
"""

import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

APP = """
from redrive import Redrive
app = Redrive("sqlite:///redrive.db")
@app.job("email.send.v1", queue="notifications", idempotent=True)
async def send_email(to: str, subject: str, body: str) -> None: ...
"""
PAYLOAD = b"""{
  "to": "user@example.com",
  "subject": "Welcome!"
  "body": "Hello, World!"
}
"""
WIDTH = 124


def main(target: Path) -> None:
    """Let a malformed e-mail die, and draw what `redrive dlq show` says of it."""
    redrive = Path(sys.executable).parent / "redrive"
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"REDRIVE_DATABASE_URL": f"sqlite:///{folder}/redrive.db", "COLUMNS": str(WIDTH)}
        (Path(folder) / "app.py").write_text(APP)
        (Path(folder) / "broken.json").write_bytes(PAYLOAD)

        def run(*words: str) -> str:
            done = subprocess.run(
                [redrive, *words], cwd=folder, env=environment, capture_output=True, text=True, check=True
            )
            return done.stdout

        run("enqueue", "email.send.v1", "@broken.json", "--raw", "--queue", "notifications")
        run("work", "app:app", "--burst")
        job_id = next(word for word in run("dlq", "list").split() if word.count("-") == 4)
        shown = run("dlq", "show", job_id).split("\npriority")[0]
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(Text(f"$ redrive dlq show {job_id}", style="bold"))
    for line in shown.splitlines():
        style = {"+": "green", "-": "red"}.get(line[:1], "") if not line.startswith(("+++", "---")) else "dim"
        console.print(Text(line, style="bold" if line.endswith("?") or line[:3] in ("Why", "Is ") else style))
    svg = console.export_svg(title="redrive dlq show")
    # Rich's template names fonts and itself by address; a picture in a repository asks nobody for anything.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!-- Generated with Rich.*?-->\s*", "", svg)
    target.write_text(svg.replace("Fira Code, monospace", "ui-monospace, Menlo, Consolas, monospace"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
