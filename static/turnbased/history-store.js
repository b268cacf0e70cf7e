// @ts-check
/**
 * Conversations kept in this browser: IndexedDB, bounded by history-rule.js. Device.
 */

import { conversationsToDrop } from "./history-rule.js";

const DATABASE = "minicpmo_turnbased";
const VERSION = 1;
const HEADS = "heads"; // small: what a list shows
const BODIES = "bodies"; // large: the messages with their media
const DRAFTS = "drafts"; // what is not sent yet

/**
 * @typedef {Object} Head
 * @property {string} id
 * @property {string} title
 * @property {number} createdAtMs
 * @property {number} updatedAtMs
 * @property {number} sizeBytes
 * @property {number} messageCount
 */

/**
 * @template Body
 * @typedef {Object} HistoryStore
 * @property {() => Promise<Head[]>} list newest first
 * @property {(id: string) => Promise<Body | null>} read
 * @property {(head: Head, body: Body) => Promise<string[]>} write returns the ids that were dropped for it
 * @property {(id: string, title: string) => Promise<void>} rename
 * @property {(id: string) => Promise<void>} remove
 * @property {() => Promise<void>} clear
 * @property {(key: string) => Promise<unknown>} readDraft
 * @property {(key: string, draft: unknown) => Promise<void>} writeDraft null removes it
 */

/**
 * @template T
 * @param {IDBRequest<T>} request
 * @returns {Promise<T>}
 */
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

/** @param {IDBFactory} factory @returns {Promise<IDBDatabase>} */
function open(factory) {
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
 * @param {IDBFactory} [factory]
 * @returns {Promise<HistoryStore<Body>>}
 * @throws {DOMException} the browser allows no storage
 */
export async function openHistory(factory = indexedDB) {
  const database = await open(factory);
  database.onversionchange = () => database.close();

  /** @returns {Promise<Head[]>} */
  const list = async () => {
    const heads = await answered(database.transaction(HEADS).objectStore(HEADS).getAll());
    return /** @type {Head[]} */ (heads).sort((a, b) => b.updatedAtMs - a.updatedAtMs);
  };
  /** @param {string[]} ids */
  const removeAll = async (ids) => {
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

/**
 * A store for browsers that keep nothing: everything is as if it were empty.
 *
 * @template Body
 * @returns {HistoryStore<Body>}
 */
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
