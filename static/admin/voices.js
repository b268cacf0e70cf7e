// @ts-check
/** Voices: samples the model may speak like; add one, listen, delete. */

import { formatBytes, formatDateTime, formatNumber } from "../shared/formats.js";
import { t } from "../shared/i18n.js";
import { html } from "../shared/lit.js";
import { bytesToBase64 } from "../shared/pcm.js";
import { nameOfFile, voiceLimits } from "../shared/voice.js";
import { act, actionButton } from "./actions.js";
import { makeSamplePlayer } from "./sample-player.js";
import { table } from "./table.js";

const PATH = "/api/assets/ref_audio";
const NAME_MAX_CHARS = 80; // of the server
const MS_PER_S = 1_000;

/** @param {import("../pages/admin.js").Context} context @returns {import("../pages/admin.js").Section} */
export function makeVoices({ api, draw, page }) {
  const player = makeSamplePlayer(draw);
  /** @type {Http.RefAudio[] | null} */
  let voices = null;
  const refresh = async () => {
    ({ ref_audios: voices } = await api.get(PATH));
    draw();
  };
  const after = () => refresh().catch(() => {}); // the next look tells
  const form = makeUploadForm({ api, draw, limits: voiceLimits(page.defaults), after });
  const addressOf = (/** @type {string} */ id) => `${PATH}/${encodeURIComponent(id)}`;
  /** @param {Http.RefAudio} voice */
  const deleteButton = ({ id, name }) => {
    const title = t("admin.delete_ask", { name });
    const deed = {
      about: "voice",
      question: () => ({ title, text: t("admin.voice_delete_text"), confirm: t("common.delete") }),
      run: () => (player.stop(), api.send("DELETE", addressOf(id))),
      done: () => t("admin.deleted", { name }),
      after,
    };
    return actionButton({ icon: "trash", kind: "danger", label: t("common.delete"), name, deed });
  };
  /** @type {import("./table.js").TableColumn<Http.RefAudio>[]} */
  const columns = [
    {
      labelKey: "admin.col_listen",
      cell: ({ id, name }) => player.button(id, name, () => Promise.resolve(`${addressOf(id)}/audio`)),
    },
    { labelKey: "admin.col_name", cell: ({ name }) => name },
    { labelKey: "admin.col_length", cell: ({ duration_ms: ms }) => t("admin.s", { n: formatNumber(ms / MS_PER_S, 1) }) },
    { labelKey: "admin.col_added", cell: ({ created_at: at }) => formatDateTime(at) },
    { labelKey: "admin.col_actions", cell: deleteButton },
  ];
  return {
    refresh,
    onHide: player.stop,
    view: () =>
      html`<p class="soft admin-read">${t("admin.voices_lead")}</p>
        ${form()}
        ${table({ captionKey: "admin.voices", emptyKey: "admin.voices_empty", keyOf: ({ id }) => id, columns, rows: voices })}`,
  };
}

/**
 * @param {{api: import("./admin-api.js").AdminApi, draw: () => void, limits: import("../shared/voice.js").VoiceLimits,
 *   after: () => Promise<unknown>}} options
 */
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
  /** @param {SubmitEvent} event */
  const send = async (event) => {
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
