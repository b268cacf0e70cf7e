/**
 * Voice and microphone of the chat page, instructions of a conversation (a preset, or own texts and voice samples), and
 * playback of answers.
 */

import { byId, html, icon, mountView, on } from "../shared/lit.js";
import { t } from "../shared/texts.js";
import { mountLateContentEditor } from "../shared/late-parts.js";
import { late } from "../shared/async.js";
import { remembered } from "../shared/memory.js";
import { mountPresetSelector } from "../shared/settings-form.js";
import { contentToWire, itemsOf, namesOf, voiceLengthS, voicesOf } from "../shared/prompt.js";

/** @import { AudioPlayer } from "../duplex/lib/audio-player.js" */
/** @import { DeviceSelector } from "../shared/audio-device-selector.js" */
/** @import { ContentItem, Voice, VoiceLimits } from "../shared/prompt.js" */
/** @import { TtsVoice } from "../shared/prompt-editors.js" */
/** @import { ChatSession } from "./chat-session.js" */
/** @import { ChatMessage } from "../../types/chat.js" */

// Choice of voice and microphone, loaded when the settings are first opened.

const importChoices = () => Promise.all([import("../shared/audio-device-selector.js"), import("../shared/prompt-editors.js")]);

/** Until they are loaded, the stored choice applies. @param {{limits: VoiceLimits, prefix: string}} options */
export function mountLateSound({ limits, prefix }) {
  /** @type {DeviceSelector | null} */ let devices = null;
  /** @type {TtsVoice | null} */ let ttsVoice = null;
  const load = late(importChoices, ([{ mountAudioDeviceSelector }, { mountTtsVoice }]) => {
    devices = mountAudioDeviceSelector(byId("devices"), { prefix, kinds: ["mic"] });
    ttsVoice = mountTtsVoice(byId("tts-voice"), { limits });
  });
  return {
    load,
    /** The visitor's own sample; null: that of the instructions. @returns {Voice | null} */
    get voice() {
      return ttsVoice?.voice ?? null;
    },
    /** @returns {string} "" is the system default */
    get microphoneId() {
      return devices?.micId ?? remembered(`${prefix}_mic`) ?? "";
    },
  };
}

// Instructions of a conversation: a preset, or own texts and voice samples.

const LONGEST_VOICE_S = 20; // source: docs/specification/service.md#7.3

/** @param {{session: ChatSession, limits: VoiceLimits, onPreset: (settings: Record<string, unknown>) => void}} options */
export function mountInstructions({ session, limits, onPreset }) {
  const panel = byId("instructions", HTMLDetailsElement);
  /** Content of the last preset, for the next new conversation. @type {readonly ContentItem[]} */ let last = [];
  const editor = mountLateContentEditor(byId("system-content"), {
    limits,
    onChange: (items) => {
      selector.setEdited(true);
      last = items;
      tell(items);
    },
  });
  const selector = mountPresetSelector(byId("presets"), {
    mode: "turnbased",
    page: "turnbased",
    advanced: byId("system-content"),
    loadEditors: editor.loadEditors,
    onApply: ({ items, settings, isChosen }) => {
      last = items;
      // A stored conversation has its own instructions.
      if (!isChosen && hasHistory()) return;
      editor.setItems(items);
      tell(items);
      onPreset(settings);
    },
  });
  const hasHistory = () =>
    session.conversation.messages.some(({ role, status }) => role === "system" || (role === "assistant" && status !== "pending"));
  const hasStarted = () => session.conversation.messages.some(({ role }) => role !== "system");
  /** @param {readonly ContentItem[]} items */
  const tell = (items) => session.setSystem(contentToWire(items), { names: namesOf(items) });

  /** Open before the first question, collapsed afterwards. */
  let wasStarted = true;
  const follow = () => {
    const isStarted = hasStarted();
    if (isStarted !== wasStarted) panel.open = !isStarted;
    wasStarted = isStarted;
  };
  session.on("opened", () => {
    const system = session.conversation.messages.find(({ role }) => role === "system");
    if (system || hasStarted()) editor.setItems(system ? itemsOf(system) : []);
  });
  session.on("change", follow);
  follow();

  return {
    /** Applies the instructions to a new conversation. */
    giveToNew() {
      editor.setItems(last);
      tell(last);
    },
    /** The voice of the instructions, if it is unambiguous: exactly one sample of at most 20 s. @returns {Voice | null} */
    get voice() {
      const [voice, ...others] = voicesOf(editor.items);
      return voice && others.length === 0 && voiceLengthS(voice) <= LONGEST_VOICE_S ? voice : null;
    },
    ready: selector.ready,
  };
}

// Plays answers as they arrive; can be silenced, also by a recording or another player.

/**
 * @param {HTMLButtonElement} hush shown during playback
 * @param {{session: ChatSession, delayMs: number, onSound: (isSounding: boolean) => void}} options
 */
export function mountAnswerVoice(hush, { session, delayMs, onSound }) {
  /** @type {AudioPlayer | null} */ let player = null;
  /** @type {Promise<void> | null} */ let opening = null;
  let isSounding = false;
  const become = (/** @type {boolean} */ next) => {
    if (isSounding === next) return;
    isSounding = next;
    hush.hidden = !next;
    onSound(next);
  };
  const open = async () => {
    const { AudioPlayer } = await import("../duplex/lib/audio-player.js"); // needed only for spoken answers
    const opened = new AudioPlayer({ delayMs });
    opened.addEventListener("placed", () => become(true));
    opened.addEventListener("drained", () => become(false));
    opened.addEventListener("flushed", () => become(false));
    await opened.init();
    player = opened;
  };
  const silence = () => {
    player?.flush();
    become(false);
  };
  session.on("sound", ({ audioBase64, isFirst }) => {
    if (isFirst) player?.beginTurn(session.answerId);
    player?.playChunk(audioBase64);
  });
  session.on("answered", ({ message }) => {
    player?.endTurn();
    if (message.status === "stopped") silence();
  });
  session.on("opened", silence);
  on(hush, "click", silence);
  on(document, "soundplay", silence);
  mountView(hush, () => html`${icon("speaker")}${t("chat.hush")}`);
  hush.hidden = true;

  return {
    /** To be called in a user gesture, so that browsers allow audio. */
    unlock() {
      opening ??= open().catch((error) => {
        opening = null; // the answer is also available as a clip
        console.info("No sound can be played.", error);
      });
      return opening;
    },
    silence,
  };
}
