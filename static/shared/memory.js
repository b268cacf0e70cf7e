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

/**
 * A stored list; entries without one of the texts NAMES are left out.
 * @template {string} Name
 * @param {string} key
 * @param {readonly Name[]} names
 * @param {Pick<Storage, "getItem">} [storage] as above
 * @returns {Record<Name, string>[]} newest first
 */
function listAt(key, names, storage) {
  const kept = rememberedJson(key, storage);
  return Array.isArray(kept) ? kept.filter((entry) => names.every((name) => typeof entry?.[name] === "string")) : [];
}

/** Adds to a stored list; the oldest are dropped. @param {string} key @param {{id: string} & Record<string, string>} entry @param {number} most @param {SmallStorage} [storage] */
function addFirst(key, entry, most, storage) {
  const others = listAt(key, Object.keys(entry), storage).filter(({ id }) => id !== entry.id);
  remember(key, JSON.stringify([entry, ...others].slice(0, most)), storage);
}

const STORAGE_KEY = "minicpmo45_recent_sessions";
const MOST = 20; // source: the pages' published format

/** @typedef {ReturnType<typeof listRecent>[number]} RecentSession */

/** @param {Pick<Storage, "getItem">} [storage] the browser's own if left out */
export const listRecent = (storage) => listAt(STORAGE_KEY, ["id", "appType", "savedAt"], storage).slice(0, MOST);

/** @param {string} id of the recording @param {string} appType @param {SmallStorage} [storage] as above @param {Date} [now] */
export const addRecent = (id, appType, storage, now = new Date()) =>
  addFirst(STORAGE_KEY, { id, appType, savedAt: now.toISOString() }, MOST, storage);

/** @param {string} gone id of a recording that was deleted @param {SmallStorage} [storage] as above */
export const forgetRecent = (gone, storage) =>
  remember(STORAGE_KEY, JSON.stringify(listRecent(storage).filter(({ id }) => id !== gone)), storage);

/** @param {SmallStorage} [storage] */
export const clearRecent = (storage) => remember(STORAGE_KEY, null, storage);

// Secrets that prove ownership of the recordings made in this browser.

const OWN_KEY = "minicpmo45_own_recordings";
const MOST_OWN = 200; // the oldest are dropped first; without the secret a recording can still be read
const SECRET_HEADER = "X-Session-Secret";

const listOwn = (/** @type {Pick<Storage, "getItem"> | undefined} */ storage) => listAt(OWN_KEY, ["id", "secret"], storage);

/** @param {SmallStorage} [storage] as above @returns {(message: object) => void} */
export function ownerNotes(storage) {
  let secret = "";
  let known = "";
  return (message) => {
    const { session_secret: sent, recording_session_id: id } = /** @type {Record<string, unknown>} */ (message);
    if (typeof sent === "string") secret = sent;
    if (typeof id !== "string" || secret === "" || id === known) return;
    known = id;
    addFirst(OWN_KEY, { id, secret }, MOST_OWN, storage);
  };
}

/** @param {string} recordingId @param {Pick<Storage, "getItem">} [storage] as above */
export const isOwnRecording = (recordingId, storage) => listOwn(storage).some(({ id }) => id === recordingId);

/** @param {string} recordingId @param {Pick<Storage, "getItem">} [storage] as above @returns {Record<string, string>} */
export function ownerHeaders(recordingId, storage) {
  const own = listOwn(storage).find(({ id }) => id === recordingId);
  return own ? { [SECRET_HEADER]: own.secret } : {};
}
