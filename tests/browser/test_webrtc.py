"""A call over WebRTC from a page in Chromium, with a fake microphone, as docs/webrtc.md has it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from playwright.async_api import Page, async_playwright

from tests.browser.browsers import BrowserKind, find_chromium
from tests.fakes.gateway_stage import HOST
from tests.service.test_webrtc import KEY, Scene, played
from tests.source_tree import ROOT

pytestmark = pytest.mark.realtime  # the peers end a call if the other answers too late

LIMIT_MS = 300_000  # ends what hangs
CALL = """async (key) => {
  const peer = (window.peer = new RTCPeerConnection());
  window.events = [];
  const microphone = await navigator.mediaDevices.getUserMedia({ audio: true });
  peer.addTrack(microphone.getTracks()[0], microphone);
  const channel = (window.channel = peer.createDataChannel("oai-events"));
  channel.onmessage = ({ data }) => window.events.push(JSON.parse(data));
  await peer.setLocalDescription(await peer.createOffer());
  while (peer.iceGatheringState !== "complete")
    await new Promise((resolve) => peer.addEventListener("icegatheringstatechange", resolve, { once: true }));
  const answer = await fetch("/v1/realtime/calls", {
    method: "POST",
    headers: { "Content-Type": "application/sdp", Authorization: `Bearer ${key}` },
    body: peer.localDescription.sdp,
  });
  await peer.setRemoteDescription({ type: "answer", sdp: await answer.text() });
}"""  # noqa: E501
HAS_COME = "(kind) => window.events.some(({ type }) => type === kind)"
ENERGY = """async () => {
  const rows = [...(await window.peer.getStats()).values()];
  return rows.find(({ type }) => type === "inbound-rtp").totalAudioEnergy > 0.001;
}"""


async def hear(page: Page, *kinds: str) -> None:
    """Wait until events of these kinds have come."""
    for kind in kinds:
        await page.wait_for_function(HAS_COME, arg=kind, timeout=LIMIT_MS)


@played()
async def talk(scene: Scene) -> None:
    """Call, say hello again and again, and leave without a goodbye."""
    flags = BrowserKind(speech=ROOT / "examples" / "hello.wav").flags
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=find_chromium(), args=flags)
        page = await browser.new_page()
        await page.goto(f"http://{HOST}:{scene.stage.port}/health")
        await page.evaluate(CALL, KEY)
        await hear(page, "session.created", "input_audio_buffer.speech_started", "response.done")
        await hear(page, "output_audio_buffer.started")
        await page.wait_for_function(ENERGY, timeout=LIMIT_MS)
        await hear(page, "output_audio_buffer.cleared", "conversation.item.truncated")
        assert await page.evaluate("window.events.every(({ type }) => type !== 'error')")
        assert len(scene.calls) == 1
        await browser.close()
    # `played` waits until no call is left.


def test_a_page_talks_and_interrupts_and_leaves(tmp_path: Path) -> None:
    # Playwright's other tests have the loop of this thread.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(talk, tmp_path).result()
