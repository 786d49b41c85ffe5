"""The application of the lab: eight kinds of work, done for real against the peers of ``peers.py``.

    redrive work examples.lab.app:app

No handler sets a retry policy: what the settings say holds for all of them, and the demo shortens the delays there.
"""

import asyncio
import csv
import html
import io
import os
import smtplib
import tempfile
from decimal import Decimal, localcontext
from email.message import EmailMessage
from pathlib import Path
from typing import Annotated, Any

import httpx
from pydantic import BaseModel, Field

from redrive import Cancel, Fatal, JobContext, Redrive, Snooze

SMTP = os.environ.get("LAB_SMTP", "127.0.0.1:2525")
HTTP = os.environ.get("LAB_HTTP", "http://127.0.0.1:2580")
OUT = Path(os.environ.get("LAB_OUT", "lab-out"))
PATIENCE = 2.0  # seconds a peer has for its answer
TLS = httpx.create_ssl_context()  # the slow part of making a client: made once

app = Redrive()


# --- mail ------------------------------------------------------------------------------------------------------------


@app.job("email.send.v1", queue="notifications", aliases=["email_v1"])
def send_email(ctx: JobContext, to: str, subject: str, body: str) -> None:
    """A plain ``def``, because smtplib blocks: the worker gives it a thread."""
    post_mail(ctx, to, subject, body)


def post_mail(ctx: JobContext, to: str, subject: str, body: str) -> None:
    mail = EmailMessage()
    mail["Message-ID"] = f"<{ctx.id}@lab.example>"  # the same in every attempt, so that a second copy can be known
    mail["From"] = "Lab <hello@lab.example>"
    mail["To"] = to
    mail["Subject"] = subject  # a line break in it raises ValueError: nobody smuggles in a header
    mail.set_content(body)
    host, port = SMTP.rsplit(":", 1)
    try:
        with smtplib.SMTP(host, int(port), timeout=10) as server:
            server.send_message(mail, to_addrs=[to])
    except smtplib.SMTPRecipientsRefused as refused:
        code, text = refused.recipients[to]
        if code < 500:
            raise  # 4xx: the server says "not now", and an OSError is tried again
        raise Fatal(f"{to} was refused for good: {code} {text.decode(errors='replace')}") from refused


@app.job("campaign.send.v1", queue="notifications")
def send_campaign(ctx: JobContext, name: str, subject: str, body: str) -> None:
    """Asks at the last moment: who left while the job waited must not get the mail, and that is no failure."""
    answer = httpx.get(f"{HTTP}/subscriber/{name}", timeout=PATIENCE, verify=TLS, trust_env=False)
    if not answer.raise_for_status().json()["subscribed"]:
        raise Cancel(f"{name} unsubscribed")
    post_mail(ctx, f"{name}@example.com", subject, body)


# --- partners over HTTP ----------------------------------------------------------------------------------------------


def partner(patience: float = PATIENCE) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=HTTP, timeout=patience, verify=TLS, trust_env=False)


@app.job("webhook.deliver.v1", queue="webhooks", timeout=4, idempotent=True, on_zombie="retry")
async def deliver_webhook(ctx: JobContext, target: str, body: Any, patience: float = PATIENCE) -> Any:
    """Idempotent, because the receiver can tell a repeat by the key: so a lost worker's delivery is simply sent again.

    Nothing is caught. Whether a failure is worth another attempt (500, 429 with its Retry-After, no answer, a page
    where JSON was promised) or not (400, 422) is the engine's to classify; what the partner answered is the result.
    """
    async with partner(patience) as http:
        answer = await http.post(target, json=body, headers={"Idempotency-Key": str(ctx.id)})
        return answer.raise_for_status().json()


@app.job("shipment.track.v1", queue="shipping", idempotent=True, on_zombie="retry")
async def track_shipment(url: str) -> None:
    """Waits for a parcel without failing: a snooze costs no attempt, however often it takes."""
    async with partner() as http:
        answer = await http.get(url)
    if not answer.raise_for_status().json()["arrived"]:
        raise Snooze(0.3, "still on its way")


class Entry(BaseModel):
    text: str
    amount: Decimal


@app.job("ledger.export.v1", queue="ledger", timeout=60)
async def export_ledger(
    ctx: JobContext, account: str, entries: list[Entry], start_at: int = 0, pause: float = 0.5
) -> None:
    """Not idempotent, and says so by saying nothing: the ledger books whatever it is sent, twice if sent twice.

    A worker killed in the middle therefore leaves a dead job, not a second run. A person looks how far the ledger got,
    sets ``start_at`` in the payload, and resurrects.
    """
    async with partner() as http:
        for number, entry in enumerate(entries[start_at:], start_at + 1):
            booking = entry.model_dump(mode="json") | {"pid": os.getpid()}
            (await http.post(f"/ledger/{account}", json=booking)).raise_for_status()
            ctx.progress(100 * number // len(entries), f"{number} of {len(entries)} booked")
            await asyncio.sleep(pause)  # the ledger asks its clients to go slowly


# --- work without a peer ---------------------------------------------------------------------------------------------


class Row(BaseModel):
    item: str
    quantity: int
    price: Decimal


@app.job("report.render.v1", queue="reports", idempotent=True, on_zombie="retry")
def render_report(
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,60}$")],  # becomes a file name: no way out of the folder
    title: str,
    rows: list[Row],
) -> str:
    with localcontext(prec=100):  # Decimal rounds at 28 digits unless told otherwise
        lines = [[row.item, str(row.quantity), f"{row.price:f}", f"{row.quantity * row.price:f}"] for row in rows]
        total = f"{sum((row.quantity * row.price for row in rows), Decimal()):f}"
    table = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in line)}</tr>\n" for line in lines)
    sheet = io.StringIO(newline="")
    for item, *numbers in lines:  # a spreadsheet runs a text that begins like a formula, unless it is quoted
        csv.writer(sheet).writerow([f"'{item}" if item.startswith(("=", "+", "-", "@")) else item, *numbers])
    write_whole(
        OUT / "reports" / f"{name}.html",
        f"<!doctype html>\n<meta charset=utf-8>\n<title>{html.escape(title)}</title>\n"
        f"<table>\n{table}</table>\n<p>Total {total}\n",
    )
    write_whole(OUT / "reports" / f"{name}.csv", sheet.getvalue())
    return total


def write_whole(path: Path, text: str) -> None:
    """A reader finds the old file or the new one, never half of one: this process may be killed at any line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, encoding="utf-8", newline="", delete=False) as draft:
        draft.write(text)
        draft.flush()
        os.fsync(draft.fileno())
    Path(draft.name).replace(path)


# The bug of release 1; LAB_RELEASE=2 is the fix that gets deployed. What died of it meanwhile can then be resurrected.
PERCENT = "percnet" if os.environ.get("LAB_RELEASE", "1") == "1" else "percent"


@app.job("invoice.total.v1", queue="billing")
async def total_invoice(lines: list[Decimal], discount: dict[str, Decimal] | None = None) -> str:
    total = sum(lines, Decimal())
    if discount:
        total -= total * discount[PERCENT] / 100
    return str(total)
