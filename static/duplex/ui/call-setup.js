/** Setup of full-duplex calls: presets, instructions, voice samples, settings. */

import { late } from "../../shared/async.js";
import { byId, on, toastProblem } from "../../shared/lit.js";
import { mountLateHelp } from "../../shared/late-parts.js";
import { bindSettings, mountPresetSelector, mountSettingsDrawer } from "../../shared/settings-form.js";
import { voiceLimits, voiceToWire } from "../../shared/prompt.js";
import { duplexConfigOf } from "../lib/call-settings.js";
import { mountHeadphonesAdvice, mountModelNote, mountServiceNote } from "./call-notes.js";

/** @import { Voice, VoiceLimits } from "../../shared/prompt.js" */
/** @import { RefAudioPlayer, TtsVoice } from "../../shared/prompt-editors.js" */
/** @import { Page } from "../../shared/page.js" */
/** @import { AnyStore } from "../../shared/settings-form.js" */
/** @import { DuplexCall } from "../lib/call-kinds.js" */
/** @import { SileroDetector } from "../lib/barge-in.js" */

/**
 * Mounts what both full-duplex pages have around a call: settings, instructions, notes, help.
 * @param {{mode: "audio_duplex" | "omni", page: Page, store: AnyStore, say: (sentence: string) => void}} options `say`
 *   speaks a suggestion on the visitor's behalf
 */
export function mountDuplexSetup({ mode, page, store, say }) {
  if (page.defaults) {
    const { playback_delay_ms, max_kv_tokens } = page.defaults;
    store.applyServer({ playback_delay_ms, max_kv_tokens });
  }
  const dialog = byId("settings", HTMLDialogElement);
  const drawer = mountSettingsDrawer(dialog, byId("open-settings", HTMLButtonElement), store, () => voices.loadEditors());
  bindSettings(byId("main"), store);
  mountHeadphonesAdvice(byId("advice"));
  mountServiceNote(byId("service-note"), page);
  mountLateHelp(mode === "omni" ? "omni" : "audio-duplex");
  const modelName = mountModelNote(byId("model-note"), page, say).modelName;
  const instructions = byId("system-prompt", HTMLTextAreaElement);
  const setEdited = () => presets.setEdited(true);
  const voices = mountVoices(byId("voice"), byId("tts-voice"), { limits: voiceLimits(page.defaults), onEdited: setEdited });
  const presets = mountPresetSelector(byId("presets"), {
    mode,
    page: mode,
    onEdit: () => drawer.open(),
    onApply({ systemPrompt, voice, isChosen, settings }) {
      instructions.value = systemPrompt;
      voices.set(voice);
      if (isChosen) store.applyPreset(settings);
    },
  });
  on(instructions, "input", setEdited);
  const prompt = {
    ready: presets.ready,
    given() {
      const { heard, spoken } = voices;
      return {
        systemPrompt: instructions.value.trim(),
        prepare: {
          ...(heard && { ref_audio_base64: voiceToWire(heard) }),
          ...(spoken && { tts_ref_audio_base64: voiceToWire(spoken) }),
          transcribe: store.get("captions") === true,
          config: duplexConfigOf(store),
        },
      };
    },
  };
  return { prompt, modelName };
}

/**
 * Voices of a call. Until the editors are loaded, the preset's voice is used.
 * @param {HTMLElement} heardEl
 * @param {HTMLElement} spokenEl
 * @param {{limits: VoiceLimits, onEdited: () => void}} options
 */
function mountVoices(heardEl, spokenEl, { limits, onEdited }) {
  /** Voice of the preset, or the server's default. @type {Voice | null} */ let given = null;
  let isApplying = false;
  /** @type {{heard: RefAudioPlayer, spoken: TtsVoice} | null} */ let editors = null;

  const apply = () => {
    if (!editors) return;
    isApplying = true;
    editors.spoken.set(null);
    if (given) editors.heard.set(given);
    void (given ? Promise.resolve() : editors.heard.reset()).finally(() => (isApplying = false));
  };
  /** Number of the latest request; results of earlier ones are dropped. */
  let request = 0;
  const takeServerVoice = async () => {
    const own = request;
    // Without a sample the server uses its default voice; the editor shows the error.
    const voice = await import("../../shared/decode-sound.js")
      .then(({ loadDefaultVoice }) => loadDefaultVoice())
      .catch(() => null);
    if (own === request) given = voice;
  };
  return {
    get heard() {
      return editors ? editors.heard.voice : given;
    },
    get spoken() {
      return editors?.spoken.voice ?? null;
    },
    /** @param {Voice | null} voice null: the server's default */
    set(voice) {
      request += 1;
      given = voice;
      if (!voice && !editors) void takeServerVoice();
      apply();
    },
    loadEditors: late(
      () => import("../../shared/prompt-editors.js"),
      ({ mountRefAudioPlayer, mountTtsVoice }) => {
        editors = {
          heard: mountRefAudioPlayer(heardEl, { limits, onChange: () => isApplying || onEdited() }),
          spoken: mountTtsVoice(spokenEl, { limits, onChange: onEdited }),
        };
        apply();
      },
    ),
  };
}

// Settings that may change during a call, and the optional neural voice detector.

const loadGate = late(() => Promise.all([import("../lib/barge-in.js"), import("../../shared/libraries.js")]));

/**
 * Applies settings to a running call.
 * @param {DuplexCall} call
 * @param {AnyStore} store
 * @param {() => void} reopenMicrophone applies a changed echo cancellation
 */
export function followSettings(call, store, reopenMicrophone) {
  /** @type {Promise<SileroDetector> | null} */ let loading = null;
  let isGateOn = false;
  const updateGate = async () => {
    const isWanted = store.get("barge_gate") === "silero" && call.isActive;
    if (isWanted === isGateOn) return;
    isGateOn = isWanted;
    if (!isWanted) return call.kind.setDetector(null);
    try {
      loading ??= loadGate().then(([{ loadSileroDetector }, { loadOnnxRuntime }]) => loadSileroDetector(loadOnnxRuntime));
      const detector = await loading;
      if (isGateOn) call.kind.setDetector(detector);
    } catch (error) {
      loading = null;
      isGateOn = false;
      toastProblem(error);
    }
  };
  let hadHeadphones = store.get("headphones");
  let wasStarting = false;
  call.on("devices", ({ isStarting }) => {
    if (isStarting && !wasStarting) void updateGate();
    wasStarting = isStarting;
  });
  on(store, "change", () => {
    call.applySettings();
    void updateGate();
    if (hadHeadphones === store.get("headphones")) return;
    hadHeadphones = store.get("headphones");
    reopenMicrophone();
  });
}
