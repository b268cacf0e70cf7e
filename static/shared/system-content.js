// @ts-check
/**
 * The items that tell the model its part: texts, voice samples, pictures, in order. Pure.
 */

import { voiceFromWire, voiceToWire } from "./voice.js";

const DEFAULT_PATH = "default";

/** @typedef {import("./voice.js").Voice} Voice */
/** @typedef {import("./protocol.js").TextContent} TextContent */
/** @typedef {import("./protocol.js").AudioContent} AudioContent */
/** @typedef {import("./protocol.js").ImageContent} ImageContent */

/**
 * @typedef {{type: "text", text: string}} TextItem
 * @typedef {{type: "audio", voice: Voice | null}} AudioItem
 * @typedef {{type: "image", name: string, data: string}} ImageItem `data` is Base64 of the file
 * @typedef {TextItem | AudioItem | ImageItem} ContentItem
 * @typedef {ContentItem["type"]} ItemKind
 *
 * @typedef {{type: "text", text: string} | {type: "audio", path: string, name: string, duration: number | null}} PresetItem
 *   `path` "default" is the server's own voice
 * @typedef {{data: string, name: string, duration: number}} PresetSound
 */

/** @param {ItemKind} kind @returns {ContentItem} */
export function emptyItem(kind) {
  if (kind === "text") return { type: "text", text: "" };
  if (kind === "audio") return { type: "audio", voice: null };
  return { type: "image", name: "", data: "" };
}

/**
 * Moves one item; a step beyond the ends changes nothing.
 *
 * @template T
 * @param {readonly T[]} items
 * @param {number} index
 * @param {number} step -1 is up, 1 is down
 * @returns {T[]}
 */
export function moveItem(items, index, step) {
  const target = index + step;
  if (target < 0 || target >= items.length) return [...items];
  const moved = [...items];
  [moved[index], moved[target]] = [moved[target], moved[index]];
  return moved;
}

/**
 * What messages carry; items with nothing in them are left out.
 *
 * @param {readonly ContentItem[]} items
 * @returns {(TextContent | AudioContent | ImageContent)[]}
 */
export function contentToWire(items) {
  /** @type {(TextContent | AudioContent | ImageContent)[]} */
  const wire = [];
  for (const item of items) {
    if (item.type === "text" && item.text.trim()) wire.push({ type: "text", text: item.text });
    if (item.type === "audio" && item.voice) wire.push({ type: "audio", data: voiceToWire(item.voice) });
    if (item.type === "image" && item.data) wire.push({ type: "image", data: item.data });
  }
  return wire;
}

/**
 * Joins a preset's items with its sounds, which come apart and in the order of the audio items.
 *
 * @param {readonly PresetItem[]} items
 * @param {readonly PresetSound[]} sounds
 * @returns {ContentItem[]}
 */
export function contentFromPreset(items, sounds) {
  let next = 0;
  return items.map((item) => {
    if (item.type === "text") return { type: "text", text: item.text };
    return { type: "audio", voice: voiceFromPreset(item, sounds[next++] ?? null) };
  });
}

/**
 * @param {PresetItem | null} item
 * @param {PresetSound | null | undefined} sound
 * @returns {Voice | null}
 */
export function voiceFromPreset(item, sound) {
  if (item?.type !== "audio" || !sound) return null;
  return voiceFromWire(sound.name, sound.data, item.path === DEFAULT_PATH ? "default" : "preset");
}

/** @param {readonly ContentItem[]} items @returns {Voice | null} the voice the model speaks with */
export function firstVoice(items) {
  for (const item of items) if (item.type === "audio" && item.voice) return item.voice;
  return null;
}
