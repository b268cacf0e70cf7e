// @ts-check
/** Compares the syntax trees of all scripts of one folder with those of the same names in another. */

import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";

import { parse } from "acorn";

const PLACES = new Set(["start", "end", "raw"]);

/** @param {string} path @returns {string} the tree without where things stand */
function treeOf(path) {
  const tree = parse(readFileSync(path, "utf8"), { ecmaVersion: "latest", sourceType: "module" });
  return JSON.stringify(tree, (key, value) => {
    if (PLACES.has(key)) return undefined;
    return typeof value === "bigint" || value instanceof RegExp ? String(value) : value;
  });
}

const [folder, other] = process.argv.slice(2);
const names = readdirSync(folder, { recursive: true, encoding: "utf8" }).filter((name) => name.endsWith(".js"));
const different = names.filter((name) => treeOf(join(folder, name)) !== treeOf(join(other, name)));
if (different.length > 0) {
  console.error(different.join("\n"));
  process.exit(1);
}
console.log(names.length);
