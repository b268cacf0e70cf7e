// @ts-check
/**
 * What the server says pages start from; asked for once, as soon as this module is there.
 */

import { getJson } from "./api.js";

/**
 * @typedef {Object} FrontendDefaults the answer of GET /api/frontend_defaults
 * @property {number} playback_delay_ms
 * @property {string | null} default_lang
 * @property {Record<string, string>} languages what each language calls itself, by its code
 * @property {number} max_kv_tokens
 * @property {boolean} recording_enabled
 * @property {{session_retention_days: number, max_storage_gb: number}} recording -1 stands for no limit
 * @property {Record<string, number>} half_duplex
 * @property {Record<string, number>} duplex
 * @property {Record<string, number>} limits
 */

/** @type {Promise<FrontendDefaults | null>} null if the server was not reached */
export const serverDefaults = getJson("/api/frontend_defaults").then(
  (answer) => /** @type {FrontendDefaults} */ (answer),
  () => null,
);
