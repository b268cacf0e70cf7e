// @ts-check
/** Voices: samples the model may speak like; add one, listen, delete. */

import { h, on, setText } from "../shared/dom.js";
import { formatBytes, formatDateTime, formatNumber } from "../shared/formats.js";
import { onLangChange, t } from "../shared/i18n.js";
import { bytesToBase64 } from "../shared/pcm.js";
import { nameOfFile, voiceLimits } from "../shared/voice.js";
import { act, actionButton } from "./action-button.js";
import { makeSamplePlayer } from "./sample-player.js";
import { mountTable } from "./table.js";
import { said } from "./words.js";

const PATH = "/api/assets/ref_audio";
const NAME_MAX_CHARS = 80; // of the server
const MS_PER_S = 1_000;

/**
 * @param {HTMLElement} el
 * @param {import("../pages/admin.js").Context} context
 * @returns {import("../pages/admin.js").Section}
 */
export function mountSection(el, { api, page }) {
  const player = makeSamplePlayer();
  const refresh = async () => {
    const { ref_audios: voices } = await api.get(PATH);
    table.update(voices);
  };
  const after = () => refresh().catch(() => {}); // the next look tells
  el.append(said("p", "admin.voices_lead", { class: "soft admin-read" }), uploadForm(api, voiceLimits(page.defaults), after));
  const table = mountTable(el, {
    captionKey: "admin.voices",
    emptyKey: "admin.voices_empty",
    keyOf: (/** @type {Http.RefAudio} */ voice) => voice.id,
    columns: [
      {
        labelKey: "admin.col_listen",
        mount: (cell, current) => {
          const listen = player.button(() => Promise.resolve(`${PATH}/${encodeURIComponent(current().id)}/audio`));
          cell.append(listen.node);
          return ({ name }) => listen.draw(name);
        },
      },
      { labelKey: "admin.col_name", text: ({ name }) => name },
      { labelKey: "admin.col_length", text: ({ duration_ms: ms }) => t("admin.s", { n: formatNumber(ms / MS_PER_S, 1) }) },
      { labelKey: "admin.col_added", text: ({ created_at: at }) => formatDateTime(at) },
      {
        labelKey: "admin.col_actions",
        mount: (cell, current) => {
          const button = actionButton({
            icon: "trash",
            kind: "danger",
            deed: () => {
              const { id, name } = current();
              return {
                about: "voice",
                question: () => ({
                  title: t("admin.delete_ask", { name }),
                  text: t("admin.voice_delete_text"),
                  confirm: t("common.delete"),
                }),
                run: () => (player.stop(), api.send("DELETE", `${PATH}/${encodeURIComponent(id)}`)),
                done: () => t("admin.deleted", { name }),
                after,
              };
            },
          });
          cell.append(button.node);
          return ({ name }) => button.draw({ label: t("common.delete"), name });
        },
      },
    ],
  });
  return { refresh, onHide: player.stop };
}

/**
 * @param {import("./admin-api.js").AdminApi} api
 * @param {import("../shared/voice.js").VoiceLimits} limits
 * @param {() => Promise<unknown>} after
 */
function uploadForm(api, limits, after) {
  const file = h("input", {
    type: "file",
    id: "voice-file",
    accept: "audio/*,video/*",
    required: true,
    "aria-describedby": "voice-hint voice-problem",
  });
  const name = h("input", { type: "text", id: "voice-name", maxlength: NAME_MAX_CHARS, autocomplete: "off" });
  const hint = h("p", { class: "hint", id: "voice-hint" });
  const problem = h("p", { class: "field-error", id: "voice-problem", role: "alert" });
  const go = said("button", "common.upload", { type: "submit", class: "button button-primary" });
  const form = h(
    "form",
    { class: "card stack admin-upload", novalidate: true },
    said("h3", "admin.voice_add"),
    h(
      "div",
      { class: "admin-fields" },
      h("div", { class: "field" }, said("label", "admin.voice_file", { for: "voice-file" }), file, hint),
      h("div", { class: "field" }, said("label", "admin.voice_name", { for: "voice-name" }), name),
    ),
    problem,
    h("div", {}, go),
  );
  const drawHint = () =>
    setText(
      hint,
      t("admin.voice_limits", {
        min: formatNumber(limits.minS, 1),
        max: formatNumber(limits.maxS),
        size: formatBytes(limits.maxFileBytes),
      }),
    );
  onLangChange(drawHint);
  drawHint();

  let suggested = "";
  on(file, "change", () => {
    const chosen = file.files?.[0];
    setText(
      problem,
      chosen && chosen.size > limits.maxFileBytes ? t("admin.voice_too_large", { size: formatBytes(chosen.size) }) : "",
    );
    if (!chosen || (name.value !== "" && name.value !== suggested)) return;
    suggested = nameOfFile(chosen.name).slice(0, NAME_MAX_CHARS);
    name.value = suggested;
  });
  let isBusy = false;
  on(form, "submit", async (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    const chosen = file.files?.[0];
    if (isBusy) return;
    if (!chosen) return setText(problem, t("admin.voice_none"));
    if (chosen.size > limits.maxFileBytes)
      return setText(problem, t("admin.voice_too_large", { size: formatBytes(chosen.size) }));
    isBusy = true;
    go.setAttribute("aria-busy", "true");
    const wanted = name.value.trim() || nameOfFile(chosen.name);
    const isDone = await act({
      about: "voice",
      run: async () =>
        api.send("POST", PATH, { name: wanted, audio_base64: bytesToBase64(new Uint8Array(await chosen.arrayBuffer())) }),
      done: () => t("admin.voice_added", { name: wanted }),
      after,
    });
    isBusy = false;
    go.removeAttribute("aria-busy");
    if (isDone) form.reset();
  });
  return form;
}
