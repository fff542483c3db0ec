#!/usr/bin/env node
// Checks Kubernetes objects of other projects (`make scaleout`): against the types of their fields, which refuses unknown
// ones, and against the schemas' limits. Both come from the packages @kubernetes-models of the folder MODULES, which also
// has js-yaml, typescript and esbuild.
//
// usage: scripts/check_manifests.mjs MODULES MANIFEST...
import { execFileSync } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";

// apiVersion and kind: the package and the path of the type.
const TYPES = {
  "monitoring.coreos.com/v1 PodMonitor": "prometheus-operator/monitoring.coreos.com/v1/PodMonitor",
  "keda.sh/v1alpha1 ScaledObject": "keda/keda.sh/v1alpha1/ScaledObject",
  "gateway.networking.k8s.io/v1 HTTPRoute": "gateway-api/gateway.networking.k8s.io/v1/HTTPRoute",
};

// No package has their types: their syntax is all that is checked.
const UNTYPED = ["inference.networking.k8s.io/v1 InferencePool"];

const [modules, ...manifests] = process.argv.slice(2);
const folder = resolve(modules);
const yaml = createRequire(join(folder, "package.json"))("js-yaml");
const checks = [];
for (const manifest of manifests) {
  for (const object of yaml.loadAll(readFileSync(manifest, "utf8"))) {
    const type = `${object.apiVersion} ${object.kind}`;
    if (TYPES[type]) {
      checks.push({ type, kind: object.kind, path: `@kubernetes-models/${TYPES[type]}`, object, manifest });
    } else if (!UNTYPED.includes(type)) {
      console.error(`${manifest}: nothing here knows the type ${type}: add it to scripts/check_manifests.mjs`);
      process.exit(1);
    }
  }
}
// The constructors set the type themselves.
const fields = ({ apiVersion, kind, ...rest }) => JSON.stringify(rest);
const lines = checks.flatMap(({ kind, path, object }, index) => [
  `import { ${kind} as Type${index} } from "${path}";`,
  `const object${index} = new Type${index}(${fields(object)});`,
  `object${index}.validate();`,
]);
writeFileSync(join(folder, "manifests.ts"), lines.join("\n"));
// The validators of some packages name files without their extension, which only bundlers find.
const bundle = "--bundle --platform=node --format=cjs --log-level=error --outfile=manifests.cjs manifests.ts".split(" ");
try {
  const types = "--noEmit --strict --skipLibCheck --module esnext --moduleResolution bundler manifests.ts".split(" ");
  execFileSync(join("node_modules", ".bin", "tsc"), types, { cwd: folder, stdio: "pipe" });
  execFileSync(join("node_modules", ".bin", "esbuild"), bundle, { cwd: folder, stdio: "pipe" });
  execFileSync("node", ["manifests.cjs"], { cwd: folder, stdio: "pipe" });
} catch (error) {
  console.error(`${manifests.join(", ")}: ${error.stdout}${error.stderr}`);
  process.exit(1);
}
console.log(`manifests: ${checks.map(({ kind }) => kind).join(", ")} fit their types and schemas`);
