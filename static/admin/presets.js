// @ts-check
/** Presets: what visitors may choose from in each app; to be read and heard, not changed. */

import { formatNumber } from "../shared/formats.js";
import { getLang, t } from "../shared/i18n.js";
import { html, nothing, repeat } from "../shared/lit.js";
import { base64ToFloats, encodeWav } from "../shared/pcm.js";
import { wordsIn } from "../shared/presets.js";
import { VOICE_RATE_HZ } from "../shared/voice.js";
import { makeSamplePlayer } from "./sample-player.js";

const PAUSE_MS = 30_000;

/** @param {import("../pages/admin.js").Context} context @returns {import("../pages/admin.js").Section} */
export function makePresets({ api, draw }) {
  const player = makeSamplePlayer(draw);
  /** @type {[string, Http.Preset[]][]} */
  let modes = [];

  /** @param {string} mode @param {Http.Preset} preset */
  const parts = (mode, preset) => {
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
    return html`${
      preset.system_prompt
        ? html`<p class="label small">${t("admin.preset_prompt")}</p>
            <p class="admin-prompt">${preset.system_prompt}</p>`
        : nothing
    }
    ${content}
    ${
      preset.ref_audio?.type === "audio"
        ? html`<p class="label small">${t("admin.preset_voice")}</p>
            ${voice(preset.ref_audio, "voice", ({ ref_audio: sound }) => sound)}`
        : nothing
    }
    ${
      preset.settings
        ? html`<p class="label small">${t("admin.preset_settings")}</p>
            <pre class="small" tabindex="0">${JSON.stringify(preset.settings, null, 2)}</pre>`
        : nothing
    }`;
  };
  /** @param {string} mode @param {Http.Preset} preset */
  const row = (mode, preset) =>
    html`<details class="panel" data-preset=${preset.id}>
      <summary><span>${wordsIn(preset.name, getLang()) || preset.id}</span></summary>
      <div class="stack-tight">
        <p class="soft">${wordsIn(preset.description, getLang())}</p>
        <div class="stack-tight">${parts(mode, preset)}</div>
      </div>
    </details>`;
  /** @param {[string, Http.Preset[]]} group */
  const group = ([mode, presets]) =>
    html`<div class="stack-tight" data-mode=${mode}>
      <h3>${t(`app.${mode}.title`)}</h3>
      <div class="stack-tight">
        ${repeat(
          presets,
          ({ id }) => id,
          (preset) => row(mode, preset),
        )}
      </div>
    </div>`;
  return {
    pauseMs: PAUSE_MS,
    onHide: player.stop,
    async refresh() {
      const answer = await api.get("/api/presets");
      modes = Object.entries(answer).filter(([, presets]) => presets.length > 0);
      draw();
    },
    view: () =>
      html`<p class="soft admin-read">${t("admin.presets_lead")}</p>
        <div class="stack">${repeat(modes, ([mode]) => mode, group)}</div>
        ${modes.length === 0 ? html`<p class="empty">${t("admin.presets_empty")}</p>` : nothing}`,
  };
}

/** @param {{data: string} | null} sound */
function soundUrl(sound) {
  if (!sound) throw Object.assign(new Error("The preset has no such sound."), { code: "not_found" });
  const file = encodeWav(base64ToFloats(sound.data), VOICE_RATE_HZ);
  return URL.createObjectURL(new Blob([file], { type: "audio/wav" }));
}
