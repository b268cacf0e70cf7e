/** A half-duplex session against a running system: two turns and the end. */

import assert from "node:assert/strict";

import { HalfDuplexSession } from "../../../static/duplex/lib/half-duplex-session.js";
import { Microphone, SilentPlayer, heard, report, networkTo } from "./live-tools.mjs";

const player = new SilentPlayer();
const session = new HalfDuplexSession({ ...networkTo("half_duplex"), isDrained: player.isDrained });
/** @type {string[]} */
const activities = [];
session.on("state", ({ activity }) => activities.at(-1) !== activity && activities.push(activity));
session.on("speak", ({ audioBase64, sampleRateHz }) => player.play(audioBase64, sampleRateHz));
session.on("flush", () => player.flush());

const microphone = new Microphone(session);

session.start({
  system_prompt: "You are a helpful assistant.",
  config: { generation: { max_new_tokens: 24 }, session: { timeout_s: 60 } },
});
await heard(session, "prepared");
assert.equal(session.state.timeoutS, 60);
const listening = microphone.run();

microphone.say("question_1.wav");
assert.equal((await heard(session, "turnend")).turnId, 0);
const first = session.state.turns[0];
assert.ok(first.text.length > 0 && first.speechMs > 300 && !first.isInterrupted);
assert.equal(session.sendChunk({ audio: new Float32Array(8_000) }), "gated");
await heard(session, "state", (state) => state.gate === "open");
const openedAfterPlayback = player.isDrained();
assert.ok(openedAfterPlayback);

microphone.say("question_1.wav");
assert.equal((await heard(session, "turnend")).turnId, 1);
await heard(session, "state", (state) => state.gate === "open");
assert.ok(Number(session.remainingS) > 55);

session.stop();
const { reason, state } = await heard(session, "ended");
assert.equal(reason.code, "stopped");
assert.ok(state.recordingSessionId);
for (const activity of ["listening", "hearing", "thinking", "speaking", "settling"]) {
  assert.ok(activities.includes(activity), activity);
}
await listening;
report({
  turns: state.turns.length,
  speechMs: first.speechMs,
  ttftMs: first.ttftMs && Math.round(first.ttftMs),
  ttfsMs: first.ttfsMs && Math.round(first.ttfsMs),
  answerMs: Math.round(first.elapsedMs),
  chunksSent: state.chunksSent,
  chunksGated: microphone.gated,
  kvTokens: state.kvTokens,
});
