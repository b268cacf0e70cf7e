/** Stores conversations and drafts in this browser, within bounds. Pure: the page passes the database. */

import { remember, remembered } from "../shared/memory.js";

/** @import { Head, MediaPart } from "../../types/chat.js" */
/** @import { SmallStorage } from "../shared/memory.js" */

const DATABASE = "minicpmo_turnbased";
const VERSION = 1;
const HEADS = "heads"; // small: data of the list
const BODIES = "bodies"; // large: the messages with their media
const DRAFTS = "drafts"; // drafts

/**
 * @template Body
 * @typedef {Object} HistoryStore
 * @property {() => Promise<Head[]>} list newest first
 * @property {(id: string) => Promise<Body | null>} read
 * @property {(head: Head, body: Body) => Promise<string[]>} write returns the ids of conversations deleted to make room
 * @property {(id: string, title: string) => Promise<void>} rename
 * @property {(id: string) => Promise<void>} remove
 * @property {() => Promise<void>} clear
 * @property {(key: string) => Promise<unknown>} readDraft
 * @property {(key: string, draft: unknown) => Promise<void>} writeDraft null removes it
 */

/** @template T @param {IDBRequest<T>} request @returns {Promise<T>} */
function answered(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

/** @param {IDBTransaction} transaction @returns {Promise<void>} */
function completed(transaction) {
  return new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve();
    transaction.onabort = () => reject(transaction.error);
    transaction.onerror = () => reject(transaction.error);
  });
}

function open(/** @type {IDBFactory} */ factory) {
  const request = factory.open(DATABASE, VERSION);
  request.onupgradeneeded = () => {
    request.result.createObjectStore(HEADS, { keyPath: "id" });
    request.result.createObjectStore(BODIES);
    request.result.createObjectStore(DRAFTS);
  };
  return answered(request);
}

/**
 * @template Body
 * @param {IDBFactory} factory
 * @throws {DOMException} storage is blocked
 * @returns {Promise<HistoryStore<Body>>}
 */
export async function openHistory(factory) {
  const database = await open(factory);
  database.onversionchange = () => database.close();

  const list = async () => {
    const heads = await answered(database.transaction(HEADS).objectStore(HEADS).getAll());
    return /** @type {Head[]} */ (heads).sort((a, b) => b.updatedAtMs - a.updatedAtMs);
  };
  const removeAll = async (/** @type {string[]} */ ids) => {
    const transaction = database.transaction([HEADS, BODIES], "readwrite");
    for (const id of ids) {
      transaction.objectStore(HEADS).delete(id);
      transaction.objectStore(BODIES).delete(id);
    }
    await completed(transaction);
  };
  return {
    list,
    async read(id) {
      const body = await answered(database.transaction(BODIES).objectStore(BODIES).get(id));
      return /** @type {Body | undefined} */ (body) ?? null;
    },
    async write(head, body) {
      const dropped = conversationsToDrop([...(await list()).filter(({ id }) => id !== head.id), head], head.id);
      if (dropped.length > 0) await removeAll(dropped);
      const transaction = database.transaction([HEADS, BODIES], "readwrite");
      transaction.objectStore(HEADS).put(head);
      transaction.objectStore(BODIES).put(body, head.id);
      await completed(transaction);
      return dropped;
    },
    async rename(id, title) {
      const transaction = database.transaction(HEADS, "readwrite");
      const head = await answered(transaction.objectStore(HEADS).get(id));
      if (head) transaction.objectStore(HEADS).put({ ...head, title });
      await completed(transaction);
    },
    remove: (id) => removeAll([id]),
    async clear() {
      const transaction = database.transaction([HEADS, BODIES], "readwrite");
      transaction.objectStore(HEADS).clear();
      transaction.objectStore(BODIES).clear();
      await completed(transaction);
    },
    async readDraft(key) {
      return (await answered(database.transaction(DRAFTS).objectStore(DRAFTS).get(key))) ?? null;
    },
    async writeDraft(key, draft) {
      const transaction = database.transaction(DRAFTS, "readwrite");
      if (draft === null) transaction.objectStore(DRAFTS).delete(key);
      else transaction.objectStore(DRAFTS).put(draft, key);
      await completed(transaction);
    },
  };
}

/** A store for browsers without storage: always empty. @template Body @returns {HistoryStore<Body>} */
export function forgetfulHistory() {
  return {
    list: async () => [],
    read: async () => null,
    write: async () => [],
    rename: async () => {},
    remove: async () => {},
    clear: async () => {},
    readDraft: async () => null,
    writeDraft: async () => {},
  };
}

// Retention: at most 50 conversations and 200 MiB; the least recently used are deleted first.

export const MOST_CONVERSATIONS = 50;
export const MOST_BYTES = 200 * 1024 * 1024;

/** @typedef {{id: string, updatedAtMs: number, sizeBytes: number}} Kept */

/**
 * Returns what to delete. The current conversation always stays, however large.
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
  /** @type {string[]} */ const dropped = [];
  for (const { id, sizeBytes } of newestFirst) {
    if (id === currentId) continue;
    // Everything older than a deleted one is deleted too, so that the rule is predictable.
    if (dropped.length > 0 || count + 1 > mostCount || bytes + sizeBytes > mostBytes) dropped.push(id);
    else {
      count += 1;
      bytes += sizeBytes;
    }
  }
  return dropped;
}

// Drafts, which survive a reload: text in local storage, attachments in the database.

const TEXT_KEY = "turnbased_draft";
const MEDIA_KEY = "media";

/** @param {Pick<HistoryStore<unknown>, "readDraft" | "writeDraft">} store @param {SmallStorage} [storage] the browser's own if left out */
export function openDraft(store, storage) {
  /** @type {readonly MediaPart[]} */ let keptMedia = [];
  return {
    async read() {
      const media = /** @type {MediaPart[] | null} */ (await store.readDraft(MEDIA_KEY).catch(() => null)) ?? [];
      keptMedia = media;
      return { text: remembered(TEXT_KEY, storage) ?? "", media };
    },
    keep(/** @type {string} */ text, /** @type {readonly MediaPart[]} */ media) {
      remember(TEXT_KEY, text || null, storage);
      if (media === keptMedia || (media.length === 0 && keptMedia.length === 0)) return;
      keptMedia = media;
      // Storage may be full; the draft stays on the page.
      store.writeDraft(MEDIA_KEY, media.length > 0 ? media : null).catch(() => {});
    },
  };
}
