// @ts-check
/**
 * Writes a plain-text report for somebody who helps. Pure.
 */

/**
 * @typedef {Object} ReportSection
 * @property {string} name
 * @property {string} state in words
 * @property {string} text
 * @property {Record<string, string | number | boolean>} facts
 */

/**
 * @param {string} title
 * @param {readonly (readonly [string, string])[]} head label and value, such as time and browser
 * @param {readonly ReportSection[]} sections
 * @returns {string}
 */
export function reportText(title, head, sections) {
  const lines = [title, "=".repeat(title.length), ...head.map(([label, value]) => `${label}: ${value}`)];
  for (const { name, state, text, facts } of sections) {
    lines.push("", `${name}: ${state}`);
    if (text) lines.push(`  ${text}`);
    for (const [fact, value] of Object.entries(facts)) lines.push(`  ${fact}: ${value}`);
  }
  return `${lines.join("\n")}\n`;
}
