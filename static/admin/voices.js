/** Voices (listen, add, remove) and presets (listen, inspect). */

import { formatBytes, formatDateTime, formatNumber, getLang, MS_PER_S, t } from "../shared/texts.js";
import { html, iconButton, nothing, on, toast } from "../shared/lit.js";
import { base64ToFloats, bytesToBase64, encodeWav } from "../shared/pcm.js";
import { nameOfFile, VOICE_RATE_HZ, voiceLimits, wordsIn } from "../shared/prompt.js";
import { act, actionButton, table } from "./words.js";
import { failureText } from "./admin-texts.js";

/** @import { Context } from "../pages/admin.js" */
/** @import { VoiceLimits } from "../shared/prompt.js" */
/** @import { AdminApi } from "./admin-api.js" */

const PATH = "/api/assets/ref_audio";
const NAME_MAX_CHARS = 80; // the server's limit

export function makeVoices(/** @type {Context} */ { api, draw, page, after }) {
  const player = makeSamplePlayer(draw);
  /** @type {Http.RefAudio[] | null} */ let voices = null;
  const form = makeUploadForm({ api, draw, limits: voiceLimits(page.defaults), after });
  const addressOf = (/** @type {string} */ id) => `${PATH}/${encodeURIComponent(id)}`;
  const deleteButton = (/** @type {Http.RefAudio} */ { id, name }) =>
    actionButton({
      icon: "trash",
      label: t("common.delete"),
      name,
      about: "voice",
      after,
      question: () => ({ title: t("admin.delete_ask", { name }), text: t("admin.voice_delete_text") }),
      run: () => (player.stop(), api.send("DELETE", addressOf(id))),
      done: () => t("admin.deleted", { name }),
    });
  return {
    refresh: async () => void ({ ref_audios: voices } = await api.get(PATH)),
    onHide: player.stop,
    view: () =>
      html`<p class="soft admin-read">${t("admin.voices_lead")}</p>
        ${form()}
        ${table("voices", voices, ({ id }) => id, [
          { labelKey: "admin.col_listen", cell: ({ id, name }) => player.button(id, name, async () => `${addressOf(id)}/audio`) },
          { labelKey: "admin.col_name", cell: ({ name }) => name },
          { labelKey: "admin.col_length", cell: ({ duration_ms: ms }) => t("admin.s", { n: formatNumber(ms / MS_PER_S, 1) }) },
          { labelKey: "admin.col_added", cell: ({ created_at: at }) => formatDateTime(at) },
          { labelKey: "admin.col_actions", cell: deleteButton },
        ])}`,
  };
}

/** @param {{api: AdminApi, draw: () => void, limits: VoiceLimits, after: () => Promise<unknown>}} options */
function makeUploadForm({ api, draw, limits, after }) {
  const state = { problem: "", isBusy: false, suggested: "" };
  const partsOf = (/** @type {HTMLFormElement} */ form) => ({
    chosen: /** @type {HTMLInputElement} */ (form.elements.namedItem("voice-file")).files?.[0],
    name: /** @type {HTMLInputElement} */ (form.elements.namedItem("voice-name")),
  });
  const problemOf = (/** @type {File | undefined} */ chosen) => {
    if (!chosen) return t("admin.voice_none");
    return chosen.size > limits.maxFileBytes ? t("admin.voice_too_large", { size: formatBytes(chosen.size) }) : "";
  };
  const onChoice = (/** @type {{target: HTMLInputElement}} */ { target }) => {
    const { chosen, name } = partsOf(/** @type {HTMLFormElement} */ (target.form));
    state.problem = chosen ? problemOf(chosen) : "";
    draw();
    if (!chosen || (name.value !== "" && name.value !== state.suggested)) return;
    state.suggested = nameOfFile(chosen.name).slice(0, NAME_MAX_CHARS);
    name.value = state.suggested;
  };
  const send = async (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    if (state.isBusy) return;
    const form = /** @type {HTMLFormElement} */ (event.target);
    const { chosen, name } = partsOf(form);
    state.problem = problemOf(chosen);
    state.isBusy = state.problem === "";
    draw();
    if (!chosen || !state.isBusy) return;
    const wanted = name.value.trim() || nameOfFile(chosen.name);
    const isDone = await act({
      about: "voice",
      run: async () =>
        api.send("POST", PATH, { name: wanted, audio_base64: bytesToBase64(new Uint8Array(await chosen.arrayBuffer())) }),
      done: () => t("admin.voice_added", { name: wanted }),
      after,
    });
    state.isBusy = false;
    if (isDone) form.reset();
    draw();
  };
  const hint = () =>
    t("admin.voice_limits", {
      min: formatNumber(limits.minS, 1),
      max: formatNumber(limits.maxS),
      size: formatBytes(limits.maxFileBytes),
    });
  return () =>
    html`<form class="card stack admin-upload" novalidate @submit=${send}>
      <h3>${t("admin.voice_add")}</h3>
      <div class="admin-fields">
        <div class="field">
          <label for="voice-file">${t("admin.voice_file")}</label>
          <input
            type="file"
            id="voice-file"
            accept="audio/*,video/*"
            required
            aria-describedby="voice-hint voice-problem"
            @change=${onChoice}
          />
          <p class="hint" id="voice-hint">${hint()}</p>
        </div>
        <div class="field">
          <label for="voice-name">${t("admin.voice_name")}</label>
          <input type="text" id="voice-name" maxlength=${NAME_MAX_CHARS} autocomplete="off" />
        </div>
      </div>
      <p class="field-error" id="voice-problem" role="alert">${state.problem}</p>
      <div>
        <button type="submit" class="button button-primary" aria-busy=${String(state.isBusy)}>${t("common.upload")}</button>
      </div>
    </form>`;
}

