/** A whole full-duplex session against a running system, with real speech. */

import assert from "node:assert/strict";

import { DuplexSession } from "../../../static/duplex/lib/duplex-session.js";
import { RATE_HZ, SilentPlayer, heard, inChunks, readSpeech, report, networkTo } from "./live-tools.mjs";

const player = new SilentPlayer();
/** @type {(isHidden: boolean) => void} */
let setHidden = () => {};
const session = new DuplexSession({
  idPrefix: "adx",
  ...networkTo("duplex"),
  isDrained: player.isDrained,
  visibility: { isHidden: () => false, onChange: (listener) => ((setHidden = listener), () => {}), onPageHide: () => () => {} },
});
const phases = ["idle"];
session.on("state", ({ phase }) => phases.at(-1) !== phase && phases.push(phase));
session.on("speak", ({ audioBase64, sampleRateHz }) => player.play(audioBase64, sampleRateHz));
session.on("flush", () => player.flush());

const units = inChunks(readSpeech("speech_8s.wav"), RATE_HZ);
let next = 0;

/** Say one second and wait for what the model makes of it. */
async function oneUnit() {
  const answer = heard(session, "result");
  assert.equal(session.sendChunk({ audio: units[next++ % units.length] }), "sent");
  return answer;
}

/** @param {string} phase */
const inPhase = (phase) => heard(session, "state", (state) => state.phase === phase);

// The random model speaks only if it is made eager.
session.start({
  systemPrompt: "You are a helpful assistant.",
  prepare: { config: { listen_prob_scale: 0.5, force_listen_count: 1 } },
});
const prepared = await heard(session, "prepared");
assert.equal(session.state.phase, "running");
assert.equal(session.state.chunkMs, prepared.chunk_ms);
for (let unit = 0; unit < 10; unit += 1) await oneUnit();
const { units: records, turnCount, ttfsMs } = session.state;
assert.deepEqual(
  records.map((record) => record.step),
  records.map((_, step) => step),
);
assert.ok(records.every((record) => record.costAllMs > 0 && record.kvTokens > 0));

setHidden(true);
assert.equal(session.sendChunk({ audio: units[0] }), "not_running");
if (session.state.phase !== "paused") await inPhase("paused");
assert.ok(player.isDrained() && session.state.isAutoPaused);
setHidden(false);
await inPhase("running");

const spoken = await (async () => {
  for (let tries = 0; tries < 30; tries += 1) {
    const { unit } = await oneUnit();
    if (!unit.isListen && !unit.isEndOfTurn) return true;
  }
  return false;
})();
assert.ok(spoken, "the model said nothing to interrupt");
session.interrupt();
assert.equal(session.state.activity, "interrupted");
const before = player.chunks;
const { unit: afterwards } = await oneUnit();
assert.ok(afterwards.isListen, "the unit after an interruption listens");
assert.equal(player.chunks, before, "nothing stale is played");

session.setForceListen(true);
for (let unit = 0; unit < 3; unit += 1) assert.ok((await oneUnit()).unit.isListen);
session.setForceListen(false);

session.stop();
const { reason, state } = await heard(session, "ended");
assert.equal(reason.code, "stopped");
assert.ok(state.recordingSessionId);
assert.deepEqual(
  phases.filter((phase) => phase !== "queued"),
  ["idle", "connecting", "preparing", "running", "pausing", "paused", "running", "stopping", "ended"],
);

session.restart();
await heard(session, "prepared");
await oneUnit();
session.stop();
await heard(session, "ended");
report({
  units: state.chunksReceived,
  turns: state.turnCount,
  turnsInFirstTen: turnCount,
  ttfsMs: ttfsMs && Math.round(ttfsMs),
  kvTokens: state.kvTokens,
  driftMs: state.driftMs === null ? null : Math.round(state.driftMs * 10) / 10,
  unitMsMean: Math.round(records.reduce((sum, record) => sum + record.costAllMs, 0) / records.length),
  playedS: Math.round(player.playedS * 10) / 10,
  text: state.turns
    .map((turn) => turn.text)
    .join(" | ")
    .slice(0, 60),
});
