/** Voice turns: half duplex. */

import { HALF_PARTS, loadHalfCall, mountSuggestions } from "../duplex/lib/call-parts.js";
import { HALF_CHUNK_SAMPLES, halfDuplexCall } from "../duplex/lib/call-kinds.js";
import { HALF_FIELDS, halfConfigOf } from "../duplex/lib/call-settings.js";
import { followStatus } from "../duplex/lib/call-state.js";
import { mountAfterCall, mountCallView } from "../duplex/ui/call-view.js";
import { halfButtons, mountCallMeters, mountHalfFigures, mountHalfTurns, mountHalfWave } from "../duplex/ui/meters.js";
import { mountModelNote, mountServiceNote } from "../duplex/ui/call-notes.js";
import { mountPresetSelector, mountSettingsDrawer } from "../shared/settings-form.js";
import { mountAudioDeviceSelector } from "../shared/audio-device-selector.js";
import { byId, toastProblem } from "../shared/lit.js";
import { late, loadInSpareTime, nextTask } from "../shared/async.js";
import { mountLateContentEditor, mountLateHelp } from "../shared/late-parts.js";
import { startPage } from "../shared/page.js";
import { SettingsStore } from "../shared/settings-store.js";
import { contentToWire, voiceLimits, voiceToWire } from "../shared/prompt.js";

/** @import { TtsVoice } from "../shared/prompt-editors.js" */

const DEFAULT_MAX_KV_TOKENS = 8_192;
const DEFAULT_DELAY_MS = 200;
const METER_TICK_MS = 50;

const page = await startPage({ titleKey: "app.half_duplex_audio.title" });
const limits = voiceLimits(page.defaults);
const serverValues = page.defaults?.half_duplex ?? {};
const store = new SettingsStore("half_duplex_settings", HALF_FIELDS);
store.applyServer(serverValues);

const call = halfDuplexCall({
  parts: HALF_PARTS,
  settings: () => ({ playbackDelayMs: page.defaults?.playback_delay_ms ?? DEFAULT_DELAY_MS, speakerId: devices.speakerId }),
  openSource: () => suggestions.openMicrophone({ deviceId: devices.micId || undefined, chunkSamples: HALF_CHUNK_SAMPLES }),
  getMaxSessionS: () => page.defaults?.half_duplex.max_session_s ?? 0,
});

// The system content.
const content = mountLateContentEditor(byId("content"), { limits, onChange: () => presets.setEdited(true) });
/** @type {TtsVoice | null} */ let ttsVoice = null;
const loadTtsVoice = late(
  () => import("../shared/prompt-editors.js"),
  ({ mountTtsVoice }) => {
    ttsVoice = mountTtsVoice(byId("tts-voice"), { limits });
  },
);
const presets = mountPresetSelector(byId("presets"), {
  mode: "half_duplex_audio",
  page: "half_duplex",
  onEdit: () => {
    drawer.open();
    byId("prompt-title").focus();
  },
  onApply: ({ items, settings: values, isChosen }) => {
    content.setItems(items);
    if (isChosen) store.applyPreset(values);
    else store.applyServer({ ...serverValues, ...values }); // the preset of page load ranks below the visitor's own choices
  },
});

await nextTask();
// The call.
const drawTurns = mountHalfTurns(byId("turns"), call);
const wave = mountHalfWave(byId("wave"), call);
await nextTask();
const drawFigures = mountHalfFigures(byId("figures"), call, page.defaults?.max_kv_tokens ?? DEFAULT_MAX_KV_TOKENS);
const drawMeters = mountCallMeters(call);
const offer = mountAfterCall(byId("after"), { appType: "half_duplex_audio" });

async function start() {
  offer(null);
  wave.clear();
  await presets.ready();
  const items = contentToWire(content.items);
  await call.start({
    ...(items.length > 0 ? { system_content: items } : {}),
    ...(ttsVoice?.voice ? { tts_ref_audio_base64: voiceToWire(ttsVoice.voice) } : {}),
    transcribe: store.get("captions"),
    config: halfConfigOf(store),
  });
}

await nextTask();
const view = mountCallView(call, {
  start: () => start().catch(toastProblem),
  moreButtons: () => halfButtons(call),
  draw() {
    drawTurns();
    drawFigures();
    byId("model-note").inert = call.isActive; // half duplex has no text input during a call
  },
});
const suggestions = mountSuggestions(call, { start: view.start });
call.on("opened", () => void devices.refresh());
call.on("ended", ({ state }) => offer(state.preparedAtMs === null ? null : { recordingId: state.recordingSessionId }));
setInterval(() => drawMeters(performance.now()), METER_TICK_MS);

await nextTask();
// Settings and help.
const drawer = mountSettingsDrawer(byId("settings", HTMLDialogElement), byId("open-settings", HTMLButtonElement), store, () =>
  Promise.all([content.loadEditors(), loadTtsVoice()]),
);
const devices = mountAudioDeviceSelector(byId("devices"), {
  prefix: "half_duplex",
  onChange: (kind) => void (kind === "mic" ? call.reopenSource() : call.applySettings()),
});
mountLateHelp("half-duplex");

await nextTask();
mountModelNote(byId("model-note"), page, suggestions.say);

mountServiceNote(byId("service-note"), page);
followStatus(call, page.refreshStatus);
view.update();
page.ready();
loadInSpareTime(presets.ready, loadHalfCall);