// Presets of each app, read-only.

const PAUSE_MS = 30_000;

export function makePresets(/** @type {Context} */ { api, draw }) {
  const player = makeSamplePlayer(draw);
  /** @type {[string, Http.Preset[]][]} */ let modes = [];

  const parts = (/** @type {string} */ mode, /** @type {Http.Preset} */ preset) => {
    const path = `/api/presets/${encodeURIComponent(mode)}/${encodeURIComponent(preset.id)}/audio`;
    /** @type {(item: {name?: string, duration?: number | null}, at: string, pick: (sounds: Http.PresetSounds) => {data: string} | null) => unknown} */
    const voice = (item, at, pick) => {
      const name = item.name || t("admin.voice_default");
      const length = item.duration ? t("admin.s", { n: formatNumber(item.duration, 1) }) : "";
      const address = async () => soundUrl(pick(/** @type {Http.PresetSounds} */ (await api.get(path))));
      return html`<div class="row">
        ${player.button(`${path} ${at}`, name, address)}<span>${name}</span><span class="small soft">${length}</span>
      </div>`;
    };
    let sounds = 0;
    const content = preset.system_content.map((item) => {
      if (item.type !== "audio") return html`<p class="admin-prompt">${item.text}</p>`;
      const at = sounds++;
      return voice(item, String(at), ({ system_content_audio: all }) => all[at] ?? null);
    });
    const { system_prompt: prompt, ref_audio: sample, settings } = preset;
    const label = (/** @type {string} */ words) => html`<p class="label small">${words}</p>`;
    return [
      prompt ? [label(t("admin.preset_prompt")), html`<p class="admin-prompt">${prompt}</p>`] : nothing,
      content,
      sample?.type === "audio"
        ? [label(t("admin.preset_voice")), voice(sample, "voice", ({ ref_audio: sound }) => sound)]
        : nothing,
      settings
        ? [label(t("admin.preset_settings")), html`<pre class="small" tabindex="0">${JSON.stringify(settings, null, 2)}</pre>`]
        : nothing,
    ];
  };
  const row = (/** @type {string} */ mode, /** @type {Http.Preset} */ preset) =>
    html`<details class="panel" data-preset=${preset.id}>
      <summary><span>${wordsIn(preset.name, getLang()) || preset.id}</span></summary>
      <div class="stack-tight">
        <p class="soft">${wordsIn(preset.description, getLang())}</p>
        <div class="stack-tight">${parts(mode, preset)}</div>
      </div>
    </details>`;
  const group = (/** @type {[string, Http.Preset[]]} */ [mode, presets]) =>
    html`<div class="stack-tight" data-mode=${mode}>
      <h3>${t(`app.${mode}.title`)}</h3>
      <div class="stack-tight">${presets.map((preset) => row(mode, preset))}</div>
    </div>`;
  return {
    pauseMs: PAUSE_MS,
    onHide: player.stop,
    async refresh() {
      const answer = await api.get("/api/presets");
      modes = Object.entries(answer).filter(([, presets]) => presets.length > 0);
    },
    view: () =>
      html`<p class="soft admin-read">${t("admin.presets_lead")}</p>
        <div class="stack">${modes.map(group)}</div>
        ${modes.length === 0 ? html`<p class="empty">${t("admin.presets_empty")}</p>` : nothing}`,
  };
}

function soundUrl(/** @type {{data: string} | null} */ sound) {
  if (!sound) throw Object.assign(new Error("The preset has no such sound."), { code: "not_found" });
  const file = encodeWav(base64ToFloats(sound.data), VOICE_RATE_HZ);
  return URL.createObjectURL(new Blob([file], { type: "audio/wav" }));
}

// Play buttons, one sound at a time.

function makeSamplePlayer(/** @type {() => void} */ draw) {
  const audio = new Audio();
  /** @type {string | null} */ let playing = null;
  const set = (/** @type {string | null} */ key) => {
    playing = key;
    draw();
  };
  const stop = () => {
    audio.pause();
    set(null);
  };
  on(audio, "ended", stop);
  const press = async (/** @type {string} */ key, /** @type {() => Promise<string>} */ address) => {
    if (playing === key) return stop();
    set(key);
    try {
      const source = await address();
      if (playing !== key) return;
      if (audio.src.startsWith("blob:")) URL.revokeObjectURL(audio.src);
      audio.src = source;
      await audio.play();
    } catch (error) {
      if (playing !== key) return; // another one was started meanwhile
      stop();
      toast(failureText(error, "listen"));
    }
  };
  return {
    stop,
    /**
     * @param {string} key of the sound
     * @param {string} name
     * @param {() => Promise<string>} address resolves to the URL of the sound, on demand
     */
    button(key, name, address) {
      const isPlaying = playing === key;
      const words = t(isPlaying ? "admin.listen_stop" : "admin.listen");
      const look = { label: `${words}: ${name}`, style: "admin-listen" };
      return iconButton(isPlaying ? "stop" : "play", words, () => void press(key, address), look);
    },
  };
}
