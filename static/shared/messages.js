// @ts-check
/** Which language to show, and names put into texts. Pure. */

const CODE = /^[a-z]{2,3}$/;

/**
 * Returns the first wish that can be met.
 * @param {readonly string[] | null} offered codes such as "en"; null: whatever looks like one
 * @param {{query?: string | null, stored?: string | null, server?: string | null,
 *   browser?: readonly string[], fallback: string}} wishes strongest first, as named here
 * @returns {string}
 */
export function pickLanguage(offered, { query, stored, server, browser = [], fallback }) {
  for (const wish of [query, stored, server, ...browser]) {
    const base = wish?.toLowerCase().split(/[-_]/)[0];
    if (base && (offered ? offered.includes(base) : CODE.test(base))) return base;
  }
  return fallback;
}

/**
 * Puts values in the place of {name}; an unknown name stays, so that a slip is seen.
 * @param {string} text
 * @param {Record<string, string | number>} [params]
 * @returns {string}
 */
export function interpolate(text, params = {}) {
  return text.replace(/\{(\w+)\}/g, (whole, name) => (name in params ? String(params[name]) : whole));
}
