/** Values in the browser's storage, among them recent conversations and the secrets of recordings. Pure. */

/** @typedef {Pick<Storage, "getItem" | "setItem" | "removeItem">} SmallStorage */

/** @param {string} key @param {Pick<Storage, "getItem"> | null} [storage] the browser's own if left out @returns {string | null} */
export function remembered(key, storage) {
  try {
    return (storage === undefined ? globalThis.localStorage : storage)?.getItem(key) ?? null;
  } catch {
    return null;
  }
}

/** @param {string} key @param {string | null} value null removes it @param {SmallStorage | null} [storage] as above */
export function remember(key, value, storage) {
  try {
    const kept = storage === undefined ? globalThis.localStorage : storage;
    if (value === null) kept?.removeItem(key);
    else kept?.setItem(key, value);
  } catch {
    // see above
  }
}

/** @param {string} key @param {Pick<Storage, "getItem"> | null} [storage] as above @returns {unknown} null if it is no JSON */
export function rememberedJson(key, storage) {
  try {
    return JSON.parse(remembered(key, storage) ?? "null");
  } catch {
    return null;
  }
}

const STORAGE_KEY = "minicpmo45_recent_sessions";
const MOST = 20; // source: the pages' published format

/** @typedef {{id: string, appType: string, savedAt: string}} RecentSession */

/** @param {unknown} value @returns {value is RecentSession} */
function isRecent(value) {
  const entry = /** @type {Partial<RecentSession> | null} */ (value);
  return typeof entry?.id === "string" && typeof entry.appType === "string" && typeof entry.savedAt === "string";
}

/** @param {Pick<Storage, "getItem">} [storage] the browser's own if left out @returns {RecentSession[]} */
export function listRecent(storage) {
  const kept = rememberedJson(STORAGE_KEY, storage);
  return Array.isArray(kept) ? kept.filter(isRecent).slice(0, MOST) : [];
}

/** @param {string} id of the recording @param {string} appType @param {SmallStorage} [storage] as above @param {Date} [now] */
export function addRecent(id, appType, storage, now = new Date()) {
  const others = listRecent(storage).filter((entry) => entry.id !== id);
  const entries = [{ id, appType, savedAt: now.toISOString() }, ...others].slice(0, MOST);
  remember(STORAGE_KEY, JSON.stringify(entries), storage);
}

/** @param {SmallStorage} [storage] */
export const clearRecent = (storage) => remember(STORAGE_KEY, null, storage);

// Secrets that prove ownership of the recordings made in this browser.

const OWN_KEY = "minicpmo45_own_recordings";
const MOST_OWN = 200; // the oldest are dropped first; without the secret a recording can still be read
const SECRET_HEADER = "X-Session-Secret";

/** @typedef {{id: string, secret: string}} OwnRecording */

/** @param {Pick<Storage, "getItem"> | undefined} storage @returns {OwnRecording[]} newest first */
function listOwn(storage) {
  const kept = rememberedJson(OWN_KEY, storage);
  return Array.isArray(kept) ? kept.filter((entry) => typeof entry?.id === "string" && typeof entry.secret === "string") : [];
}

/** @param {SmallStorage} [storage] as above @returns {(message: object) => void} */
export function ownerNotes(storage) {
  let secret = "";
  let known = "";
  return (message) => {
    const { session_secret: sent, recording_session_id: id } = /** @type {Record<string, unknown>} */ (message);
    if (typeof sent === "string") secret = sent;
    if (typeof id !== "string" || secret === "" || id === known) return;
    known = id;
    const others = listOwn(storage).filter((entry) => entry.id !== id);
    remember(OWN_KEY, JSON.stringify([{ id, secret }, ...others].slice(0, MOST_OWN)), storage);
  };
}

/** @param {string} recordingId @param {Pick<Storage, "getItem">} [storage] as above */
export const isOwnRecording = (recordingId, storage) => listOwn(storage).some(({ id }) => id === recordingId);

/** @param {string} recordingId @param {Pick<Storage, "getItem">} [storage] as above @returns {Record<string, string>} */
export function ownerHeaders(recordingId, storage) {
  const own = listOwn(storage).find(({ id }) => id === recordingId);
  return own ? { [SECRET_HEADER]: own.secret } : {};
}
