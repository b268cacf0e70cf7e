// @ts-check
/**
 * Gives each way to fail its own sentence and a next step.
 */

import { hasText, t } from "./i18n.js";

const UNKNOWN = "internal";

/**
 * Returns what to tell a person.
 *
 * @param {string | {code?: string, message?: string}} problem a code, or an error that carries one
 * @param {Record<string, string | number>} [params] for {name} in the texts
 * @returns {{code: string, title: string, nextStep: string, detail: string}} `detail` is the server's own
 *   words, only where we have none for the code
 */
export function problemText(problem, params) {
  const wanted = typeof problem === "string" ? problem : (problem.code ?? UNKNOWN);
  const code = hasText(`problem.${wanted}.title`) ? wanted : UNKNOWN;
  const message = typeof problem === "string" ? "" : (problem.message ?? "");
  return {
    code: wanted,
    title: t(`problem.${code}.title`, params),
    nextStep: t(`problem.${code}.next`, params),
    detail: code === wanted && code !== UNKNOWN ? "" : message,
  };
}
