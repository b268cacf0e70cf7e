// @ts-check
/**
 * Builds the files of `static/` for browsers: `node scripts/build_pages.mjs`. Set-up runs it.
 *
 * One script and one style sheet a page, the libraries, and all other files unchanged, in
 * `build/pages/v-VERSION`. The version is the hash of the sources and part of every URL, so that
 * browsers may cache the files forever. Does nothing if that build exists.
 */

import { createHash } from "node:crypto";
import {
  cpSync,
  existsSync,
  mkdirSync,
  readFileSync,
  readdirSync,
  renameSync,
  rmSync,
  statSync,
  utimesSync,
  writeFileSync,
} from "node:fs";
import { dirname, join, relative, resolve } from "node:path";
import { fileURLToPath } from "node:url";

import { build } from "esbuild";

const ROOT = resolve(dirname(fileURLToPath(import.meta.url)), "..");
const STATIC = join(ROOT, "static");
const BUILT = process.argv[2] ? resolve(process.argv[2]) : join(ROOT, "build", "pages");
const OTHER_SOURCES = ["package-lock.json", "scripts/build_pages.mjs"];
const VERSION_CHARS = 12;
const KEPT_VERSIONS = 3; // a running gateway may still serve the previous one, also after a second update

/** Worklets, and scripts that run before the first paint; names without extension. */
const SEPARATE = ["duplex/lib/capture-processor", "shared/early-theme"];

/** The client for other programs, as one file; its URL has no version. */
const CLIENT = "client/index";

/** Library -> module or style sheet of its package; the pages load `vendor/LIBRARY/index.…`. */
const LIBRARIES = {
  marked: ["marked"],
  msgpack: ["@msgpack/msgpack"],
  "noto-sans-sc": ["@fontsource-variable/noto-sans-sc/index.css"],
  uplot: ["uplot", "uplot/dist/uPlot.min.css"],
};

/** Library -> file of its package -> name; these load one another and are copied unchanged. */
const COPIED = {
  "lit-html": Object.fromEntries(
    [
      "lit-html.js",
      "directive.js",
      "directive-helpers.js",
      "directives/guard.js",
      "directives/live.js",
      "directives/repeat.js",
    ].map((name) => [`lit-html/${name}`, name]),
  ),
  onnxruntime: {
    "onnxruntime-web/dist/ort.wasm.min.mjs": "index.js",
    "onnxruntime-web/dist/ort-wasm-simd-threaded.mjs": "ort-wasm-simd-threaded.mjs",
    "onnxruntime-web/dist/ort-wasm-simd-threaded.wasm": "ort-wasm-simd-threaded.wasm",
  },
};

const MODULE = /<script type="module" src="\/static\/([^"]+)"><\/script>/;
const EARLY_MODULE = /<script type="module" async [^>]*><\/script>\n/g;
const STYLE_SHEETS = /(?:<link rel="stylesheet" href="\/static\/[^"]+">\n)+/;

/** @typedef {{name: string, html: string, script: string, styles: string[]}} Page */

/** @param {string | Buffer} content */
const sha256 = (content) => createHash("sha256").update(content).digest("hex");

/** @returns {string[]} paths below `static`, with slashes */
function staticFiles() {
  const names = readdirSync(STATIC, { recursive: true, encoding: "utf8" });
  return names.filter((name) => statSync(join(STATIC, name)).isFile()).map((name) => name.replaceAll("\\", "/"));
}

/** Hashes of the sources by name. @returns {Record<string, string>} */
function fingerprint() {
  const names = [...OTHER_SOURCES, ...staticFiles().map((name) => `static/${name}`)].sort();
  return Object.fromEntries(names.map((name) => [name, sha256(readFileSync(join(ROOT, name)))]));
}

/** @param {string} name @returns {Page} */
function readPage(name) {
  const html = readFileSync(join(STATIC, name), "utf8");
  const script = MODULE.exec(html)?.[1];
  if (!script) throw new Error(`${name} starts no module`);
  const styles = [...html.matchAll(/rel="stylesheet" href="\/static\/([^"]+)"/g)].map(([, path]) => path);
  return { name: name.replace(/\.html$/, ""), html, script, styles };
}

