"""The capture worklet as other clients use it: a node is made, and chunks come by themselves."""

from __future__ import annotations

import pytest

from tests.browser.visits import Visits

FOLDER = "/static/duplex/lib/"
CLIENT = """async (options) => {
    const stream = await navigator.mediaDevices.getUserMedia({ audio: { sampleRate: 16000 } });
    const audioContext = new AudioContext({ sampleRate: 16000 });
    await audioContext.audioWorklet.addModule("capture-processor.js");
    const source = audioContext.createMediaStreamSource(stream);
    const captureNode = new AudioWorkletNode(audioContext, "capture-processor", options);
    source.connect(captureNode);
    return new Promise((resolve) => {
        const lengths = [];
        captureNode.port.onmessage = (e) => {
            if (e.data.type === "chunk") lengths.push(e.data.audio.length);
            if (lengths.length === 2) resolve(lengths);
        };
    });
}"""


@pytest.mark.parametrize(
    ("options", "chunk_samples"),
    [({}, 8_000), ({"processorOptions": {"chunkSize": 16_000}}, 16_000)],
    ids=["half duplex", "duplex"],
)
def test_a_node_sends_chunks_by_itself(
    visit: Visits, options: dict[str, object], chunk_samples: int
) -> None:
    page = visit("")
    page.route(f"**{FOLDER}client.html", lambda route: route.fulfill(body="<!doctype html>"))
    page.goto(f"{FOLDER}client.html")
    assert page.evaluate(CLIENT, options) == [chunk_samples, chunk_samples]
