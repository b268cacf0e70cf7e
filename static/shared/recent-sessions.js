// @ts-check
/**
 * The recordings this browser made last, newest first.
 */

const STORAGE_KEY = "minicpmo45_recent_sessions";
const MOST = 20; // source: the pages' published format

/** @typedef {{id: string, appType: string, savedAt: string}} RecentSession */

/**
 * @param {unknown} value
 * @returns {value is RecentSession}
 */
function isRecent(value) {
  const entry = /** @type {Partial<RecentSession> | null} */ (value);
  return typeof entry?.id === "string" && typeof entry.appType === "string" && typeof entry.savedAt === "string";
}

/**
 * @param {Pick<Storage, "getItem">} storage
 * @returns {RecentSession[]}
 */
export function listRecent(storage) {
  try {
    const kept = JSON.parse(storage.getItem(STORAGE_KEY) ?? "[]");
    return Array.isArray(kept) ? kept.filter(isRecent).slice(0, MOST) : [];
  } catch {
    return [];
  }
}

/**
 * @param {Storage} storage
 * @param {string} id of the recording
 * @param {string} appType
 * @param {Date} [now]
 */
export function addRecent(storage, id, appType, now = new Date()) {
  const others = listRecent(storage).filter((entry) => entry.id !== id);
  const entries = [{ id, appType, savedAt: now.toISOString() }, ...others].slice(0, MOST);
  try {
    storage.setItem(STORAGE_KEY, JSON.stringify(entries));
  } catch {
    // Storage may be full or forbidden; the link was shown anyway.
  }
}

/** @param {Pick<Storage, "removeItem">} storage */
export function clearRecent(storage) {
  storage.removeItem(STORAGE_KEY);
}
