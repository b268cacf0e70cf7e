/** Just enough of IndexedDB for the store of conversations: transactions run one after the other, each request in a task of its own. */

export class FakeIndexedDb {
  /** @type {Map<string, Map<string, any>>} any: whatever was stored, by store and key */
  #stores = new Map();
  #last = Promise.resolve();

  open() {
    const database = {
      createObjectStore: (/** @type {string} */ name) => void this.#stores.set(name, new Map()),
      transaction: () => this.#transaction(),
      close: () => {},
    };
    const opening = { result: database, onupgradeneeded: () => {}, onsuccess: () => {} };
    setImmediate(() => {
      if (this.#stores.size === 0) opening.onupgradeneeded();
      opening.onsuccess();
    });
    return opening;
  }

  #transaction() {
    /** @type {(() => void)[]} */ const requests = [];
    const transaction = {
      oncomplete: () => {},
      objectStore: (/** @type {string} */ name) => storeOf(/** @type {Map<string, any>} */ (this.#stores.get(name)), requests),
    };
    this.#last = this.#last.then(async () => {
      do {
        await new Promise((resolve) => setImmediate(resolve));
        requests.shift()?.();
      } while (requests.length > 0);
      transaction.oncomplete();
    });
    return transaction;
  }
}

/** @param {Map<string, any>} rows @param {(() => void)[]} requests @returns {Record<string, Function>} */
function storeOf(rows, requests) {
  const request = (/** @type {() => unknown} */ work) => {
    const one = { result: /** @type {unknown} */ (undefined), onsuccess: () => {} };
    requests.push(() => {
      one.result = work();
      one.onsuccess();
    });
    return one;
  };
  return {
    get: (/** @type {string} */ key) => request(() => rows.get(key)),
    getAll: () => request(() => [...rows.values()]),
    put: (/** @type {any} */ row, /** @type {string} */ key = row.id) => request(() => rows.set(key, structuredClone(row))),
    delete: (/** @type {string} */ key) => request(() => rows.delete(key)),
    clear: () => request(() => rows.clear()),
  };
}
