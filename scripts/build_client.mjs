// @ts-check
/**
 * Builds the client as an npm package, `build/client`: `npm run client`.
 *
 * One module without dependencies, its types as TypeScript's compiler reads them from JSDoc, and
 * the metadata of `packages/javascript`. Its version is that of the pages.
 */

import { execFileSync } from "node:child_process";
import { cpSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

import { build } from "esbuild";

const ROOT = resolve(dirname(fileURLToPath(import.meta.url)), "..");
const SOURCE = join(ROOT, "packages", "javascript");
const BUILT = process.argv[2] ? resolve(process.argv[2]) : join(ROOT, "build", "client");
// The HTTP types are global, which no module refers to by itself.
const TYPES = '/// <reference path="./types/http.d.ts" />\nexport * from "./types/client/index.js";\n';

/** @param {string} path */
const readJson = (path) => JSON.parse(readFileSync(path, "utf8"));

rmSync(BUILT, { recursive: true, force: true });
mkdirSync(BUILT, { recursive: true });
await build({
  entryPoints: [join(ROOT, "static", "client", "index.js")],
  ...{ bundle: true, format: "esm", outfile: join(BUILT, "index.js"), target: "es2022" },
});
const tsc = join(ROOT, "node_modules", "typescript", "bin", "tsc");
execFileSync(process.execPath, [tsc, "-p", SOURCE, "--outDir", join(BUILT, "types")], { stdio: "inherit" });
for (const name of ["chat.d.ts", "devices.d.ts", "duplex.d.ts", "http.d.ts", "protocol.d.ts"]) {
  const text = readFileSync(join(ROOT, "types", name), "utf8").replaceAll('"../static/', '"./');
  writeFileSync(join(BUILT, "types", name), text);
}
writeFileSync(join(BUILT, "index.d.ts"), TYPES);
const { version } = readJson(join(ROOT, "package.json"));
writeFileSync(join(BUILT, "package.json"), JSON.stringify({ ...readJson(join(SOURCE, "package.json")), version }, null, 2));
cpSync(join(SOURCE, "README.md"), join(BUILT, "README.md"));
cpSync(join(ROOT, "LICENSE"), join(BUILT, "LICENSE"));