/** @param {string} text @param {string} version @returns {string} with the version in every URL */
const versioned = (text, version) => text.replace(/(?<=["'`])\/static\//g, `/static/v-${version}/`);

/** Views need it from the start, so it is bundled into each page. @type {import("esbuild").Plugin} */
const litHtml = {
  name: "lit-html",
  setup({ onResolve, resolve }) {
    onResolve({ filter: /^\/static\/.*\bvendor\/lit-html\// }, ({ path, kind }) =>
      resolve(`./node_modules/${path.slice(path.indexOf("lit-html/"))}`, { kind, resolveDir: ROOT }),
    );
  },
};

/** Adds the version to URLs, and strips the indentation of templates, which esbuild keeps. @param {string} version @returns {import("esbuild").Plugin} */
const addresses = (version) => ({
  name: "addresses",
  setup({ onLoad }) {
    onLoad({ filter: /\/static\/.*\.js$/ }, ({ path }) => ({
      contents: versioned(readFileSync(path, "utf8"), version).replace(/\n\s+/g, "\n"),
      loader: "js",
    }));
  },
});

/**
 * Bundles all lazy imports of a page into one file: the order of their use is unknown, and many
 * small files cost more than they save.
 *
 * @param {readonly string[]} modules
 * @returns {import("esbuild").Plugin}
 */
const oneLatePart = (modules) => ({
  name: "one late part",
  setup({ onLoad, onResolve }) {
    onResolve({ filter: /^\./ }, ({ kind }) => (kind === "dynamic-import" ? { path: "late", namespace: "late" } : undefined));
    onLoad({ filter: /./, namespace: "late" }, () => ({
      contents: modules.map((path) => `export * from ${JSON.stringify(path)};`).join("\n"),
      resolveDir: ROOT,
    }));
  },
});

/**
 * @param {Page} page
 * @returns {Promise<string[]>} its lazily imported modules
 * @throws {Error} two of them export the same name
 */
async function lateModules({ script }) {
  const { metafile } = await build({
    entryPoints: [join(STATIC, script)],
    ...{ absWorkingDir: ROOT, bundle: true, format: "esm", metafile: true, outdir: BUILT, splitting: true, write: false },
    plugins: [litHtml],
  });
  const late = Object.values(metafile.outputs).filter(({ entryPoint }) => entryPoint && entryPoint !== `static/${script}`);
  const names = late.flatMap((output) => output.exports);
  const twice = names.filter((name, at) => names.indexOf(name) !== at);
  if (twice.length > 0) throw new Error(`${script}: modules that come late share the names ${twice.join(", ")}`);
  return late.map(({ entryPoint }) => join(ROOT, /** @type {string} */ (entryPoint)));
}

/**
 * @param {Page} page
 * @param {string} folder
 * @param {string} version
 */
async function buildPage(page, folder, version) {
  const late = await lateModules(page);
  const { metafile } = await build({
    entryPoints: { [`pages/${page.name}`]: join(STATIC, page.script) },
    ...{ absWorkingDir: ROOT, bundle: true, format: "esm", metafile: true, minify: true, outdir: folder, splitting: true },
    chunkNames: `pages/${page.name}-[hash]`,
    legalComments: "linked", // licences in files of their own, to keep the scripts small
    plugins: [litHtml, addresses(version), oneLatePart(late)],
    target: "es2022",
  });
  await build({
    stdin: { contents: page.styles.map((path) => `@import "./${path}";`).join("\n"), loader: "css", resolveDir: STATIC },
    ...{ bundle: true, minify: true, outfile: join(folder, "pages", `${page.name}.css`) },
  });
  const main = `${relative(ROOT, folder).replaceAll("\\", "/")}/pages/${page.name}.js`;
  const imported = metafile.outputs[main].imports.filter(({ kind }) => kind === "import-statement");
  const lines = [
    ...imported.map(({ path }) => `<link rel="modulepreload" href="/static/pages/${path.split("/").at(-1)}">`),
    `<script type="module" src="/static/pages/${page.name}.js"></script>`,
  ];
  const html = page.html
    .replace(EARLY_MODULE, "")
    .replace(STYLE_SHEETS, `<link rel="stylesheet" href="/static/pages/${page.name}.css">\n`)
    .replace(MODULE, lines.join("\n"));
  writeFileSync(join(folder, `${page.name}.html`), versioned(html, version));
}

/** @param {string} folder */
async function buildLibraries(folder) {
  for (const [library, modules] of Object.entries(LIBRARIES)) {
    for (const module of modules) {
      await build({
        entryPoints: { index: module },
        ...{ absWorkingDir: ROOT, bundle: true, format: "esm", minify: true, outdir: join(folder, "vendor", library) },
        assetNames: "[name]",
        loader: { ".woff2": "file" },
      });
    }
  }
  for (const [library, files] of Object.entries(COPIED)) {
    for (const [path, name] of Object.entries(files)) {
      cpSync(join(ROOT, "node_modules", path), join(folder, "vendor", library, name));
    }
  }
}

/** @param {string} folder @param {string} version */
async function buildAll(folder, version) {
  const names = staticFiles();
  for (const name of names.filter((name) => !/\.(?:css|html|js)$/.test(name))) {
    const target = join(folder, name);
    mkdirSync(dirname(target), { recursive: true });
    if (name.endsWith(".json")) writeFileSync(target, JSON.stringify(JSON.parse(readFileSync(join(STATIC, name), "utf8"))));
    else cpSync(join(STATIC, name), target);
  }
  await build({
    entryPoints: Object.fromEntries(SEPARATE.map((name) => [name, join(STATIC, `${name}.js`)])),
    ...{ bundle: true, format: "iife", minify: true, outdir: folder, target: "es2022" },
  });
  await build({
    entryPoints: { [CLIENT]: join(STATIC, `${CLIENT}.js`) },
    ...{ bundle: true, format: "esm", minify: true, outdir: folder, target: "es2022" },
  });
  const pages = names.filter((name) => name.endsWith(".html")).map(readPage);
  await Promise.all([...pages.map((page) => buildPage(page, folder, version)), buildLibraries(folder)]);
}

const sources = fingerprint();
const version = sha256(JSON.stringify(sources)).slice(0, VERSION_CHARS);
const folder = join(BUILT, `v-${version}`);
if (!existsSync(folder)) {
  const partial = join(BUILT, `partial-${process.pid}`);
  rmSync(partial, { recursive: true, force: true });
  await buildAll(partial, version);
  writeFileSync(join(partial, "manifest.json"), JSON.stringify({ version, sources }));
  try {
    renameSync(partial, folder);
  } catch (error) {
    if (!existsSync(folder)) throw error;
    rmSync(partial, { recursive: true }); // another process has built it meanwhile
  }
}
utimesSync(folder, new Date(), new Date()); // the order is that of use: this version may have been built long ago
const all = readdirSync(BUILT).filter((name) => name.startsWith("v-"));
const latestFirst = all.sort((one, other) => statSync(join(BUILT, other)).mtimeMs - statSync(join(BUILT, one)).mtimeMs);
for (const old of latestFirst.slice(KEPT_VERSIONS)) rmSync(join(BUILT, old), { recursive: true });
