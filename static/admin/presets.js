// @ts-check
/** Presets: what visitors may choose from in each app; to be read and heard, not changed. */

import { fill, h, setText } from "../shared/dom.js";
import { formatNumber } from "../shared/formats.js";
import { getLang, onLangChange, t } from "../shared/i18n.js";
import { base64ToFloats, encodeWav } from "../shared/pcm.js";
import { wordsIn } from "../shared/presets.js";
import { VOICE_RATE_HZ } from "../shared/voice.js";
import { mountKeyedRows } from "./keyed-rows.js";
import { makeSamplePlayer } from "./sample-player.js";
import { said } from "./words.js";

/** @typedef {{mode: string, preset: Http.Preset}} Entry */
/** @typedef {import("./admin-api.js").AdminApi} AdminApi */
/** @typedef {ReturnType<typeof makeSamplePlayer>} Player */

const PAUSE_MS = 30_000;

/**
 * @param {HTMLElement} el
 * @param {import("../pages/admin.js").Context} context
 * @returns {import("../pages/admin.js").Section}
 */
export function mountSection(el, { api }) {
  const player = makeSamplePlayer();
  const list = h("div", { class: "stack" });
  const empty = said("p", "admin.presets_empty", { class: "empty", hidden: true });
  el.append(said("p", "admin.presets_lead", { class: "soft admin-read" }), list, empty);
  /** @type {[string, Http.Preset[]][]} */
  let modes = [];
  const groups = mountKeyedRows(list, {
    keyOf: (/** @type {[string, Http.Preset[]]} */ [mode]) => mode,
    make: (first) => modeGroup(first, api, player),
  });
  const draw = () => {
    groups.update(modes);
    empty.hidden = modes.length > 0;
  };
  onLangChange(draw);
  return {
    pauseMs: PAUSE_MS,
    onHide: player.stop,
    async refresh() {
      const answer = await api.get("/api/presets");
      modes = Object.entries(answer).filter(([, presets]) => presets.length > 0);
      draw();
    },
  };
}

/**
 * @param {[string, Http.Preset[]]} first
 * @param {AdminApi} api
 * @param {Player} player
 * @returns {import("./keyed-rows.js").Row<[string, Http.Preset[]]>}
 */
function modeGroup(first, api, player) {
  const title = h("h3");
  const list = h("div", { class: "stack-tight" });
  const rows = mountKeyedRows(list, {
    keyOf: (/** @type {Entry} */ { preset }) => preset.id,
    make: (entry) => presetRow(entry, api, player),
  });
  const update = (/** @type {[string, Http.Preset[]]} */ [mode, presets]) => {
    setText(title, t(`app.${mode}.title`));
    rows.update(presets.map((preset) => ({ mode, preset })));
  };
  update(first);
  return { node: h("div", { class: "stack-tight", dataset: { mode: first[0] } }, title, list), update };
}

/**
 * @param {Entry} first
 * @param {AdminApi} api
 * @param {Player} player
 * @returns {import("./keyed-rows.js").Row<Entry>}
 */
function presetRow(first, api, player) {
  const name = h("span");
  const about = h("p", { class: "soft" });
  const parts = h("div", { class: "stack-tight" });
  const node = h(
    "details",
    { class: "panel", dataset: { preset: first.preset.id } },
    h("summary", {}, name),
    h("div", { class: "stack-tight" }, about, parts),
  );
  /** @type {import("./sample-player.js").ListenButton[]} */
  let buttons = [];
  let drawn = "";
  const update = (/** @type {Entry} */ entry) => {
    const lang = getLang();
    setText(name, wordsIn(entry.preset.name, lang) || entry.preset.id);
    setText(about, wordsIn(entry.preset.description, lang));
    const seen = lang + JSON.stringify(entry.preset);
    if (seen === drawn) return;
    drawn = seen;
    buttons.forEach((button) => button.close());
    buttons = [];
    fill(parts, presetParts(entry, api, player, buttons));
  };
  update(first);
  return { node, update, close: () => buttons.forEach((button) => button.close()) };
}

/**
 * @param {Entry} entry
 * @param {AdminApi} api
 * @param {Player} player
 * @param {import("./sample-player.js").ListenButton[]} buttons takes those that are made
 * @returns {HTMLElement[]}
 */
function presetParts({ mode, preset }, api, player, buttons) {
  /** @type {(item: {name?: string, duration?: number | null}, pick: (sounds: Http.PresetSounds) => {data: string} | null) => HTMLElement} */
  const voice = (item, pick) => {
    const listen = player.button(async () => soundUrl(pick(await soundsOf(api, mode, preset.id))));
    buttons.push(listen);
    const label = item.name || t("admin.voice_default");
    listen.draw(label);
    const length = item.duration ? t("admin.s", { n: formatNumber(item.duration, 1) }) : "";
    return h("div", { class: "row" }, listen.node, h("span", {}, label), h("span", { class: "small soft" }, length));
  };
  const nodes = [];
  if (preset.system_prompt)
    nodes.push(
      h("p", { class: "label small" }, t("admin.preset_prompt")),
      h("p", { class: "admin-prompt" }, preset.system_prompt),
    );
  let sound = 0;
  for (const item of preset.system_content) {
    if (item.type !== "audio") {
      nodes.push(h("p", { class: "admin-prompt" }, item.text));
      continue;
    }
    const at = sound;
    sound += 1;
    nodes.push(voice(item, (sounds) => sounds.system_content_audio[at] ?? null));
  }
  if (preset.ref_audio?.type === "audio")
    nodes.push(
      h("p", { class: "label small" }, t("admin.preset_voice")),
      voice(preset.ref_audio, (sounds) => sounds.ref_audio),
    );
  if (preset.settings)
    nodes.push(
      h("p", { class: "label small" }, t("admin.preset_settings")),
      h("pre", { class: "small", tabindex: 0 }, JSON.stringify(preset.settings, null, 2)),
    );
  return nodes;
}

/**
 * @param {AdminApi} api
 * @param {string} mode
 * @param {string} id
 */
async function soundsOf(api, mode, id) {
  const path = `/api/presets/${encodeURIComponent(mode)}/${encodeURIComponent(id)}/audio`;
  return /** @type {Http.PresetSounds} */ (await api.get(path));
}

/** @param {{data: string} | null} sound */
function soundUrl(sound) {
  if (!sound) throw Object.assign(new Error("The preset has no such sound."), { code: "not_found" });
  const file = encodeWav(base64ToFloats(sound.data), VOICE_RATE_HZ);
  return URL.createObjectURL(new Blob([file], { type: "audio/wav" }));
}
