// @ts-check
/**
 * What the form of expected durations means: its fields, what is wrong, what has changed. Pure.
 */

/** @typedef {{name: string, kind: string, isOptional?: boolean, most?: number}} EtaField */

/** @type {readonly EtaField[]} */
export const ETA_FIELDS = Object.freeze([
  { name: "eta_chat_s", kind: "chat" },
  { name: "eta_streaming_s", kind: "streaming" },
  { name: "eta_half_duplex_s", kind: "half_duplex" },
  { name: "eta_audio_duplex_s", kind: "audio_duplex" },
  { name: "eta_omni_duplex_s", kind: "omni_duplex" },
  { name: "eta_duplex_s", kind: "duplex", isOptional: true },
  { name: "ema_alpha", kind: "alpha", most: 1 },
]);

/**
 * @param {Http.EtaStatus} status
 * @param {string} name of a field
 * @returns {number | null}
 */
export function savedValue(status, name) {
  return name === "ema_alpha" ? status.ema_alpha : (status.config[/** @type {keyof Http.EtaConfig} */ (name)] ?? null);
}

/**
 * Says what is wrong with what was typed, null if nothing is.
 *
 * @param {EtaField} field
 * @param {string} text
 * @returns {"missing" | "not_positive" | "too_large" | null}
 */
export function fieldProblem(field, text) {
  if (text.trim() === "") return field.isOptional ? null : "missing";
  const value = Number(text);
  if (!Number.isFinite(value) || value <= 0) return "not_positive";
  return field.most !== undefined && value > field.most ? "too_large" : null;
}

/**
 * Returns what differs from what is saved, ready to be sent.
 *
 * @param {Http.EtaStatus} status
 * @param {Record<string, string>} texts by field; each without a problem
 * @returns {Record<string, number | null>}
 */
export function changesOf(status, texts) {
  /** @type {Record<string, number | null>} */
  const changes = {};
  for (const { name } of ETA_FIELDS) {
    const value = texts[name].trim() === "" ? null : Number(texts[name]);
    if (value !== savedValue(status, name)) changes[name] = value;
  }
  return changes;
}
