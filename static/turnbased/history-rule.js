// @ts-check
/**
 * Which conversations the browser forgets: at most 50 and 200 MiB are kept, the longest unused go first. Pure.
 */

export const MOST_CONVERSATIONS = 50;
export const MOST_BYTES = 200 * 1024 * 1024;

/** @typedef {{id: string, updatedAtMs: number, sizeBytes: number}} Kept */

/**
 * Returns what goes. The one in use always stays, however large.
 *
 * @param {readonly Kept[]} kept
 * @param {string} currentId
 * @param {{mostCount?: number, mostBytes?: number}} [rule]
 * @returns {string[]}
 */
export function conversationsToDrop(kept, currentId, { mostCount = MOST_CONVERSATIONS, mostBytes = MOST_BYTES } = {}) {
  const newestFirst = [...kept].sort((a, b) => b.updatedAtMs - a.updatedAtMs);
  const current = newestFirst.find(({ id }) => id === currentId);
  let count = current ? 1 : 0;
  let bytes = current?.sizeBytes ?? 0;
  /** @type {string[]} */
  const dropped = [];
  for (const { id, sizeBytes } of newestFirst) {
    if (id === currentId) continue;
    // Once one is dropped all older ones are, so that the rule is predictable.
    if (dropped.length > 0 || count + 1 > mostCount || bytes + sizeBytes > mostBytes) dropped.push(id);
    else {
      count += 1;
      bytes += sizeBytes;
    }
  }
  return dropped;
}
