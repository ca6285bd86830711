"""A page in a real Chromium: of another origin and under a name that points here it changes and reads nothing.

`test_gate.py` sends what a browser sends, everywhere; this runs where Chromium is installed (Debian's package
`chromium`), and shows that the same page does chat once its origin is allowed.
"""

from __future__ import annotations

import asyncio
import html
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from server_rig import ADMIN_KEY, Rig, StartRig, listening

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(180),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed; test_gate.py sends the same requests"),
]

PAGE = """<!doctype html><body><pre id=seen>running</pre>
<form id=form method=post target=frame enctype=text/plain action="SERVER/v1/chat/completions">
<input name='{"messages":[{"role":"user","content":"planted by a form"}],"x":"' value='"}'></form>
<iframe name=frame id=frame></iframe><script>
const chat = JSON.stringify({messages: [{role: "user", content: "planted"}], max_tokens: 4});
const praise = JSON.stringify({kind: "thumbs", value: "up", session_id: "s1"});
const json = {"content-type": "application/json", "authorization": "Bearer KEY"};
const seen = {};
async function attempt(name, path, options) {
    try {
        const answer = await fetch("SERVER" + path, options);
        seen[name] = answer.type + " " + answer.status + " " + await answer.text();
    } catch (error) { seen[name] = "error"; }
}
(async () => {
    await attempt("simple", "/v1/chat/completions", {method: "POST", body: chat});
    await attempt("opaque", "/v1/chat/completions", {method: "POST", body: chat, mode: "no-cors"});
    await attempt("json", "/v1/chat/completions", {method: "POST", body: chat, headers: json});
    await attempt("praise", "/v1/feedback", {method: "POST", body: praise, headers: json});
    await attempt("quiet praise", "/v1/feedback", {method: "POST", body: praise, mode: "no-cors"});
    await attempt("models", "/v1/models", {});
    await attempt("ready", "/readyz", {});
    navigator.sendBeacon("SERVER/v1/chat/completions", chat);
    document.getElementById("form").submit();
    await new Promise(done => setTimeout(done, 500));
    try {
        seen.frame = document.getElementById("frame").contentDocument.body.textContent;
    } catch (error) { seen.frame = "error"; }
    document.getElementById("seen").textContent = JSON.stringify(seen);
})();
</script>"""


async def shown(url: str, profile: Path) -> str:
    """The page's document after its scripts ran."""
    assert CHROMIUM is not None
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--timeout=20000"]
    flags += ["--virtual-time-budget=10000", "--host-resolver-rules=MAP evil.example 127.0.0.1", "--no-first-run"]
    process = await asyncio.create_subprocess_exec(
        *(CHROMIUM, *flags, f"--user-data-dir={profile}", "--dump-dom", url),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        out, _ = await asyncio.wait_for(process.communicate(), 90)
    finally:
        if process.returncode is None:
            process.kill()
    return out.decode(errors="replace")


async def visit(rig: Rig, profile: Path, host: str = "127.0.0.1", key: str = ADMIN_KEY) -> dict[str, str]:
    """What a page of another origin saw of the server."""
    page = PAGE.replace("SERVER", rig.url).replace("KEY", key).encode()

    async def site(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", b"text/html")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": page})

    async with listening(site) as url:
        document = await shown(url.replace("127.0.0.1", host), profile)
    found = re.search(r"<pre id=\"seen\">(.*?)</pre>", document, re.S)
    assert found, document[:2000]
    seen: dict[str, str] = json.loads(html.unescape(found.group(1)))
    return seen


@pytest.mark.parametrize("host", ["127.0.0.1", "evil.example"])
async def test_a_page_of_another_origin_changes_and_reads_nothing(start: StartRig, tmp_path: Path, host: str) -> None:
    rig = await start()
    mine = await rig.chat(headers={"x-session-id": "s1"})
    seen = await visit(rig, tmp_path / "profile", host)
    assert len(seen) == 8
    assert {what for name, what in seen.items() if name not in ("opaque", "quiet praise", "frame")} == {"error"}
    assert {seen["opaque"], seen["quiet praise"]} <= {"opaque 0 ", "error"}
    assert rig.store is not None
    [turn] = await rig.store.recent(10)
    assert turn.turn_id == mine.headers["x-openclaw-turn"]
    assert await rig.store.feedback(turn.turn_id) == []


async def test_a_name_that_points_at_this_machine_shows_nothing(start: StartRig, tmp_path: Path) -> None:
    rig = await start()
    for path in ("/v1/models", "/readyz", "/healthz"):
        document = await shown(rig.url.replace("127.0.0.1", "evil.example") + path, tmp_path / "profile")
        assert "host_not_allowed" in document
        assert "tiny" not in document


async def test_the_page_of_an_allowed_origin_chats(start: StartRig, tmp_path: Path) -> None:
    rig = await start(gate_options={"allowed_origins": ["*"]})
    seen = await visit(rig, tmp_path / "profile")
    assert "Hello there." in seen["json"]
    assert "tiny" in seen["models"]
    assert seen["simple"].startswith("cors 415")
